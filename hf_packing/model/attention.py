"""`packed_varlen`: attention over packed sequences on any hardware, registered with Transformers on import.

    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="packed_varlen")

Two functions, as Transformers asks for: the mask function runs once a forward and never builds a dense mask for packed
batches; the attention function runs once a layer, finds the sequences, and hands them to the kernel that fits
(kernels.py). Batches that are not packed (generation with a cache, padded rows) get what `sdpa` gives.

Shape legend: B rows of L slots, T = B * L tokens, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from ..data.boundaries import starts_from_position_ids
from ..errors import PackingError
from .call import Options
from .graph_op import attend
from .kernels import varlen_attention
from .segments import PackedMask, Segments, explicit_segments, segments_from_positions
from .sequence_kernel import dense_attention


__all__ = ["NAME", "packed_varlen_attention", "packed_varlen_mask"]

NAME = "packed_varlen"


def packed_varlen_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> PackedMask | torch.Tensor | None:
    """The mask function of packed_varlen: O(T) where the batch can be packed, `sdpa`'s mask everywhere else.

    The model's own pattern is read off `mask_function`: where slot i may not look at slot i - 1, a segment starts (a
    sequence, or a chunk of chunked attention); `local_size` is the window. A pattern that lets a token look ahead, or
    a custom one, is not made of causal segments and goes to SDPA with a dense mask.
    """
    dense = partial(
        sdpa_mask,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        local_size=local_size,
        device=device,
        **kwargs,
    )
    bidirectional = "allow_is_bidirectional_skip" in kwargs
    cached = not isinstance(q_offset, int) or q_offset != 0 or q_length != kv_length or q_length == 1
    # Reading a mask would break a graph that is being compiled.
    padded = attention_mask is not None and (torch.compiler.is_compiling() or not bool(attention_mask.all()))
    if bidirectional or cached or padded:
        return dense()
    custom = bool(kwargs.get("use_vmap"))
    rows = torch.arange(batch_size, device=device)[:, None]
    slots = torch.arange(q_length, device=device)[None, :]
    starts = torch.zeros(batch_size, q_length, dtype=torch.bool, device=device)
    ahead = torch.zeros((), dtype=torch.bool, device=device)
    if not custom:
        head = torch.zeros((), dtype=torch.long, device=device)
        starts = starts | ~mask_function(rows, head, slots, (slots - 1).clamp_min(0))
        ahead = (starts.new_zeros(()) | mask_function(rows, head, slots[:, :-1], slots[:, 1:])).any()
    chunk = getattr(kwargs.get("config"), "attention_chunk_size", None)
    return PackedMask(
        starts,
        ahead,
        window=local_size,
        dense=dense,
        chunked=chunk is not None and local_size == chunk,
        custom=custom,
        maybe_ahead=bool(getattr(kwargs.get("config"), "use_bidirectional_attention", False)),
        exact_when_single=attention_mask is not None,
    )


def _packed_segments(
    shape: tuple[int, int], mask: PackedMask | torch.Tensor | None, arguments: dict[str, Any]
) -> Segments | None:
    """The segments a call attends in, or None where nothing says that the batch is packed."""
    explicit = explicit_segments(arguments, shape[0] * shape[1])
    if isinstance(mask, PackedMask):
        return mask.segments(explicit, arguments.get("position_ids"))
    if explicit is not None:
        return explicit
    return segments_from_positions(arguments.get("position_ids"), shape) if mask is None else None


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    for name in ("position_bias", "alibi", "head_mask", "block_table", "indices", "block_indices"):
        if arguments.get(name) is not None:
            raise PackingError(
                f"packed_varlen has no {name!r}, which this model's attention needs: load the model with "
                'attn_implementation="sdpa" or "eager".'
            )


def _with_mask(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    arguments: dict[str, Any],
) -> torch.Tensor:
    """What `sdpa` gives for a batch that is not packed, and the same with the soft caps and sinks that it refuses."""
    softcap, sinks = arguments.pop("softcap", None), arguments.pop("s_aux", None)
    if softcap is None and sinks is None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **arguments
        )
        return out
    length, keys = query.shape[2], key.shape[2]
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    if mask is None:
        allowed = torch.ones(length, keys, dtype=torch.bool, device=query.device)
        allowed = allowed.tril(keys - length) if causal else allowed
    else:
        allowed = mask if mask.dtype == torch.bool else mask == 0
    options = Options(scale=scaling, softcap=softcap, sinks=sinks, dropout=dropout)
    return dense_attention(query, key, value, allowed, options).transpose(1, 2).contiguous()


def packed_varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: PackedMask | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of packed_varlen.

    Args:
        query (`[B, H, L, D]`), key, value (`[B, K, L, D]`).
        attention_mask: what the mask function gave, or a dense mask.
        scaling (`float`, *optional*): factor of the scores, 1 / sqrt(D) by default.
        kwargs: cu_seq_lens_q / cu_seq_lens_k / max_length_q (explicit boundaries, which come first), position_ids,
            sliding_window, softcap, s_aux (attention sinks, `[H]`).

    Returns:
        `[B, L, H, D]` and None (there are no attention weights to return).

    Raises:
        PackingError: the call uses something that no kernel here has; never ignored.
    """
    _refuse_unknown(kwargs)
    arguments = (module, query, key, value, attention_mask, dropout, scaling, is_causal, kwargs)
    if not torch.compiler.is_compiling():
        return _attend(*arguments), None
    if isinstance(attention_mask, torch.Tensor) or key.shape[2] != query.shape[2]:
        return _with_mask(*arguments), None  # type: ignore[arg-type]
    if attention_mask is None or attention_mask.custom or attention_mask.maybe_ahead or dropout:
        return _attend_outside_graph(*arguments), None
    return _attend_in_graph(query, key, value, attention_mask, scaling, kwargs), None


