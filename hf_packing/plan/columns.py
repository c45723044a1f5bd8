"""Column generation for packs: the linear program, its pricing, and duals as an exact proof.

The program of Gilmore and Gomory (1961): choose how often each pattern is used so that every size is covered, with the
fewest packs. Its duals price a sequence of each size; a pattern worth more than 1 is a new column.

Shape legend: D distinct sizes, K patterns (columns), C capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csc_array

from .bounds import BoundCertificate, heaviest_pack
from .lengths import LengthHistogram


__all__ = ["Column", "LinearSolution", "better_columns", "dual_proof", "pricing_steps", "solve", "solving_steps"]

# How many sequences of each size, by the size's index, sizes ascending by index.
Column = tuple[tuple[int, int], ...]

DUAL_SCALE = 1 << 40
"""Duals are rounded down to multiples of one over this: the bound loses less than N / 2⁴⁰ packs."""


@dataclass(frozen=True, slots=True)
class LinearSolution:
    """How often each column is used `[K]`, in fractions, and the price of one sequence of each size `[D]`."""

    times: NDArray[np.float64]
    prices: NDArray[np.float64]

    @property
    def packs(self) -> float:
        """Packs in all, in fractions."""
        return float(self.times.sum())


def solving_steps(sizes: int, columns: int) -> int:
    """What solving costs, in steps of [`Budget`] (measured, HiGHS dual simplex)."""
    return 16 * sizes * columns


def pricing_steps(sizes: int, capacity: int, max_sequences: int | None) -> int:
    """What pricing or checking a proof costs, in steps of [`Budget`] (measured)."""
    if max_sequences is None:
        return capacity * (2000 + sizes)
    return max_sequences * sizes * (3000 + 2 * capacity)


def solve(columns: list[Column], counts: NDArray[np.int64]) -> LinearSolution | None:
    """Solves min Σ times, Σ times · column ≥ counts, times ≥ 0; None where the solver reports no optimum.

    Example: patterns of two and of one cover five sequences with 2.5 packs.

        >>> solve([((0, 2),), ((0, 1),)], np.array([5])).packs
        2.5
    """
    entries = np.array([entry for column in columns for entry in column], dtype=np.int64)
    offsets = np.zeros(len(columns) + 1, dtype=np.int64)
    np.cumsum([len(column) for column in columns], out=offsets[1:])
    matrix = csc_array((-entries[:, 1].astype(float), entries[:, 0], offsets), shape=(counts.size, len(columns)))
    result = linprog(np.ones(len(columns)), A_ub=matrix, b_ub=-counts.astype(float), method="highs")
    if result.status != 0:
        return None
    return LinearSolution(result.x, np.maximum(0.0, -result.ineqlin.marginals))


def better_columns(
    sizes: NDArray[np.int64], prices: NDArray[np.float64], capacity: int, max_sequences: int | None
) -> list[Column]:
    """For each size, the most valuable pattern that contains it, where that is worth more than one pack.

    An unbounded knapsack over all rooms up to `capacity` gives every one of them in one pass.

    Example:

        >>> better_columns(np.array([2, 5]), np.array([0.5, 0.6]), 7, None)
        [((0, 3),), ((0, 1), (1, 1))]
    """
    if max_sequences is not None:
        value, trace = _price_few(sizes, prices, capacity, max_sequences - 1)
    else:
        value, trace = _price_any(sizes, prices, capacity)
    found: dict[Column, None] = {}
    for index, (size, price) in enumerate(zip(sizes.tolist(), prices.tolist())):
        if price + value[capacity - size] > 1 + 1e-9:
            members = trace(capacity - size)
            members[index] = members.get(index, 0) + 1
            found[tuple(sorted(members.items()))] = None
    return list(found)


Priced = tuple[NDArray[np.float64], Callable[[int], dict[int, int]]]
# The most a room can be worth, for every room `[C + 1]`, and which sizes (index: how many) reach it.


def _price_any(sizes: NDArray[np.int64], prices: NDArray[np.float64], capacity: int) -> Priced:
    value = np.zeros(capacity + 1)
    last = np.full(capacity + 1, -1)  # index of the size put in last; -1: the room one smaller is worth as much
    usable = sizes.searchsorted(np.arange(capacity + 1), side="right")
    for room in range(int(sizes[0]), capacity + 1):
        worth = value[room - sizes[: usable[room]]] + prices[: usable[room]]
        best = int(worth.argmax())
        if worth[best] > value[room - 1]:
            value[room], last[room] = worth[best], best
        else:
            value[room] = value[room - 1]

    def trace(room: int) -> dict[int, int]:
        members: dict[int, int] = {}
        while room > 0:
            index = int(last[room])
            if index < 0:
                room -= 1
            else:
                members[index] = members.get(index, 0) + 1
                room -= int(sizes[index])
        return members

    return value, trace


def _price_few(sizes: NDArray[np.int64], prices: NDArray[np.float64], capacity: int, most: int) -> Priced:
    value = np.zeros((most + 1, capacity + 1))
    last = np.full((most + 1, capacity + 1), -1)  # -1: one sequence fewer is worth as much
    for number in range(1, most + 1):
        value[number] = value[number - 1]
        for index, (size, price) in enumerate(zip(sizes.tolist(), prices.tolist())):
            if size > capacity or price <= 0:
                continue
            worth = value[number - 1, : capacity + 1 - size] + price
            better = worth > value[number, size:]
            value[number, size:][better] = worth[better]
            last[number, size:][better] = index

    def trace(room: int) -> dict[int, int]:
        members: dict[int, int] = {}
        for number in range(most, 0, -1):
            index = int(last[number, room])
            if index >= 0:
                members[index] = members.get(index, 0) + 1
                room -= int(sizes[index])
        return members

    return value[most], trace


def dual_proof(
    sizes: LengthHistogram, prices: NDArray[np.float64], capacity: int, max_sequences: int | None
) -> BoundCertificate:
    """Prices rounded down to whole weights, and the heaviest pack found for them in exact integers.

    Nothing of the floating-point solution has to be trusted: any whole weights with their heaviest pack are a proof.

    Example: sizes 6 and 3 in packs of 10, where two of 3 beside a 6 do not fit.

        >>> proof = dual_proof(LengthHistogram(np.array([3, 6]), np.array([4, 4])), np.array([1/3, 2/3]), 10, None)
        >>> proof.bound, proof.holds()
        (4, True)
    """
    weights = np.floor(prices * DUAL_SCALE).astype(np.int64)
    return BoundCertificate(
        kind="duals",
        capacity=capacity,
        max_sequences=max_sequences,
        sizes=sizes.sizes,
        counts=sizes.counts,
        weights=weights,
        pack_weight=max(1, heaviest_pack(sizes.sizes, weights, capacity, max_sequences)),
    )
