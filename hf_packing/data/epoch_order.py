"""EpochOrder: which units meet in which step of one epoch, computed window by window.

Shape legend: P units, K units a step (ranks × batch size), S full steps, W steps a window.

Units sorted by cost, K neighbours a group, the groups in random order: steps of like cost, at random times. That alone
would bring the same K units together in every epoch. So units first change places inside bands of W groups, and the
groups that meet in a window of W steps are sorted once more, which repairs what the bands spread:

    sorted by cost    a b c d | e f g h | ...     bands of W·K (here 2 groups of 2)
    shuffled in bands c a | d b | h e | f g       each epoch otherwise
    random groups     h e | c a | f g | d b       S steps, windows of 2
    sorted in windows a c | e h | b d | f g       like cost within a step
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .shuffle import RandomOrder, random_keys


__all__ = ["EpochOrder", "sort_by_cost"]

IntArray = NDArray[np.int64]

# Streams of random numbers that must not repeat each other.
_GROUPS, _BANDS, _LAST_BAND, _TAIL, _STEPS = range(5)


def sort_by_cost(costs: NDArray[np.float64]) -> NDArray[np.integer]:
    """Units from the most to the least expensive one, ties by index; costs within 0.2 % of each other count as ties.

    A radix sort over the leading bits of the floats: linear in the number of units, and the same on every machine.

    Example:

        >>> sort_by_cost(np.array([3.0, 90.0, 7.0, 90.0])).tolist()
        [1, 3, 2, 0]
    """
    if not costs.size:
        return np.zeros(0, np.int64)
    # Positive floats order like their bits: 11 of the exponent, then the mantissa. Sixteen bits of the range hold at
    # least 9 bits of the mantissa while costs span less than 2^64.
    bits = np.ascontiguousarray(costs, dtype=np.float64).view(np.uint64)
    top = bits.max()
    shift = max(0, int(top - bits.min()).bit_length() - 16)
    order = np.argsort(((top - bits) >> np.uint64(shift)).astype(np.uint16), kind="stable")
    # Every rank keeps this for all packs of the corpus: half the memory where 32 bits number them.
    return order.astype(np.uint32) if costs.size <= 1 << 32 else order


class EpochOrder:
    """The steps of one epoch: a head (the most expensive units, on request), full steps, and a tail that is not full.

    Args:
        costs (float64 `[P]`): cost of every unit, at least 0.
        by_cost (integers `[P]` or `None`): `sort_by_cost(costs)`; `None` for an order that does not look at costs.
        per_step (`int`): K.
        window (`int`): W.
        numbers (`tuple[int, int]`): seed and epoch.
        head (`bool`): step 0 takes the K most expensive units.
    """

    def __init__(
        self,
        costs: NDArray[np.float64],
        by_cost: NDArray[np.integer] | None,
        *,
        per_step: int,
        window: int,
        numbers: tuple[int, int],
        head: bool = False,
    ) -> None:
        self.costs, self._by_cost = costs, by_cost
        self._per_step, self._window, self._numbers = per_step, window, numbers
        self._head = per_step if head and costs.size >= per_step else 0
        # Places in the order by cost (or by index) that are not free for the body: the head's, then the tail's.
        taken = np.arange(self._head) if by_cost is not None else np.sort(_heaviest(costs, self._head))
        self.head = taken if by_cost is None else by_cost[: self._head].astype(np.int64)
        free = costs.size - self._head
        self.full_steps = free // per_step
        tail = RandomOrder(free, *numbers, _TAIL)(np.arange(free % per_step))
        tail = _skip(taken, tail)
        self.tail = tail if by_cost is None else by_cost[tail].astype(np.int64)
        self._taken = np.sort(np.concatenate([taken, tail]))
        self._groups = RandomOrder(self.full_steps, *numbers, _GROUPS)
        self._band = RandomOrder(window * per_step, *numbers, _BANDS)
        self._last_band = RandomOrder(self.full_steps % window * per_step, *numbers, _LAST_BAND)
        self._everything = RandomOrder(self.full_steps * per_step, *numbers, _BANDS)

    def steps(self, first: int, last: int) -> IntArray:
        """Units of the full steps `first` to `last`, `[last − first, K]`, the most expensive of a step first.

        Both ends lie on borders of windows, or at the last full step.
        """
        slots = np.arange(first * self._per_step, last * self._per_step)
        places = self._everything(slots) if self._by_cost is None else self._banded(slots)
        units = _skip(self._taken, places)
        if self._by_cost is None:
            return units.reshape(-1, self._per_step)
        units = self._by_cost[units].astype(np.int64)
        whole = (last - first) // self._window * self._window * self._per_step
        windows = [units[:whole].reshape(-1, self._window * self._per_step), units[whole:].reshape(1, -1)]
        sorted_steps = [self._sort(window).reshape(-1, self._per_step) for window in windows if window.size]
        turns = self._turns(first, last)
        return np.concatenate(sorted_steps)[turns] if sorted_steps else units.reshape(0, self._per_step)

    def _banded(self, slots: IntArray) -> IntArray:
        """Places in the order by cost: a random group, and inside it random units of the group's band."""
        band_size = self._window * self._per_step
        groups = self._groups(slots // self._per_step)
        bands, within = np.divmod(groups * self._per_step + slots % self._per_step, band_size)
        short = bands == self.full_steps // self._window
        places = np.empty_like(slots)
        places[~short] = self._band(within[~short], bands[~short])
        places[short] = self._last_band(within[short])
        return bands * band_size + places

    def _sort(self, units_GW: IntArray) -> IntArray:
        return np.take_along_axis(units_GW, np.argsort(-self.costs[units_GW], axis=1, kind="stable"), axis=1)

    def _turns(self, first: int, last: int) -> IntArray:
        """Steps of every window in random order."""
        numbers = np.arange(first, last)
        return np.lexsort((random_keys(numbers, *self._numbers, _STEPS), numbers // self._window))


def _skip(taken: IntArray, places: IntArray) -> IntArray:
    """The places-th of the numbers that are not taken: with 2 and 3 taken, places 0, 1, 2 are the numbers 0, 1, 4."""
    return places + np.searchsorted(taken - np.arange(taken.size), places, side="right")


def _heaviest(costs: NDArray[np.float64], count: int) -> IntArray:
    """The `count` most expensive units, ties by index on every machine."""
    if count == 0:
        return np.zeros(0, np.int64)
    bound = np.partition(costs, costs.size - count)[costs.size - count]
    candidates = np.flatnonzero(costs >= bound)
    return candidates[np.argsort(-costs[candidates], kind="stable")][:count]
