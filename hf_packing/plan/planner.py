"""plan_packs: lengths and a policy in, a PackPlan out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from ..errors import PackingError
from .arrangement import Arrangement, arrange_table, shuffle_packs
from .bounds import BoundCertificate, simple_bound
from .histogram import best_fit_decreasing
from .ledger import TokenLedger
from .lengths import IntArray, check_lengths, histogram
from .pieces import CountTargets, Pieces, cut_overflow, drop_without_targets
from .plan import PackPlan
from .policy import Strategy, parse_overflow, parse_strategy


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
        lengths (`[N]`, whole numbers ≥ 0): tokens of each sequence; 10⁷ take about a second.
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
    placing, policy = parse_strategy(strategy), parse_overflow(overflow)
    _check_settings(max_length, max_sequences, multiple_of, seed)
    given = check_lengths(lengths)
    rng = None if seed is None else np.random.default_rng(seed)
    pieces = drop_without_targets(cut_overflow(given, max_length, policy), count_targets)
    arrangement, proof = _place(pieces, max_length, placing, max_sequences, multiple_of, rng)
    if rng is not None:
        arrangement = shuffle_packs(arrangement, rng)
    packed_lengths = pieces.lengths[arrangement.pieces].astype(np.int64, copy=False)
    return PackPlan(
        max_length=max_length,
        sequence_ids=pieces.id_of(arrangement.pieces),
        starts=pieces.start_of(arrangement.pieces),
        lengths=packed_lengths,
        pack_offsets=arrangement.offsets,
        ledger=_balance(pieces, arrangement, max_length, multiple_of),
        certificate=proof,
        multiple_of=multiple_of,
        max_sequences=max_sequences,
        strategy=str(placing),
        overflow=str(policy),
    )


def _check_settings(max_length: int, max_sequences: int | None, multiple_of: int, seed: int | None) -> None:
    for name, value in (("max_length", max_length), ("max_sequences", max_sequences), ("multiple_of", multiple_of)):
        if value is None and name == "max_sequences":
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise PackingError(f"{name}={value!r}; it is a whole number of at least 1.")
    if max_length % multiple_of:
        fits = max_length // multiple_of * multiple_of or multiple_of
        raise PackingError(
            f"multiple_of={multiple_of} does not divide max_length={max_length}, so full packs could not be aligned; "
            f"use max_length={fits} or {fits + multiple_of}."
        )
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
        raise PackingError(f"seed={seed!r}; it is a whole number of at least 0, or None.")


def _occupied(lengths: IntArray, multiple_of: int) -> IntArray:
    """Slots a piece occupies: 5 tokens in multiples of 4 occupy 8."""
    return lengths if multiple_of == 1 else -(-lengths // multiple_of) * multiple_of


def _place(
    pieces: Pieces,
    max_length: int,
    strategy: Strategy,
    max_sequences: int | None,
    multiple_of: int,
    rng: np.random.Generator | None,
) -> tuple[Arrangement, BoundCertificate]:
    """Arranges the pieces that fit, then those above the capacity, each alone."""
    if pieces.oversize is None:
        fitting, alone = pieces.lengths, None
    else:
        inside, alone = np.flatnonzero(~pieces.oversize), np.flatnonzero(pieces.oversize)
        fitting = pieces.lengths[inside]
    slots = _occupied(fitting, multiple_of)
    counted = histogram(slots)
    proof = simple_bound(counted, max_length, max_sequences, own_packs=0 if alone is None else alone.size)
    table = best_fit_decreasing(counted, max_length, max_sequences)
    arrangement = arrange_table(table, counted, slots, rng)
    if alone is not None:
        arrangement = replace(arrangement, pieces=inside[arrangement.pieces]).followed_by_singles(alone)
    return arrangement, proof


def _balance(pieces: Pieces, arrangement: Arrangement, max_length: int, multiple_of: int) -> TokenLedger:
    packed = int(pieces.lengths.sum(dtype=np.int64))
    slots = (arrangement.offsets.size - 1) * max_length
    if pieces.oversize is not None:
        over = _occupied(pieces.lengths[pieces.oversize].astype(np.int64), multiple_of)
        slots += int(over.sum()) - over.size * max_length
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
