"""Cost of a sequence: coefficients beside counted weights, and exact sums a pack."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from hf_packing.data.cost import attention_cost, pack_sums
from hf_packing.errors import PackingError


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 99,
}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SMALL, num_key_value_heads=2),
        Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=32),
        Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=16),
        GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=99),
        OPTConfig(hidden_size=64, ffn_dim=160, num_hidden_layers=3, num_attention_heads=4, vocab_size=99),
    ],
    ids=lambda config: config.model_type,
)
def test_linear_part_is_twice_the_weights_a_token_meets(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = {id(p): p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name}
    matrices = {k: v for k, v in matrices.items() if v}
    head = model.get_output_embeddings().weight
    matrices[id(head)] = head.numel()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.weight is not head:
            matrices.pop(id(module.weight), None)
    a, b = attention_cost(config, max_length=32)
    assert a == pytest.approx(2 * sum(matrices.values()), rel=1e-12)
    assert b > 0


def test_attention_part_of_full_windowed_and_mixed_layers():
    width = 2 * 4 * 16
    llama = LlamaConfig(**SMALL)
    assert attention_cost(llama)[1] == 3 * width
    mistral = MistralConfig(**SMALL, num_key_value_heads=4, sliding_window=128)
    assert attention_cost(mistral, max_length=128)[1] == 3 * width, "a window as long as the text is full attention"
    linear, quadratic = attention_cost(mistral, max_length=4096)
    assert quadratic == 0
    assert linear - attention_cost(llama)[0] == 3 * 4 * 128 * 64
    gemma = Gemma2Config(**SMALL, num_key_value_heads=4, head_dim=16, sliding_window=128)
    assert gemma.layer_types.count("full_attention") == 1
    assert attention_cost(gemma)[1] == width


def test_of_a_mixture_the_chosen_experts_count():
    moe = Qwen3MoeConfig(
        **SMALL, num_key_value_heads=4, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2
    )
    dense = Qwen3Config(**(SMALL | {"intermediate_size": 64}), num_key_value_heads=4, head_dim=16)
    assert attention_cost(moe)[0] == attention_cost(dense)[0]


def test_a_config_without_the_numbers():
    class Config:
        num_hidden_layers = 2
        hidden_size = None

        def get_text_config(self):
            return self

    with pytest.raises(PackingError, match=r"Config has hidden_size=None.*Pass cost="):
        attention_cost(Config())


@given(st.lists(st.lists(st.integers(1, 10**6), max_size=6), max_size=30), st.integers(1, 7))
def test_pack_sums_are_exact(packs, block):
    lengths = np.array([length for pack in packs for length in pack], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64)
    tokens, squares = pack_sums(lengths, offsets, block=block)
    assert tokens.tolist() == [sum(pack) for pack in packs]
    assert squares.tolist() == [sum(length**2 for length in pack) for pack in packs]
