"""Packers that keep the order of the sequences: next fit, and cutting anywhere.

Shape legend: N sequences, M pieces, P packs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .arrangement import Arrangement
from .bounds import BoundCertificate
from .lengths import IntArray, occupied_slots
from .pieces import CountTargets, Pieces, drop_without_targets, targets_mask
from .settings import PlanSettings


__all__ = ["cut_anywhere", "next_fit", "wrapped_bound"]


def next_fit(slots: IntArray, capacity: int, max_sequences: int | None = None) -> Arrangement:
    """In order; a pack ends where the next sequence does not fit. One above the capacity has a pack of its own.

    Args:
        slots (`[N]`): slots of each sequence, at least 1.
        capacity: slots of a pack.
        max_sequences: most sequences in a pack.

    Example:

        >>> next_fit(np.array([3, 4, 2, 9, 1]), 7).offsets.tolist()
        [0, 2, 3, 4, 5]
    """
    offsets = [0]
    if slots.size:
        most = max(1, min(slots.size, capacity // int(slots.min()), max_sequences or slots.size))
        ends = np.cumsum(slots, dtype=np.int64).data  # of a memoryview, single entries are read five times as fast
        first, before = 0, 0
        while first < slots.size:
            first = max(first + 1, bisect_right(ends, before + capacity, first, min(first + most, slots.size)))
            before = ends[first - 1]
            offsets.append(first)
    return Arrangement(np.arange(slots.size), np.array(offsets, dtype=np.int64))


def cut_anywhere(
    sequences: Pieces, settings: PlanSettings, count_targets: CountTargets | None = None
) -> tuple[Pieces, Arrangement]:
    """Lays sequences end to end and cuts at the end of every pack; a cut sequence goes on in the next pack.

    With `multiple_of`, the last piece of a sequence is filled up. The slots of pieces without targets stay empty.

    Args:
        sequences: whole sequences.
        settings: capacity, `multiple_of` and `max_sequences`, after which a pack ends as well.
        count_targets: see [`drop_without_targets`].

    Example: 5 + 4 tokens in packs of 6.

        >>> from hf_packing.plan.pieces import whole_sequences
        >>> settings = PlanSettings(max_length=6, strategy="wrapped", overflow="error")
        >>> pieces, packs = cut_anywhere(whole_sequences(np.array([5, 4])), settings)
        >>> pieces.ids.tolist(), pieces.starts.tolist(), pieces.lengths.tolist(), packs.offsets.tolist()
        ([0, 1, 1], [0, 0, 1], [5, 1, 3], [0, 2, 3])
    """
    sequences = drop_without_targets(sequences, count_targets)
    if not sequences.lengths.size:
        return sequences, Arrangement(np.zeros(0, np.int64), np.zeros(1, np.int64))
    lengths = sequences.lengths.astype(np.int64)
    slots = occupied_slots(lengths, settings.multiple_of)
    ends = np.cumsum(slots, dtype=np.int64)
    pack_ends = _pack_ends(ends, settings.max_length, settings.max_sequences)
    # Sequences end at 5 and 9, packs at 6 and 9: the cuts 5, 6, 9 make the pieces 0-5, 5-6, 6-9.
    cuts = np.union1d(ends, pack_ends)
    froms = np.concatenate([[0], cuts[:-1]])
    owner = ends.searchsorted(froms, side="right")
    starts = froms - (ends - slots)[owner]
    pieces = replace(
        sequences,
        lengths=np.minimum(cuts - froms, lengths[owner] - starts),
        ids=sequences.id_of(owner),
        starts=starts,
        sequences_split=int(np.count_nonzero(np.bincount(owner) > 1)),
    )
    pack_of_piece = pack_ends.searchsorted(froms, side="right")
    kept = targets_mask(pieces, count_targets)
    if kept is not None:
        pieces, pack_of_piece = drop_without_targets(pieces, lambda *_: kept), pack_of_piece[kept]
    firsts = np.flatnonzero(np.diff(pack_of_piece, prepend=-1))
    return pieces, Arrangement(np.arange(pieces.lengths.size), np.append(firsts, pieces.lengths.size))


def _pack_ends(ends: NDArray[np.int64], capacity: int, max_sequences: int | None) -> NDArray[np.int64]:
    """Where each pack ends in the slots laid end to end."""
    total = int(ends[-1])
    if max_sequences is None:
        return np.append(np.arange(capacity, total, capacity), total)
    view = ends.data
    pack_ends, position, first = [], 0, 0
    while position < total:
        last = min(first + max_sequences, ends.size) - 1
        position = min(position + capacity, view[last])
        first = bisect_right(view, position, first, last + 1)
        pack_ends.append(position)
    return np.array(pack_ends, dtype=np.int64)


def wrapped_bound(pieces: Pieces, settings: PlanSettings) -> BoundCertificate:
    """The bound where sequences may be cut: every `multiple_of` slots are a sequence of their own.

    Example:

        >>> from hf_packing.plan.pieces import whole_sequences
        >>> settings = PlanSettings(max_length=6, strategy="wrapped", overflow="error")
        >>> wrapped_bound(whole_sequences(np.array([5, 4])), settings).bound
        2
    """
    step = settings.multiple_of
    units = int(occupied_slots(pieces.lengths, step).sum(dtype=np.int64)) // step
    sequences = pieces.sequences_in - pieces.sequences_dropped - pieces.sequences_empty
    candidates = [("size", units, step, settings.max_length)]
    if settings.max_sequences is not None:
        candidates.append(("number", sequences, 1, settings.max_sequences))  # the first slots of each sequence
    proofs = [
        BoundCertificate(
            kind=kind,
            capacity=settings.max_length,
            max_sequences=settings.max_sequences if kind == "number" else None,
            sizes=np.array([step]),
            counts=np.array([count]),
            weights=np.array([weight]),
            pack_weight=pack_weight,
        )
        for kind, count, weight, pack_weight in candidates
    ]
    return max(proofs, key=lambda proof: proof.bound)
