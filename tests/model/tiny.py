"""Small models and packed batches for the model tests; nothing here comes from the package."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM


SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_llama(attention="sdpa", **changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, **changes}, attn_implementation=attention))


def tiny_mistral(attention="sdpa", window=7, **changes):
    torch.manual_seed(0)
    return MistralForCausalLM(
        MistralConfig(**{**SMALL, **changes}, sliding_window=window, attn_implementation=attention)
    )


def tiny_gpt2(attention="sdpa"):
    torch.manual_seed(0)
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=128, bos_token_id=1, eos_token_id=2)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    config.scale_attn_by_inverse_layer_idx = True
    config._attn_implementation = attention
    return GPT2LMHeadModel(config)


def packed_batch(lengths, seed=0, explicit=False, rows=1):
    """input_ids and restarting position_ids `[rows, T / rows]`, with offsets where asked for."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 128, (rows, sum(lengths) // rows), generator=generator)
    positions = torch.tensor([p for length in lengths for p in range(length)]).reshape(rows, -1)
    batch = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    if explicit:
        offsets = torch.tensor([sum(lengths[:n]) for n in range(len(lengths) + 1)], dtype=torch.int32)
        batch |= {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
        batch |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    return batch


def alone_logits(model, ids, lengths):
    """Each sequence run by itself, concatenated to `[T, V]`."""
    pieces = ids.reshape(1, -1).split(list(lengths), dim=1)
    return torch.cat([model(input_ids=piece, use_cache=False).logits[0] for piece in pieces])