def _attend_in_graph(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: PackedMask,
    scaling: float | None,
    arguments: dict[str, Any],
) -> torch.Tensor:
    """A compiled call: no value of a tensor is read, so the graph serves every batch."""
    offsets, longest = arguments.get("cu_seq_lens_q"), arguments.get("max_length_q")
    if mask.chunked:
        offsets = None  # the pattern's starts hold the sequences' and the chunks'
    if offsets is not None and isinstance(longest, int) and query.is_cuda:
        # GPU kernels take offsets as they are, and are operators themselves.
        return _packed(query, key, value, Segments(offsets, longest), mask.window, 0.0, scaling, arguments)
    starts = mask.starts
    positions = arguments.get("position_ids")
    if isinstance(positions, torch.Tensor) and positions.ndim == 2 and positions.shape[-1] == starts.shape[-1]:
        starts = starts | starts_from_position_ids(positions)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))  # [B, H, L, D] -> [T, H, D]
    out = attend(
        q,
        k,
        v,
        starts,
        offsets,
        longest if isinstance(longest, int) else None,
        scaling,
        mask.window,
        arguments.get("softcap"),
        arguments.get("s_aux"),
    )
    return out.unflatten(0, (query.shape[0], query.shape[2]))


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: PackedMask | torch.Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    arguments: dict[str, Any],
) -> torch.Tensor:
    rows, length = query.shape[0], query.shape[2]
    segments = None
    if key.shape[2] == length and length > 1:
        segments = _packed_segments((rows, length), attention_mask, arguments)
    promise = attention_mask if isinstance(attention_mask, PackedMask) else None
    window = promise.window if promise is not None else arguments.get("sliding_window")
    single = segments is None or segments.row_starts_only
    if promise is not None:
        windowed = window is not None and window < length and not promise.exact_when_single
        dense = not promise.is_segments or (single and not windowed)
    else:
        dense = isinstance(attention_mask, torch.Tensor) or single
    if segments is not None and not dense:
        return _packed(query, key, value, segments.on(query.device), window, dropout, scaling, arguments)
    mask = attention_mask.dense_mask if isinstance(attention_mask, PackedMask) else attention_mask
    if segments is not None and not single:
        mask = _intersected(mask, segments, rows, length)
    return _with_mask(module, query, key, value, mask, dropout, scaling, is_causal, arguments)


# For what the operator cannot do (dropout, patterns that need a dense mask): the call runs between two graphs.
_attend_outside_graph = torch.compiler.disable(_attend)


def _packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    window: int | None,
    dropout: float,
    scaling: float | None,
    arguments: dict[str, Any],
) -> torch.Tensor:
    """`[B, H, L, D]` -> `[B, L, H, D]` by a varlen kernel over the flattened tokens."""
    options = Options(
        scale=scaling, window=window, softcap=arguments.get("softcap"), sinks=arguments.get("s_aux"), dropout=dropout
    )
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))  # [B, H, L, D] -> [T, H, D]
    return varlen_attention(q, k, v, segments, options).unflatten(0, (query.shape[0], query.shape[2]))


def _intersected(mask: torch.Tensor | None, segments: Segments, rows: int, length: int) -> torch.Tensor:
    """A dense mask with the segments cut out of it, for patterns that no varlen kernel has."""
    index = segments.index.reshape(rows, 1, length)
    same = (index.transpose(1, 2) == index).unsqueeze(1)
    if mask is None:
        return same & torch.ones(length, length, dtype=torch.bool, device=index.device).tril()
    if mask.dtype == torch.bool:
        return mask & same
    return mask.masked_fill(~same, torch.finfo(mask.dtype).min)


AttentionInterface.register(NAME, packed_varlen_attention)
AttentionMaskInterface.register(NAME, packed_varlen_mask)
