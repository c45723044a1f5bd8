"""Exact fill: packs without a free slot, found on the histogram of lengths.

Where a pack holds many sequences nearly every pack can be filled to the last slot, and a plan of such packs meets the
bound ⌈T / L⌉. Costs are counted in steps (about 2.5 ns each on one core), so that a budget of them is the same
everywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .histogram import best_fit_decreasing
from .lengths import LengthHistogram
from .subset import best_subset
from .table import PackTable, Pattern


__all__ = ["Budget", "exact_fill", "refill"]

LOOKED_AT = 4000
"""Sequences tried for one pack before the best sum so far is taken."""


@dataclass(slots=True)
class Budget:
    """Steps a search may still take; it ends where they run out."""

    steps: int

    def spend(self, steps: int) -> bool:
        """Takes steps away; False when there were not enough."""
        self.steps -= steps
        return self.steps >= 0


def exact_fill(
    sizes: LengthHistogram,
    capacity: int,
    max_sequences: int | None,
    budget: Budget,
    shortest_first: bool = False,
) -> PackTable:
    """The longest sequence left, and the best subset of all others; as often as the counts allow.

    Others are tried from the longest down, which keeps the short ones for rooms that are hard to fill; or from the
    shortest up, which is better where `max_sequences` leaves short ones without a place. Where the budget ends, the
    rest is packed by best-fit decreasing.

    Example: best-fit decreasing needs 3 packs here.

        >>> sizes = LengthHistogram(np.array([2, 3, 4, 5]), np.array([1, 2, 1, 2]))
        >>> exact_fill(sizes, 11, None, Budget(10**6)).num_packs
        2
    """
    left = dict(zip(sizes.sizes.tolist(), sizes.counts.tolist()))
    ascending = list(left)
    patterns: list[Pattern] = []
    offer = _shortest_first if shortest_first else _longest_first
    while ascending and budget.steps > 0:
        longest = ascending[-1]
        room = capacity - longest
        left[longest] -= 1
        most = None if max_sequences is None else max_sequences - 1
        if most is not None and most >= room // ascending[0]:
            most = None  # the room runs out first
        tried: list[int] = []
        chosen = best_subset(offer(ascending, left, room, LOOKED_AT if most is None else 500, tried), room, most)
        left[longest] += 1
        # One size tried: an interpreter's share and a big number's share, for every number of sequences.
        budget.spend((180 + capacity // 100) * (1 + len(tried) * (1 if most is None else (most + 1) // 2)))
        pattern = {longest: 1}
        for index in chosen:
            pattern[tried[index]] = pattern.get(tried[index], 0) + 1
        times = min(left[size] // count for size, count in pattern.items())
        patterns.append((list(pattern.items()), times))
        for size, count in pattern.items():
            left[size] -= count * times
            if not left[size]:
                del ascending[bisect_left(ascending, size)]
    rest = best_fit_decreasing(_histogram_of(ascending, left), capacity, max_sequences)
    return PackTable.from_patterns([*patterns, *rest.patterns()])


def _longest_first(
    ascending: list[int], left: dict[int, int], room: int, looked_at: int, tried: list[int]
) -> Iterator[int]:
    """Single sequences that fit, noted in `tried` as they are asked for."""
    for place in range(bisect_right(ascending, room) - 1, -1, -1):
        size = ascending[place]
        for _ in range(min(left[size], room // size)):
            if len(tried) == looked_at:
                return
            tried.append(size)
            yield size


def _shortest_first(
    ascending: list[int], left: dict[int, int], room: int, looked_at: int, tried: list[int]
) -> Iterator[int]:
    """Up to two of each size, so that few are looked at before the longer ones come."""
    for size in ascending[: bisect_right(ascending, room)]:
        for _ in range(min(left[size], room // size, 2)):
            if len(tried) == looked_at:
                return
            tried.append(size)
            yield size


def refill(table: PackTable, capacity: int, max_sequences: int | None, budget: Budget) -> PackTable:
    """Keeps the packs of a table that have no free slot and fills the sequences of all others again, exactly.

    Example:

        >>> table = PackTable.from_patterns([([(4, 1), (2, 1)], 1), ([(3, 1), (1, 1)], 1), ([(1, 1)], 1)])
        >>> refill(table, 6, None, Budget(10**6)).num_packs
        2
    """
    full = table.pack_slots == capacity
    kept: list[Pattern] = []
    left: dict[int, int] = {}
    for (entries, times), is_full in zip(table.patterns(), full.tolist()):
        if is_full:
            kept.append((entries, times))
            continue
        for size, count in entries:
            left[size] = left.get(size, 0) + count * times
    again = exact_fill(_histogram_of(sorted(left), left), capacity, max_sequences, budget)
    return PackTable.from_patterns([*kept, *again.patterns()])


def _histogram_of(ascending: list[int], counts: dict[int, int]) -> LengthHistogram:
    sizes = np.array(ascending, dtype=np.int64)
    return LengthHistogram(sizes, np.array([counts[size] for size in ascending], dtype=np.int64))
