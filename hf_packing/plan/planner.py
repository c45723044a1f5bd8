"""plan_packs: lengths and a policy in, a PackPlan out."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrangement import Arrangement, arrange_table, shuffle_packs
from .bounds import BoundCertificate, simple_bound
from .histogram import pack_quickly
from .ledger import TokenLedger
from .lengths import IntArray, check_lengths, group_by_size, histogram, occupied_slots
from .optimal import AUTO_STEPS, OPTIMAL_STEPS, pack_tightly
from .pieces import CountTargets, Pieces, cut_overflow, drop_without_targets, whole_sequences
from .plan import PackPlan
from .policy import Strategy, parse_overflow, parse_strategy
from .sequential import cut_anywhere, next_fit, wrapped_bound
from .settings import PlanSettings
from .stream import BUFFER_SIZE, SAMPLE, StreamPacker, better_method


__all__ = ["plan_packs"]


def plan_packs(
    lengths: ArrayLike,
    max_length: int,
    *,
    strategy: str = "bfd",
    overflow: str = "error",
    max_sequences: int | None = None,
    multiple_of: int = 1,
    seed: int | None = None,
    count_targets: CountTargets | None = None,
) -> PackPlan:
    """Plans which sequences share a pack; no token is read, only lengths.

    The same arguments give the same plan on every rank and machine: counts bound the searches, never the clock.

    Args:
        lengths (`[N]`, whole numbers ≥ 0): tokens of each sequence; 10⁷ take less than a second.
        max_length (`int`): slots of a pack.
        strategy (`str` or [`Strategy`], *optional*, defaults to `"bfd"`): how sequences are placed.
        overflow (`str` or [`Overflow`], *optional*, defaults to `"error"`): what happens to longer sequences;
            `wrapped` cuts by design and ignores it.
        max_sequences (`int`, *optional*): most sequences in a pack.
        multiple_of (`int`, *optional*, defaults to `1`): every sequence occupies a multiple of this many slots
            (context parallelism needs 2·cp); the filler counts as padding. It must divide `max_length`.
        seed (`int`, *optional*): shuffles which sequence of equal slots goes where, and the order of the packs; with
            `sequential`, `stream` and `wrapped` the order of the packs alone. The number of packs does not change.
        count_targets (callable, *optional*): (sequence_ids, starts, lengths), int64 `[M]` each, to the targets of each
            piece after cutting. Pieces without one are dropped and counted.

    Returns:
        [`PackPlan`]

    Raises:
        PackingError: for lengths that are no whole numbers ≥ 0, settings out of range, or a sequence above
            `max_length` under `overflow="error"`.

    Example:

        >>> plan = plan_packs([8, 2, 7, 3], max_length=10)
        >>> [ids.tolist() for ids, starts, lengths in plan]
        [[2, 3], [0, 1]]
        >>> plan.fill, plan.lower_bound, plan.gap
        (1.0, 2, 0)
    """
    settings = PlanSettings(
        max_length=max_length,
        strategy=parse_strategy(strategy),
        overflow=parse_overflow(overflow),
        max_sequences=max_sequences,
        multiple_of=multiple_of,
        seed=seed,
    )
    given = check_lengths(lengths)
    rng = None if settings.seed is None else np.random.default_rng(settings.seed)
    if settings.strategy is Strategy.WRAPPED:
        pieces, arrangement = cut_anywhere(whole_sequences(given), settings, count_targets)
        proof = wrapped_bound(pieces, settings)
    else:
        cut = cut_overflow(given, settings.max_length, settings.overflow)
        pieces = drop_without_targets(cut, count_targets)
        arrangement, proof = _place(pieces, settings, rng)
    if rng is not None:
        arrangement = shuffle_packs(arrangement, rng)
    packed_lengths = arrangement.slots if settings.multiple_of == 1 else None  # else the filler is in the slots
    if packed_lengths is None:
        packed_lengths = pieces.lengths[arrangement.pieces].astype(np.int64, copy=False)
    return PackPlan(
        max_length=settings.max_length,
        sequence_ids=pieces.id_of(arrangement.pieces),
        starts=pieces.start_of(arrangement.pieces),
        lengths=packed_lengths,
        pack_offsets=arrangement.offsets,
        ledger=_balance(pieces, arrangement, settings),
        certificate=proof,
        multiple_of=settings.multiple_of,
        max_sequences=settings.max_sequences,
        strategy=str(settings.strategy),
        overflow=str(settings.overflow),
    )


def _place(
    pieces: Pieces, settings: PlanSettings, rng: np.random.Generator | None
) -> tuple[Arrangement, BoundCertificate]:
    """Packs the pieces that fit, and gives each above the capacity a pack of its own."""
    slots = occupied_slots(pieces.lengths, settings.multiple_of)
    if pieces.oversize is None:
        inside, alone, fitting = None, np.zeros(0, np.int64), slots
    else:
        inside, alone = np.flatnonzero(~pieces.oversize), np.flatnonzero(pieces.oversize)
        fitting = slots[inside]
    if settings.strategy is Strategy.SEQUENTIAL:
        arrangement = next_fit(slots, settings.max_length, settings.max_sequences)
        proof = simple_bound(histogram(fitting), settings.max_length, settings.max_sequences)
    elif settings.strategy is Strategy.STREAM:
        arrangement = _stream(slots, pieces.oversize, settings)
        proof = simple_bound(histogram(fitting), settings.max_length, settings.max_sequences)
    else:
        arrangement, proof = _by_histogram(fitting, settings, rng)
        if inside is not None:
            arrangement = arrangement.among(inside, alone)
    return arrangement, replace(proof, own_packs=alone.size)


def _by_histogram(
    slots: IntArray, settings: PlanSettings, rng: np.random.Generator | None
) -> tuple[Arrangement, BoundCertificate]:
    """The strategies that look at nothing but how often each number of slots occurs."""
    counted, order = group_by_size(slots)
    if rng is not None:
        for group in np.split(order, np.cumsum(counted.counts)[:-1]):
            rng.shuffle(group)
    if settings.strategy is Strategy.BFD:
        proof = simple_bound(counted, settings.max_length, settings.max_sequences)
        table = pack_quickly(counted, settings.max_length, settings.max_sequences, proof.bound)
    else:
        steps = AUTO_STEPS if settings.strategy is Strategy.AUTO else OPTIMAL_STEPS
        table, proof = pack_tightly(counted, settings.max_length, settings.max_sequences, steps)
    return arrange_table(table, counted, order), proof


def _stream(slots: IntArray, oversize: NDArray[np.bool_] | None, settings: PlanSettings) -> Arrangement:
    """What a [`StreamPacker`] makes of these pieces; one above the capacity leaves at once, alone."""
    capacity = settings.max_length // settings.multiple_of
    sizes = (slots // settings.multiple_of).tolist()
    sample = [size for size in sizes[:SAMPLE] if size <= capacity]
    method = better_method(sample, capacity, BUFFER_SIZE, settings.max_sequences)
    packer = StreamPacker(capacity, buffer_size=BUFFER_SIZE, method=method, max_sequences=settings.max_sequences)
    packs: list[list[int]] = []
    for piece, size in enumerate(sizes):
        packs += [[piece]] if size > capacity else packer.push(piece, size)
    packs += packer.flush()
    offsets = np.zeros(len(packs) + 1, dtype=np.int64)
    np.cumsum([len(pack) for pack in packs], out=offsets[1:])
    return Arrangement(np.fromiter(chain.from_iterable(packs), dtype=np.int64, count=len(sizes)), offsets)


def _balance(pieces: Pieces, arrangement: Arrangement, settings: PlanSettings) -> TokenLedger:
    packed = int(pieces.lengths.sum(dtype=np.int64))
    slots = (arrangement.offsets.size - 1) * settings.max_length
    if pieces.oversize is not None:
        over = occupied_slots(pieces.lengths[pieces.oversize], settings.multiple_of)
        slots += int(over.sum(dtype=np.int64)) - over.size * settings.max_length
    return TokenLedger(
        sequences_in=pieces.sequences_in,
        sequences_packed=pieces.sequences_in - pieces.sequences_dropped - pieces.sequences_empty,
        sequences_truncated=pieces.sequences_truncated,
        sequences_split=pieces.sequences_split,
        sequences_dropped=pieces.sequences_dropped,
        sequences_empty=pieces.sequences_empty,
        tokens_in=pieces.tokens_in,
        tokens_packed=packed,
        tokens_truncated=pieces.tokens_truncated,
        tokens_dropped=pieces.tokens_dropped,
        tokens_padding=slots - packed,
        slots=slots,
    )
