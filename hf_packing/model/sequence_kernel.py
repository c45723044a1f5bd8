"""Attention one sequence at a time: the kernel that runs everything everywhere, and the fastest one on a CPU.

Shapes as in kernels.py: q `[T, H, D]`, k `[T, K, D]`, v `[T, K, V]` -> `[T, H, V]`. Work and memory are those of the
sequences alone: no score between two sequences is ever computed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .call import Options
from .segments import Segments


__all__ = ["dense_attention", "per_sequence"]

SHORT = 16
"""Sequences up to this length cost a call more than they compute; many of them are batched into one call."""

MANY = 4
"""How many short sequences are worth the gather that batches them."""


def _repeated(heads: torch.Tensor, groups: int) -> torch.Tensor:
    return heads.repeat_interleave(groups, dim=1) if groups > 1 else heads  # [B, K, l, D] -> [B, H, l, D]


def dense_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor, options: Options
) -> torch.Tensor:
    """Softmax attention written out, for what SDPA has no argument for: soft-capped scores and attention sinks.

    Soft caps are those of Gemma 2 (arXiv:2408.00118); a sink is a learned score a head that takes part in the softmax
    and carries no value (gpt-oss; the idea: arXiv:2309.17453).

    Args:
        query (`[B, H, l, D]`), key (`[B, K, m, D]`), value (`[B, K, m, V]`).
        allowed (bool, broadcastable to `[B, H, l, m]`): which keys a query sees; a window in `options` is not used.

    Returns:
        `[B, H, l, V]`.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = _repeated(key, groups), _repeated(value, groups)
    scale = query.shape[-1] ** -0.5 if options.scale is None else options.scale
    scores = (query @ key.transpose(-1, -2)) * scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).float()
    if options.sinks is not None:
        column = options.sinks.float().reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : key.shape[2]].to(query.dtype)
    return F.dropout(weights, options.dropout, training=options.dropout > 0) @ value


def _causal(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    slots = torch.arange(length, device=device)
    distance = slots[:, None] - slots[None, :]
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


def _banded(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int, options: Options
) -> torch.Tensor:
    """Sliding-window attention over one sequence in blocks of `window` queries: O(l * window), not O(l * l).

    With window 3 and 7 tokens, block 1 holds the queries 3, 4, 5 and sees the keys 0 .. 5: its own block and the one
    before it, which is as far as a window reaches. Block 0 has a block of zeros before it, masked out.
    """
    length, groups = query.shape[2], query.shape[1] // key.shape[1]
    blocks = -(-length // window)
    tail = blocks * window - length

    def queries(heads: torch.Tensor) -> torch.Tensor:  # [1, H, l, D] -> [blocks, H, window, D]
        padded = F.pad(heads, (0, 0, 0, tail))
        return padded.unflatten(2, (blocks, window)).squeeze(0).transpose(0, 1)

    def keys(heads: torch.Tensor) -> torch.Tensor:  # [1, K, l, D] -> [blocks, H, 2 * window, D]
        padded = F.pad(_repeated(heads, groups), (0, 0, window, tail))
        return padded.unfold(2, 2 * window, window).squeeze(0).permute(1, 0, 3, 2)

    rows = torch.arange(window, device=query.device)[:, None] + window
    columns = torch.arange(2 * window, device=query.device)[None, :]
    allowed = (columns <= rows) & (columns > rows - window)
    allowed = allowed.expand(blocks, 1, window, 2 * window).clone()
    allowed[0, :, :, :window] = False
    out = F.scaled_dot_product_attention(
        queries(query), keys(key), keys(value), attn_mask=allowed, dropout_p=options.dropout, scale=options.scale
    )
    return out.transpose(0, 1).flatten(1, 2)[:, :length].unsqueeze(0)


def _one_call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: Options) -> torch.Tensor:
    """Causal attention over `[n, H, l, D]`: one sequence, or n short ones padded on the right."""
    length, groups = query.shape[2], query.shape[1] // key.shape[1]
    window = None if options.window is None or options.window >= length else options.window
    if options.softcap is not None or options.sinks is not None:
        return dense_attention(query, key, value, _causal(length, window, query.device), options)
    if window is None:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=options.dropout,
            is_causal=True,
            scale=options.scale,
            enable_gqa=groups > 1,
        )
    if query.shape[0] == 1 and length > 2 * window:
        return _banded(query, key, value, window, options)
    return F.scaled_dot_product_attention(
        query,
        _repeated(key, groups),
        _repeated(value, groups),
        attn_mask=_causal(length, window, query.device),
        dropout_p=options.dropout,
        scale=options.scale,
    )


def _short_batch(segments: Segments) -> tuple[set[int], torch.Tensor, torch.Tensor] | None:
    """Which sequences are short, their tokens as a right-padded `[n, width]`, and which of those are real.

    For lengths [2, 40, 1], tokens are [[0, 1], [42, 42]] (the last token fills up) and real is [[1, 1], [1, 0]].
    Causal attention never looks to the right, so the filler changes nothing.
    """
    lengths, device = segments.lengths, segments.cu_seqlens.device
    short = [number for number, length in enumerate(lengths) if length <= SHORT]
    if len(short) < MANY:
        return None
    lengths_S = torch.tensor(lengths, device=device)
    firsts_S = lengths_S.cumsum(0) - lengths_S
    chosen = torch.tensor(short, device=device)
    columns = torch.arange(max(lengths[number] for number in short), device=device)[None, :]
    real = columns < lengths_S[chosen, None]
    tokens = firsts_S[chosen, None] + torch.minimum(columns, lengths_S[chosen, None] - 1)
    return set(short), tokens, real


def per_sequence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, options: Options
) -> torch.Tensor:
    """One causal SDPA a sequence.

    Splitting and concatenating (not slicing) keeps the backward pass linear in the tokens: the gradient of a slice is
    a tensor as large as the batch, one a sequence.
    """
    lengths = segments.lengths
    batch = _short_batch(segments)
    short = batch[0] if batch else set()
    outputs = []
    for number, pieces in enumerate(zip(query.split(lengths), key.split(lengths), value.split(lengths))):
        if number not in short:
            q, k, v = (piece.transpose(0, 1).unsqueeze(0) for piece in pieces)  # [l, H, D] -> [1, H, l, D]
            outputs.append(_one_call(q, k, v, options).squeeze(0).transpose(0, 1))
    if batch is None:
        return torch.cat(outputs)
    _, tokens, real = batch
    q, k, v = (x[tokens].transpose(1, 2) for x in (query, key, value))  # [n, width, H, D] -> [n, H, width, D]
    out = _one_call(q, k, v, options).transpose(1, 2)
    # The long sequences' tokens come first, the short ones' after; the inverse of that order puts them back.
    is_long = torch.ones(query.shape[0], dtype=torch.bool, device=query.device)
    is_long[tokens.reshape(-1)] = False
    order = torch.cat([is_long.nonzero().reshape(-1), tokens[real]])
    return torch.cat([*outputs, out[real]])[torch.argsort(order)]
