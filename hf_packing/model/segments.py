"""Where the sequences of a batch lie, found once a forward and shared by every layer.

Shape legend: B rows of L slots, T = B * L tokens, S segments.

The mask function of an attention implementation runs once a forward, the attention function once a layer. So the mask
function returns a `PackedMask`: a promise in O(T) memory that the first layer resolves into `Segments` and the other
layers find resolved. Explicit boundaries in the batch beat what positions say, because they cost no device sync.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from ..data.boundaries import cu_seqlens_from_position_ids, starts_from_position_ids
from ..errors import PackingError


__all__ = ["PackedMask", "Segments", "explicit_segments", "segments_from_starts"]


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments over the flattened `[T]` tokens of a batch; they tile it.

    Args:
        cu_seqlens (int32 `[S + 1]`): offsets; repeated offsets at the end (fixed-shape padding) are empty segments.
        longest (`int`): at least the longest segment.
        row_starts_only (`bool`): no row holds more than one segment.
    """

    cu_seqlens: torch.Tensor
    longest: int
    row_starts_only: bool = False

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each non-empty segment, on the host (one device sync, then kept)."""
        offsets = self.cu_seqlens.tolist()
        return tuple(stop - start for start, stop in pairwise(offsets) if stop > start)

    @cached_property
    def _copies(self) -> dict[torch.device, Segments]:
        return {self.cu_seqlens.device: self}

    def on(self, device: torch.device) -> Segments:
        """The same segments with offsets on another device (layers spread over several); each copy is made once."""
        if device not in self._copies:
            moved = Segments(self.cu_seqlens.to(device), self.longest, self.row_starts_only)
            self._copies[device] = moved
        return self._copies[device]

    @cached_property
    def strict_offsets(self) -> torch.Tensor:
        """The offsets without empty segments, int64: for kernels that read an empty one as an error."""
        offsets = self.cu_seqlens.long()
        return torch.cat([offsets[:1], offsets[1:][offsets.diff() > 0]])

    @cached_property
    def index(self) -> torch.Tensor:
        """Number of the segment each token lies in, int64 `[T]`."""
        counts = self.cu_seqlens.diff().long()
        return torch.repeat_interleave(torch.arange(counts.numel(), device=counts.device), counts)


def segments_from_starts(starts: torch.Tensor) -> Segments:
    """Segments from a bool `[B, L]` of first tokens (the first slot of every row always is one).

    Example:

        >>> segments_from_starts(torch.tensor([[True, False, True, False]])).cu_seqlens
        tensor([0, 2, 4], dtype=torch.int32)
    """
    firsts = starts.clone()
    firsts[:, 0] = True
    # A running count that restarts at every first token is a batch of position_ids: for firsts [1, 0, 1, 0] the slots
    # [0, 1, 2, 3] minus the last first slot [0, 0, 2, 2] are [0, 1, 0, 1].
    slots = torch.arange(firsts.numel(), device=firsts.device)
    last_first = torch.where(firsts.reshape(-1), slots, 0).cummax(0).values
    offsets, longest = cu_seqlens_from_position_ids((slots - last_first).reshape(1, -1))
    return Segments(offsets, longest, row_starts_only=offsets.numel() - 1 == firsts.shape[0])


class _Memo:
    """The last few values computed from a tensor, forgotten when the tensor dies or is written to."""

    def __init__(self, slots: int = 4) -> None:
        self._slots = slots
        self._entries: list[tuple[weakref.ref[torch.Tensor], int, Any, Any]] = []

    def get(self, tensor: torch.Tensor, extra: Any, compute: Callable[[], Any]) -> Any:
        version = 0 if tensor.is_inference() else tensor._version
        self._entries = [entry for entry in self._entries if entry[0]() is not None]
        for reference, known_version, known_extra, value in self._entries:
            if reference() is tensor and known_version == version and known_extra == extra:
                return value
        value = compute()
        self._entries = [*self._entries[-self._slots + 1 :], (weakref.ref(tensor), version, extra, value)]
        return value


_explicit_memo = _Memo()
_position_memo = _Memo()


def explicit_segments(arguments: dict[str, Any], total: int) -> Segments | None:
    """Segments from the explicit boundaries of a batch, or None where it has none.

    Raises:
        PackingError: offsets of queries and keys differ, or do not end at the number of tokens.
    """
    offsets = arguments.get("cu_seq_lens_q")
    if offsets is None:
        return None
    key_offsets = arguments.get("cu_seq_lens_k")
    longest = arguments.get("max_length_q")

    def compute() -> Segments:
        if key_offsets is not None and key_offsets is not offsets and not torch.equal(key_offsets, offsets):
            raise PackingError(
                "packed_varlen is self-attention over packed sequences: cu_seq_lens_q and cu_seq_lens_k must be "
                "equal, but they differ. Cross-attention needs another attn_implementation."
            )
        offsets_32 = offsets.reshape(-1).to(torch.int32)
        if offsets.device.type == "cpu" and (int(offsets_32[0]) != 0 or int(offsets_32[-1]) != total):
            raise PackingError(
                f"cu_seq_lens_q runs from {int(offsets_32[0])} to {int(offsets_32[-1])}, but the batch has {total} "
                "tokens: the offsets must start at 0 and end at the number of tokens."
            )
        bound = int(longest) if longest is not None else int(offsets_32.diff().max())
        return Segments(offsets_32, bound)

    return _explicit_memo.get(offsets, (total, None if longest is None else int(longest)), compute)


def _starts_from_positions(position_ids: Any, shape: tuple[int, int]) -> torch.Tensor | None:
    # Only [B, L] (or [1, L] for all rows) says where text restarts: multimodal axes jump inside a sequence.
    if not isinstance(position_ids, torch.Tensor) or position_ids.ndim != 2 or position_ids.shape[-1] != shape[1]:
        return None
    return starts_from_position_ids(position_ids).expand(shape)


def segments_from_positions(position_ids: Any, shape: tuple[int, int]) -> Segments | None:
    """Segments from the position_ids a layer was given, or None where they do not say; computed once a forward."""
    starts = _starts_from_positions(position_ids, shape)
    if starts is None:
        return None
    return _position_memo.get(position_ids, shape, lambda: segments_from_starts(starts))


@dataclass(eq=False)
class PackedMask:
    """What the mask function of `packed_varlen` hands to every layer instead of a `[B, 1, L, L]` tensor.

    Args:
        starts (bool `[B, L]`): slots that the model's mask pattern cuts off from the slot before them.
        ahead (bool, scalar): the pattern lets some token see the next one, so it is not made of causal segments.
        window (`int`, *optional*): a token sees itself and the window - 1 tokens before it.
        dense (callable): builds what `sdpa` would get.
        chunked (`bool`): the starts include attention chunks, which explicit boundaries do not know of.
        custom (`bool`): the model combines masks of its own; only the dense mask is right.
        maybe_ahead (`bool`): the config lets some tokens look ahead (images); known without reading `ahead`.
        exact_when_single (`bool`): a batch that is not packed gets the sdpa mask itself, not the windowed kernel.
    """

    starts: torch.Tensor
    ahead: torch.Tensor
    window: int | None
    dense: Callable[[], torch.Tensor | None]
    chunked: bool = False
    custom: bool = False
    maybe_ahead: bool = False
    exact_when_single: bool = False
    _segments: dict[int | None, Segments] = field(default_factory=dict, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(B, L)."""
        return self.starts.shape[0], self.starts.shape[1]

    @cached_property
    def _facts(self) -> tuple[bool, bool]:
        """(some row is cut inside, some token sees the next one): one device sync for both."""
        inside, ahead = torch.stack([self.starts[:, 1:].any(), self.ahead]).tolist()
        return bool(inside), bool(ahead)

    @property
    def is_segments(self) -> bool:
        """Causal segments with a window say everything about this pattern."""
        return not self.custom and not self._facts[1]

    @cached_property
    def dense_mask(self) -> torch.Tensor | None:
        """What `sdpa` would get."""
        return self.dense()

    def segments(self, explicit: Segments | None, position_ids: Any) -> Segments:
        """Explicit boundaries; else what the pattern knows; else what the layer's positions know. Found once."""
        if explicit is not None and not self.chunked:
            return explicit
        key = id(explicit) if explicit is not None else None
        if key not in self._segments:
            self._segments[key] = segments_from_starts(self._all_starts(explicit, position_ids))
        return self._segments[key]

    def _all_starts(self, explicit: Segments | None, position_ids: Any) -> torch.Tensor:
        if explicit is not None:
            index = explicit.index.to(self.starts.device)
            return self.starts | (index != index.roll(1)).reshape(self.shape)
        # A pattern that was told the positions has them in its starts; reading them again would cost a sync.
        if self._facts[0] and not self.chunked:
            return self.starts
        from_positions = _starts_from_positions(position_ids, self.shape)
        return self.starts if from_positions is None else self.starts | from_positions.to(self.starts.device)

    def to(self, *args: Any, **kwargs: Any) -> PackedMask:
        """Layers on other devices take the mask as it is: offsets are moved where they are used."""
        return self
