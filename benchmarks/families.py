"""Small random models of every causal-LM family that Transformers builds without a download.

A family gets the sizes of `SMALL` where its config has such an attribute, then its own entry of `SPECIAL` (sizes that
must fit each other, and both kinds of layer in hybrid models). Decoders of encoder-decoder models, models with a
vision or audio tower, and encoders without a causal mode are left out: see `LEFT_OUT`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


__all__ = ["LEFT_OUT", "build", "families"]

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "head_dim": 8,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_head_dim": None,
    "head_dim": None,
    "num_key_value_heads": 4,
}
GROUPED_EXPERTS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1}
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}

SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {**MAMBA2, "attn_layer_indices": [1]},
    "bert-generation": {"is_decoder": True},
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": {
        **MLA,
        **GROUPED_EXPERTS,
        "moe_intermediate_size": 16,
        "topk_method": "greedy",
        "num_experts_per_tok": 2,
    },
    "deepseek_v3": {**MLA, **GROUPED_EXPERTS, "moe_intermediate_size": 16},
    "falcon": {"head_dim": None, "num_kv_heads": 4},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 64},
    "glm4_moe_lite": {**MLA, **GROUPED_EXPERTS},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16, "num_layers": 2},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {**MAMBA2, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "longcat_flash": {**MLA, "expert_ffn_hidden_size": 32, "zero_expert_num": 2, "ffn_hidden_size": 64},
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    "minicpm3": {**MLA},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2, "head_dim": 8},
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_moe_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16},
    "roberta": {"is_decoder": True},
    "sarvam_mla": {**MLA, **GROUPED_EXPERTS},
    "xlm-roberta": {"is_decoder": True},
    "youtu": {**MLA, "q_lora_rank": 16},
    "zamba2": {
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "hybrid"],
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "mamba_ngroups": 1,
        "use_mem_rope": True,
    },
    **{
        name: {"sliding_window": 16} for name in ("gemma2", "gemma3_text", "gpt_oss", "mistral", "olmo3", "vaultgemma")
    },
}

SEQ2SEQ = "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart prophetnet trocr whisper"
ENCODERS = (
    "bert big_bird camembert data2vec-text electra ernie megatron-bert rembert roc_bert roberta-prelayernorm roformer "
    "xlm xlm-roberta-xl xmod xlnet reformer"
)
TOWERS = (
    "cwm emu3 fuyu gemma3 gemma3n gemma4 gemma4_unified git got_ocr2 llama4 mllama moshi moss_transcribe_diarize "
    "musicgen musicgen_melody phi4_multimodal qwen3_5 qwen3_5_moe qwen4_exp blt"
)
LEFT_OUT: dict[str, str] = {
    **dict.fromkeys(SEQ2SEQ.split(), "decoder of an encoder-decoder model"),
    **dict.fromkeys(ENCODERS.split(), "encoder (its causal mode is RoBERTa's or BERT-generation's)"),
    **dict.fromkeys(
        TOWERS.split(), "has a vision, audio or byte tower; the list has its text model where there is one"
    ),
}

LARGEST = 3_000_000
"""Parameters; a family whose generic small config stays above it is not small."""


def families() -> list[str]:
    """Names of all causal-LM families that are not left out."""
    return [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in LEFT_OUT]


def _has(config: Any, name: str) -> bool:
    with contextlib.suppress(AttributeError, NotImplementedError, ValueError):
        return getattr(config, name, None) is not None
    return False


def small_config(name: str) -> Any:
    """The family's config in small sizes; raises what the config class raises where sizes do not fit."""
    kind = CONFIG_MAPPING[name]
    default = kind()
    sizes = {key: value for key, value in SMALL.items() if _has(default, key)}
    sizes.update(SPECIAL.get(name, {}))
    # None in SPECIAL takes a generic size back.
    return kind(**{key: value for key, value in sizes.items() if value is not None})


def build(name: str, attention: str, seed: int = 0) -> PreTrainedModel:
    """A random model of a family, in fp32 on the CPU.

    Weights are drawn wider than the configs say, so that layers matter and a leak through any of them shows.
    """
    config = small_config(name)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters with the generic small sizes")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(small_config(name), attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3.0)
    return model
