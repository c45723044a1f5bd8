"""What lies inside a wrapped model: DDP, torch.compile, PEFT, sharding."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel


__all__ = ["inner_model", "input_table", "is_sharded", "prompt_learning", "without_ddp"]


def without_ddp(model: torch.nn.Module) -> torch.nn.Module:
    """The module under DistributedDataParallel: the same forward, without a reducer that waits for a backward pass."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def inner_model(model: torch.nn.Module) -> PreTrainedModel | None:
    """The outermost Transformers model inside (PEFT, compile, FSDP and user wrappers keep it as a submodule)."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    return None


def input_table(model: torch.nn.Module) -> torch.nn.Module | None:
    """The module that turns token ids into embeddings, or None where the model does not tell."""
    inner = inner_model(model)
    try:
        return inner.get_input_embeddings() if inner is not None else None
    except NotImplementedError:
        return None


def prompt_learning(model: torch.nn.Module) -> str | None:
    """Name of a PEFT method that puts virtual tokens before every row (prompt, prefix, P-tuning), or None.

    PEFT then sets position_ids to None, so the boundaries inside the row are lost.
    """
    for module in model.modules():
        configs = getattr(module, "peft_config", None)
        for config in configs.values() if isinstance(configs, dict) else ():
            if getattr(config, "is_prompt_learning", False):
                kind: Any = getattr(config, "peft_type", None)
                return str(getattr(kind, "value", kind))
    return None


def is_sharded(model: torch.nn.Module) -> bool:
    """Parameters live in pieces on several ranks (FSDP 1 or 2, ZeRO-3): every forward gathers them, on all ranks."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        return True
    return any(hasattr(p, "ds_id") or type(p.data).__name__ == "DTensor" for p in model.parameters())
