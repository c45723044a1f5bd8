"""Varlen kernels for GPUs. Shapes as in kernels.py: q `[T, H, D]`, k `[T, K, D]`, v `[T, K, V]` -> `[T, H, V]`.

Which calls reach a kernel is decided in kernels.py; here every call is one that the kernel supports.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as torch_flex_attention
from torch.nn.attention.varlen import varlen_attn

from .call import Options
from .segments import Segments


__all__ = ["flash_attention", "flex_attention", "nested_attention", "torch_varlen"]


def _widened(heads: torch.Tensor, width: int) -> torch.Tensor:
    return F.pad(heads, (0, width - heads.shape[-1])) if heads.shape[-1] != width else heads


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, options: Options
) -> torch.Tensor:
    """flash_attn_varlen_func of FlashAttention 2 or 3, from a package or a Hub kernel."""
    assert options.flash is not None
    extra: dict[str, Any] = {}
    if options.window is not None:
        extra["window_size"] = (options.window - 1, 0)  # tokens to the left, besides the token itself
    if options.softcap is not None:
        extra["softcap"] = options.softcap
    if options.dropout:
        extra["dropout_p"] = options.dropout
    if options.sinks is not None:
        known = inspect.signature(options.flash).parameters
        extra["s_aux" if "s_aux" in known else "learnable_sink"] = options.sinks.to(query.dtype)
    out = options.flash(
        query,
        key,
        _widened(value, query.shape[-1]),
        cu_seqlens_q=segments.cu_seqlens,
        cu_seqlens_k=segments.cu_seqlens,
        max_seqlen_q=segments.longest,
        max_seqlen_k=segments.longest,
        softmax_scale=options.scale,
        causal=True,
        **extra,
    )
    out = out[0] if isinstance(out, tuple) else out
    return out[..., : value.shape[-1]]


def torch_varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, options: Options
) -> torch.Tensor:
    """torch.nn.attention.varlen: FlashAttention as torch ships it."""
    width = -(-query.shape[-1] // 8) * 8  # the kernel reads heads in pieces of 8 numbers; zeros change no score
    out = varlen_attn(
        _widened(query, width),
        _widened(key, width),
        _widened(value, width),
        segments.cu_seqlens,
        segments.cu_seqlens,
        segments.longest,
        segments.longest,
        scale=query.shape[-1] ** -0.5 if options.scale is None else options.scale,
        window_size=(-1 if options.window is None else options.window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, torch.Tensor)
    return out[..., : value.shape[-1]]


def nested_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, options: Options
) -> torch.Tensor:
    """SDPA over nested tensors: torch's memory-efficient varlen kernel, for fp32 and for GPUs before Ampere."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:  # nested tensors of fewer heads cannot be trained
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    size = query.shape[-1]
    width = -(-size // 8) * 8  # rows of heads must be aligned; zeros change no score

    def nested(tokens: torch.Tensor) -> torch.Tensor:  # [T, H, D] -> [S, H, (lengths), D]
        jagged = torch.nested.nested_tensor_from_jagged(
            _widened(tokens, width).contiguous(), segments.strict_offsets, min_seqlen=1, max_seqlen=segments.longest
        )
        return jagged.transpose(1, 2)

    scale = size**-0.5 if options.scale is None else options.scale
    out = F.scaled_dot_product_attention(nested(query), nested(key), nested(value), is_causal=True, scale=scale)
    return out.transpose(1, 2).values()[..., : value.shape[-1]]


@lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    return torch.compile(torch_flex_attention, dynamic=True)


@lru_cache(maxsize=1)
def _compiled_block_mask() -> Any:
    return torch.compile(create_block_mask, dynamic=True)  # uncompiled, it goes through a full [T, T] mask


@lru_cache(maxsize=4)
def _block_mask(segments: Segments, window: int | None) -> BlockMask:
    """Blocks of the block-diagonal causal mask; kept for the layers of one forward (Segments hash by identity)."""
    index = segments.index

    def allowed(batch: Any, head: Any, q: Any, k: Any) -> Any:
        inside = (index[q] == index[k]) & (q >= k)
        return inside if window is None else inside & (q - k < window)

    total = index.numel()
    create = _compiled_block_mask() if index.is_cuda else create_block_mask
    return create(allowed, None, None, total, total, device=str(index.device))


def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, options: Options
) -> torch.Tensor:
    """torch.nn.attention.flex_attention: windows, soft caps and sinks on GPUs without FlashAttention.

    A sink adds exp(sink) to the softmax's denominator, so the result is the one without it, times
    sigmoid(logsumexp - sink).
    """
    softcap = options.softcap

    def capped(score: Any, batch: Any, head: Any, q: Any, k: Any) -> Any:
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    run = _compiled_flex() if query.is_cuda else torch_flex_attention
    out, aux = run(
        *(x.transpose(0, 1).unsqueeze(0) for x in (query, key, value)),
        score_mod=capped if softcap is not None else None,
        block_mask=_block_mask(segments, options.window),
        scale=options.scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    if options.sinks is not None:
        out = out * torch.sigmoid(aux.lse - options.sinks.float()[None, :, None]).unsqueeze(-1).to(out.dtype)
    return out.squeeze(0).transpose(0, 1)
