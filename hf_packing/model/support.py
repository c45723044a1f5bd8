"""What a loaded model needs to be trained on packs, and what it cannot do: read off the model, not off its name.

`inspect_model` runs nothing and costs milliseconds; it says what to try. Whether that isolates is proved by
`check_isolation`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from .attention import NAME
from .call import AttentionCall
from .kernels import choose_kernel, hardware_of
from .unwrap import inner_model, prompt_learning


__all__ = ["ModelSupport", "inspect_model"]

Boundaries = Literal["position_ids", "explicit"]
Layout = Literal["flat", "rows"]

DENSE = ("eager", "sdpa")

STATEFUL = re.compile(
    r"Mamba|SSM|Rwkv|RWKV|DeltaNet|DeltaAttention|GatedDelta|LightningAttention|LinearAttention|ShortConv|Recurrent|xLSTMLayer"
)
"""Class names of modules that carry a state from token to token; convolutions are found by their type."""

OTHER_TOWER = re.compile(r"audio|vision|visual|speech|image|video|conformer")


@dataclass(frozen=True, kw_only=True)
class ModelSupport:
    """What a model needs and cannot do.

    Args:
        attention (`str`): the attention implementation the model is set to.
        kernel (`str`): what computes attention: a kernel of packed_varlen, or the implementation itself.
        boundaries ("position_ids" | "explicit"): what the collator should emit.
        layout ("flat" | "rows"): rows where a dense mask would be built over the whole flat batch.
        position_ids_start (`int`): position of a sequence's first token; padding_idx + 1 for RoBERTa-like models.
        multi_axis_positions (`bool`): positions have three axes (multimodal RoPE); restarts must be explicit.
        carries_state (`bool`): a recurrent or convolutional state runs from token to token.
        restarts_state (`bool`): `restart_state` made its layers start anew at each sequence.
        drops_positions (`str`, *optional*): the PEFT method that throws position_ids away.
        max_pack_length (`int`, *optional*): a pack longer than this can cross a rule that depends on length, so that
            a long sequence would change its neighbours (dynamic and longrope RoPE, chunks under FlashAttention).
        dense_mask (`bool`): this attention builds an `[L, L]` mask for packs.
        can_switch_attention (`bool`): the model can be set to packed_varlen.
        reasons: one sentence for everything above that is out of the ordinary.
    """

    attention: str
    kernel: str
    boundaries: Boundaries
    layout: Layout
    position_ids_start: int = 0
    multi_axis_positions: bool = False
    carries_state: bool = False
    restarts_state: bool = False
    drops_positions: str | None = None
    max_pack_length: int | None = None
    dense_mask: bool = False
    can_switch_attention: bool = False
    reasons: tuple[str, ...] = ()


def _configs(config: Any) -> Iterator[Any]:
    """A config and the configs inside it (text_config of multimodal models)."""
    yield config
    for name in getattr(config, "sub_configs", {}):
        inner = getattr(config, name, None)
        if inner is not None and not OTHER_TOWER.search(name):
            yield from _configs(inner)


def _text_modules(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for name, module in model.named_modules():
        if not OTHER_TOWER.search(name):
            yield module


@lru_cache(maxsize=256)
def _masks_read_positions(module_name: str) -> bool:
    """Whether a modeling file hands position_ids to the functions that build its masks."""
    module = sys.modules.get(module_name)
    try:
        tree = ast.parse(inspect.getsource(module)) if module is not None else None
    except (OSError, TypeError):
        return False
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            given = {keyword.arg for keyword in node.keywords}
            if "mask" in name and {"inputs_embeds", "position_ids"} <= given:
                return True
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            if {"inputs_embeds", "position_ids"} <= keys:
                return True
    return False


def _reads_positions(model: torch.nn.Module) -> bool:
    return any(
        _masks_read_positions(name) for name in {type(m).__module__ for m in model.modules()} if "modeling" in name
    )


def _carries_state(model: torch.nn.Module) -> str | None:
    """Class name of the first module that carries a state, or None."""
    for module in _text_modules(model):
        if STATEFUL.search(type(module).__name__) and not isinstance(module, PreTrainedModel):
            return type(module).__name__
        if isinstance(module, torch.nn.Conv1d) and module.kernel_size[0] > 1:
            return f"Conv1d of width {module.kernel_size[0]}"
    for config in _configs(getattr(model, "config", None)):
        for kind in getattr(config, "layer_types", None) or ():
            if re.search(r"mamba|linear_attention|conv|recurrent", str(kind)):
                return str(kind)
    return None


def _position_ids_start(model: torch.nn.Module) -> int:
    """padding_idx + 1 where an embedding computes its positions from the padding of the ids, as RoBERTa does."""
    for module in _text_modules(model):
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, torch.nn.Embedding) and hasattr(type(module), "create_position_ids_from_input_ids"):
            return int(getattr(module, "padding_idx", 0) or 0) + 1
    return 0


def _multi_axis(model: torch.nn.Module) -> bool:
    for config in _configs(getattr(model, "config", None)):
        parameters = getattr(config, "rope_parameters", None)
        for entry in (parameters, *(parameters or {}).values()) if isinstance(parameters, dict) else ():
            if isinstance(entry, dict) and "mrope_section" in entry:
                return True
    return False


def _length_limit(model: torch.nn.Module, attention: str) -> tuple[int, str] | None:
    """The shortest length from which on a rule of the model changes, and the rule."""
    limits: list[tuple[int, str]] = []
    for module in _text_modules(model):
        kinds = getattr(module, "rope_type", None)
        config = getattr(module, "config", None)
        for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
            if not isinstance(kind, str) or ("dynamic" not in kind and kind != "longrope"):
                continue
            limit = getattr(module, "original_max_seq_len", None)
            if kind == "longrope":
                parameters = getattr(config, "rope_parameters", None) or {}
                limit = parameters.get("original_max_position_embeddings", limit)
                limit = getattr(config, "original_max_position_embeddings", limit)
            if limit:
                limits.append((int(limit), f"{kind} RoPE changes all frequencies when any sequence is longer than"))
    if "flash" in attention:
        for config in _configs(getattr(model, "config", None)):
            if chunk := getattr(config, "attention_chunk_size", None):
                limits.append((int(chunk), "FlashAttention cannot cut attention into chunks, so packs must fit in"))
    return min(limits) if limits else None


def _kernel(model: torch.nn.Module, config: Any, attention: str) -> str:
    if attention != NAME:
        return attention
    parameter = next(iter(model.parameters()), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    dtype = getattr(config, "dtype", None) or (parameter.dtype if parameter is not None else torch.float32)
    heads = getattr(config, "num_attention_heads", None) or 1
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 64) // heads
    call = AttentionCall(dtype, size, size, softcap=getattr(config, "attn_logit_softcapping", None))
    return choose_kernel(call, hardware_of(device.type, device.index))


def _takes_explicit(model: torch.nn.Module) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return "cu_seq_lens_q" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def inspect_model(model: torch.nn.Module) -> ModelSupport:
    """Read off a loaded model what its packs must look like. Nothing runs, nothing changes.

    Args:
        model: a Transformers model, bare or wrapped (PEFT, DDP, FSDP, torch.compile, a module of the user's).

    Returns:
        `ModelSupport`; for a module without any Transformers model inside, the most careful answer.

    Example:

        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        ...     vocab_size=32, attn_implementation="packed_varlen")
        >>> support = inspect_model(LlamaForCausalLM(config))
        >>> support.boundaries, support.layout, support.kernel
        ('position_ids', 'flat', 'per_sequence_sdpa')
    """
    inner = inner_model(model)
    if inner is None:
        reason = f"{type(model).__name__} holds no Transformers model: only the proof can tell what it does."
        return ModelSupport(
            attention="unknown", kernel="unknown", boundaries="explicit", layout="rows", reasons=(reason,)
        )
    text = inner.config.get_text_config()
    attention = text._attn_implementation or "eager"
    dense = attention in DENSE
    switchable = bool(inner._can_set_attn_implementation())
    state = _carries_state(inner)
    multi_axis = _multi_axis(inner)
    dropped = prompt_learning(model)
    start = _position_ids_start(inner)
    limit = _length_limit(inner, attention)
    by_positions = _reads_positions(inner) and not multi_axis and state is None
    reasons = []
    restarts = any(getattr(module, "restarts_state", False) for module in inner.modules())
    if state is not None and not restarts:
        reasons.append(f"{state} carries a state from token to token, which position_ids do not reset.")
    if not by_positions and state is None and not multi_axis:
        reasons.append(f"{type(inner).__name__} builds its mask without position_ids.")
    if multi_axis:
        reasons.append("Positions have several axes and jump inside a sequence: boundaries must be explicit.")
    if dropped:
        reasons.append(f"PEFT's {dropped} puts virtual tokens before each row and drops position_ids.")
    if start:
        reasons.append(f"Positions start at {start} (padding_idx + 1).")
    if limit is not None:
        reasons.append(f"{limit[1]} {limit[0]} tokens.")
    if dense:
        reasons.append(f"{attention} builds a dense mask over every row.")
    if not switchable:
        reasons.append(f"{type(inner).__name__} has an attention of its own, which cannot be replaced.")
    if not by_positions and not _takes_explicit(inner):
        reasons.append(f"{type(inner).__name__}.forward takes no explicit boundaries.")
    return ModelSupport(
        attention=attention,
        kernel=_kernel(inner, text, attention),
        boundaries="position_ids" if by_positions else "explicit",
        layout="rows" if dense else "flat",
        position_ids_start=start,
        multi_axis_positions=multi_axis,
        carries_state=state is not None,
        restarts_state=restarts,
        drops_positions=dropped,
        max_pack_length=limit[0] if limit is not None else None,
        dense_mask=dense,
        can_switch_attention=switchable,
        reasons=tuple(reasons),
    )
