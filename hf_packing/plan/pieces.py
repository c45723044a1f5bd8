"""From sequences to the pieces that are packed: what the overflow policy cuts, drops or sets apart.

Shape legend: N sequences, M pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import PackingError
from .lengths import IntArray
from .policy import Overflow


__all__ = ["CountTargets", "Pieces", "cut_overflow", "drop_without_targets", "targets_mask", "whole_sequences"]

CountTargets = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], ArrayLike]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """M pieces in the order of their sequences, and the account of what became of the N sequences."""

    lengths: IntArray
    """`[M]`: tokens of each piece, at least 1."""
    ids: IntArray | None
    """`[M]`: the sequence each piece belongs to; None: piece i is sequence i."""
    starts: IntArray | None
    """`[M]`: its first token within the sequence; None: all 0."""
    oversize: NDArray[np.bool_] | None = None
    """`[M]`: pieces above the capacity, each for a pack of its own; None: there are none."""
    sequences_in: int
    sequences_empty: int = 0
    sequences_truncated: int = 0
    sequences_split: int = 0
    sequences_dropped: int = 0
    tokens_in: int
    tokens_truncated: int = 0
    tokens_dropped: int = 0

    def id_of(self, pieces: IntArray) -> NDArray[np.int64]:
        """The sequences of the pieces with these numbers."""
        return pieces.astype(np.int64, copy=False) if self.ids is None else self.ids[pieces].astype(np.int64)

    def start_of(self, pieces: IntArray) -> NDArray[np.int64]:
        """The first tokens of the pieces with these numbers."""
        # Untouched zeros cost no memory.
        return np.zeros(pieces.size, np.int64) if self.starts is None else self.starts[pieces].astype(np.int64)

    def select(self, keep: NDArray[np.bool_]) -> Pieces:
        """The pieces marked, the account unchanged."""
        kept = np.flatnonzero(keep)
        return replace(
            self,
            lengths=self.lengths[kept],
            ids=kept if self.ids is None else self.ids[kept],
            starts=None if self.starts is None else self.starts[kept],
            oversize=None if self.oversize is None else self.oversize[kept],
        )


def whole_sequences(lengths: IntArray) -> Pieces:
    """`[N]` lengths as one piece each, empty sequences left out."""
    tokens_in = int(lengths.sum(dtype=np.int64))
    pieces = Pieces(lengths=lengths, ids=None, starts=None, sequences_in=lengths.size, tokens_in=tokens_in)
    if not lengths.size or lengths.min() > 0:
        return pieces
    pieces = pieces.select(lengths > 0)
    return replace(pieces, sequences_empty=lengths.size - pieces.lengths.size)


def cut_overflow(lengths: IntArray, max_length: int, overflow: Overflow) -> Pieces:
    """Applies the overflow policy to `[N]` lengths and leaves empty sequences out.

    Raises:
        PackingError: under `error`, for the first sequence above `max_length`.

    Example: 21 tokens in packs of 8, and an empty sequence.

        >>> pieces = cut_overflow(np.array([21, 0]), 8, Overflow.SPLIT)
        >>> pieces.lengths.tolist(), pieces.starts.tolist(), pieces.ids.tolist()
        ([8, 8, 5], [0, 8, 16], [0, 0, 0])
    """
    pieces = whole_sequences(lengths)
    if not pieces.lengths.size or pieces.lengths.max() <= max_length:
        return pieces
    if overflow is Overflow.ERROR:
        raise _too_long(lengths, max_length)
    return _CUTS[overflow](pieces, max_length)


def _too_long(lengths: IntArray, max_length: int) -> PackingError:
    over = lengths > max_length
    at, number = int(np.argmax(over)), int(np.count_nonzero(over))
    policies = ", ".join(policy for policy in Overflow if policy is not Overflow.ERROR)
    return PackingError(
        f"lengths[{at}] is {int(lengths[at])}, above max_length={max_length} ({number} such sequence(s), the longest "
        f"of {int(lengths.max())}). Choose overflow= one of {policies}, or raise max_length."
    )


def _truncate(pieces: Pieces, max_length: int) -> Pieces:
    kept = np.minimum(pieces.lengths, max_length)
    return replace(
        pieces,
        lengths=kept,
        sequences_truncated=int(np.count_nonzero(pieces.lengths > max_length)),
        tokens_truncated=int(pieces.lengths.sum(dtype=np.int64)) - int(kept.sum(dtype=np.int64)),
    )


def _truncate_left(pieces: Pieces, max_length: int) -> Pieces:
    cut = _truncate(pieces, max_length)
    return replace(cut, starts=pieces.lengths - cut.lengths)


def _split(pieces: Pieces, max_length: int) -> Pieces:
    # For 21 tokens in pieces of 8: -(-21 // 8) = 3 pieces, numbered 0, 1, 2, that start at 0, 8, 16; the last one
    # holds the min(8, 21 - 16) = 5 that are left. 16 tokens give two pieces and no empty third.
    lengths = pieces.lengths.astype(np.int64)
    number = -(-lengths // max_length)
    owner = np.repeat(np.arange(lengths.size), number)
    starts = (np.arange(owner.size) - np.repeat(np.cumsum(number) - number, number)) * max_length
    return replace(
        pieces,
        lengths=np.minimum(lengths[owner] - starts, max_length),
        ids=pieces.id_of(owner),
        starts=starts,
        sequences_split=int(np.count_nonzero(number > 1)),
    )


def _drop(pieces: Pieces, max_length: int) -> Pieces:
    over = pieces.lengths > max_length
    return replace(
        pieces.select(~over),
        sequences_dropped=int(np.count_nonzero(over)),
        tokens_dropped=int(pieces.lengths[over].sum(dtype=np.int64)),
    )


def _own_pack(pieces: Pieces, max_length: int) -> Pieces:
    return replace(pieces, oversize=pieces.lengths > max_length)


_CUTS: dict[Overflow, Callable[[Pieces, int], Pieces]] = {
    Overflow.TRUNCATE: _truncate,
    Overflow.TRUNCATE_LEFT: _truncate_left,
    Overflow.SPLIT: _split,
    Overflow.DROP: _drop,
    Overflow.OWN_PACK: _own_pack,
}


def drop_without_targets(pieces: Pieces, count_targets: CountTargets | None) -> Pieces:
    """Leaves out the pieces that train nothing, at their real length; a sequence is dropped when all its pieces are.

    Args:
        pieces: after cutting.
        count_targets: (sequence_ids, starts, lengths), int64 `[M]` each, to the targets of each piece, `[M]`.

    Raises:
        PackingError: if `count_targets` returns another shape than `[M]`.

    Example:

        >>> pieces = cut_overflow(np.array([8, 3]), 4, Overflow.SPLIT)
        >>> kept = drop_without_targets(pieces, lambda ids, starts, lengths: (ids == 0) & (starts == 4))
        >>> kept.ids.tolist(), kept.starts.tolist(), kept.tokens_dropped, kept.sequences_dropped
        ([0], [4], 7, 1)
    """
    keep = targets_mask(pieces, count_targets)
    if keep is None:
        return pieces
    ids = pieces.id_of(np.arange(keep.size))
    # Pieces of a sequence are neighbours, so the number of sequences is the number of changes of the id.
    return replace(
        pieces.select(keep),
        sequences_dropped=pieces.sequences_dropped + _distinct(ids) - _distinct(ids[keep]),
        tokens_dropped=pieces.tokens_dropped + int(pieces.lengths[~keep].sum(dtype=np.int64)),
    )


def targets_mask(pieces: Pieces, count_targets: CountTargets | None) -> NDArray[np.bool_] | None:
    """`[M]`: which pieces have a target; None when all have, or when nobody counts."""
    if count_targets is None or not pieces.lengths.size:
        return None
    numbers = np.arange(pieces.lengths.size)
    lengths = pieces.lengths.astype(np.int64)
    targets = np.asarray(count_targets(pieces.id_of(numbers), pieces.start_of(numbers), lengths))
    if targets.shape != lengths.shape:
        raise PackingError(
            f"count_targets returned shape {targets.shape} for {lengths.size} pieces; return one count a piece, "
            f"shape ({lengths.size},)."
        )
    keep = targets > 0
    return None if keep.all() else keep


def _distinct(sorted_ids: NDArray[np.int64]) -> int:
    return int(np.count_nonzero(np.diff(sorted_ids))) + (sorted_ids.size > 0)
