"""packed_varlen as one opaque operator, for graphs made by torch.compile.

The number and lengths of sequences are values of a tensor; a graph that read them would be one graph a batch. Inside
this operator they are read at run time, so one graph serves every length. The backward operator runs the kernel again
and differentiates it (torch.func.vjp): the kernels differ, their derivatives need no second implementation.
"""

from __future__ import annotations

import torch

from .call import Options
from .kernels import varlen_attention
from .segments import Segments, segments_from_starts


__all__ = ["attend"]


def _run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    offsets: torch.Tensor | None,
    longest: int | None,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    if offsets is not None:
        segments = Segments(offsets, longest if longest is not None else query.shape[0])
    else:
        segments = segments_from_starts(starts)
    options = Options(scale=scale, window=window, softcap=softcap, sinks=sinks)
    return varlen_attention(query, key, value, segments, options)


@torch.library.custom_op("hf_packing::attend", mutates_args=())
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    offsets: torch.Tensor | None,
    longest: int | None,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Causal attention inside every segment.

    Args:
        query (`[T, H, D]`), key (`[T, K, D]`), value (`[T, K, V]`).
        starts (bool `[B, L]`): first tokens of segments; not used where `offsets` are given.
        offsets (int32 `[S + 1]`, *optional*), longest (`int`, *optional*): explicit boundaries.
        scale, window, softcap, sinks: as in `Options`.

    Returns:
        `[T, H, V]`, contiguous.
    """
    out = _run(query, key, value, starts, offsets, longest, scale, window, softcap, sinks)
    return out.clone(memory_format=torch.contiguous_format)


@attend.register_fake
def _attend_shape(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object) -> torch.Tensor:
    return query.new_empty(query.shape[0], query.shape[1], value.shape[2])


@torch.library.custom_op("hf_packing::attend_backward", mutates_args=())
def attend_backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    offsets: torch.Tensor | None,
    longest: int | None,
    scale: float | None,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key, value and sinks (empty without sinks)."""

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor | None = None) -> torch.Tensor:
        return _run(q, k, v, starts, offsets, longest, scale, window, softcap, s)

    inputs = (query, key, value) if sinks is None else (query, key, value, sinks)
    pull_back = torch.func.vjp(forward, *inputs)[1]
    dq, dk, dv, *of_sinks = (piece.clone(memory_format=torch.contiguous_format) for piece in pull_back(gradient))
    return dq, dk, dv, of_sinks[0] if of_sinks else query.new_empty(0)


@attend_backward.register_fake
def _backward_shape(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object
) -> tuple[torch.Tensor, ...]:
    sinks = rest[-1]
    last = torch.empty_like(sinks) if isinstance(sinks, torch.Tensor) else query.new_empty(0)
    return (*(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)), last)


def _keep_inputs(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    query, key, value, starts, offsets, ctx.longest, ctx.scale, ctx.window, ctx.softcap, sinks = inputs
    ctx.save_for_backward(query, key, value, starts, offsets, sinks)


def _differentiate(ctx, gradient: torch.Tensor):  # type: ignore[no-untyped-def]
    query, key, value, starts, offsets, sinks = ctx.saved_tensors
    *gradients, of_sinks = attend_backward(
        gradient, query, key, value, starts, offsets, ctx.longest, ctx.scale, ctx.window, ctx.softcap, sinks
    )
    return (*gradients, *(None,) * 6, of_sinks if sinks is not None else None)


attend.register_autograd(_differentiate, setup_context=_keep_inputs)
