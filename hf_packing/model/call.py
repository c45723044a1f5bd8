"""One attention call: what it asks for (`Options`), and the facts that decide who runs it (`AttentionCall`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


__all__ = ["AttentionCall", "Hardware", "Options"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """Everything besides queries, keys, values and segments.

    Args:
        scale (`float`, *optional*): factor of the scores; None: 1 / sqrt(head size).
        window (`int`, *optional*): a token sees itself and the window - 1 tokens before it.
        softcap (`float`, *optional*): scores become softcap * tanh(scores / softcap).
        sinks (`[H]`, *optional*): a learned score a head that takes part in the softmax and carries no value.
        dropout (`float`): of the attention weights.
        flash (callable, *optional*): the flash_attn_varlen_func in use.
    """

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    dropout: float = 0.0
    flash: Callable[..., Any] | None = None


@dataclass(frozen=True)
class AttentionCall:
    """The facts of a call that decide which kernel can run it; hashable, so a decision is made once."""

    dtype: torch.dtype
    head_size: int
    value_size: int
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    dropout: bool = False


@dataclass(frozen=True)
class Hardware:
    """What a machine offers.

    Args:
        device (`str`): "cpu", "cuda", "mps", ...
        capability: of the CUDA device, (7, 5) for a T4, (8, 0) for an A100, (9, 0) for an H100.
        flash (callable, *optional*): flash_attn_varlen_func of a FlashAttention that is installed or was handed over.
        triton (`bool`): torch.compile can generate GPU code.
    """

    device: str
    capability: tuple[int, int] = (0, 0)
    flash: Callable[..., Any] | None = None
    triton: bool = False
