"""What each max_length would cut and cost: a table to choose it by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plan import plan_packs


__all__ = ["KEEP", "MAX_LENGTHS", "Horizon", "horizons", "smallest_sufficient"]

MAX_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
KEEP = 0.999  # share of the tokens that a sufficient max_length leaves whole


@dataclass(frozen=True, kw_only=True, slots=True)
class Horizon:
    """The same sequences at one max_length."""

    max_length: int
    """Capacity of a pack, in tokens."""
    sequences_longer: int
    """Sequences that do not fit."""
    tokens_beyond: int
    """Tokens past `max_length`: what truncation would lose."""
    kept: float
    """Share of all tokens that lies within `max_length`."""
    packs: int
    """Packs of best-fit decreasing, longer sequences handled as the report's `overflow` says."""
    fill: float
    """Real tokens ÷ slots of these packs."""
    lower_bound: int
    """Proven bound on the number of packs."""
    padded_fill: float
    """Real tokens ÷ slots when every sequence is padded to this max_length."""


def horizons(
    lengths: NDArray[np.int64],
    max_lengths: tuple[int, ...] = MAX_LENGTHS,
    overflow: str = "truncate",
    targets: Any = None,
) -> tuple[Horizon, ...]:
    """One row for each of `max_lengths`, smallest first; `targets` is the `count_targets` of `plan_packs`.

    Example:

        >>> row = horizons(np.array([2048, 512, 256, 128]), (512,))[0]
        >>> row.sequences_longer, row.tokens_beyond, row.packs
        (1, 1536, 3)
    """
    tokens = int(lengths.sum())
    rows = []
    for max_length in sorted(set(max_lengths)):
        plan = plan_packs(lengths, max_length, strategy="bfd", overflow=overflow, count_targets=targets)
        within = np.minimum(lengths, max_length)
        width = max(max_length, int(plan.lengths.max(initial=0)))
        padded_slots = plan.lengths.size * width
        rows.append(
            Horizon(
                max_length=max_length,
                sequences_longer=int((lengths > max_length).sum()),
                tokens_beyond=tokens - int(within.sum()),
                kept=int(within.sum()) / tokens if tokens else 1.0,
                packs=plan.num_packs,
                fill=plan.fill,
                lower_bound=plan.lower_bound,
                padded_fill=plan.ledger.tokens_packed / padded_slots if padded_slots else 1.0,
            )
        )
    return tuple(rows)


def smallest_sufficient(rows: tuple[Horizon, ...]) -> int | None:
    """The smallest max_length of the table that leaves 99.9 % of the tokens whole, or None.

    Example:

        >>> smallest_sufficient(horizons(np.array([2048, 512, 256, 128]), (512, 1024, 2048)))
        2048
    """
    return next((row.max_length for row in rows if row.kept >= KEEP), None)
