"""Column generation for packs: the linear program, the columns it needs, and its prices as an exact proof.

The program of Gilmore and Gomory (1961): choose how often each pattern is used so that every size is covered, with the
fewest packs. Its duals price a sequence of each size; a pattern worth more than 1 is a new column. Prices are smoothed
towards the best ones so far (Wentges 1997), without which they jump about and the search takes many times as long.

Shape legend: D distinct sizes, K columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csc_array

from .bounds import BoundCertificate, heaviest_pack
from .exact import Budget
from .lengths import LengthHistogram
from .pricing import Column, most_valuable, pricing_steps


__all__ = ["ColumnSearch", "LinearSolution", "dual_proof", "solve"]

logger = logging.getLogger(__name__)

ROUNDS = 200
SMOOTHING = 0.8
"""Share of the best prices so far in the prices that new columns are looked for with."""
COLUMNS_A_SIZE = 6
"""Columns kept for each size; the least useful half goes when there are more, because solving costs follow."""
DUAL_SCALE = 1 << 40
"""Prices are rounded down to multiples of one over this: the bound loses less than N / 2⁴⁰ packs."""


@dataclass(frozen=True, slots=True)
class LinearSolution:
    """How often each of the columns is used `[K]`, in fractions, and the price of one sequence of each size `[D]`."""

    columns: list[Column]
    times: NDArray[np.float64]
    prices: NDArray[np.float64]

    @property
    def packs(self) -> float:
        """Packs in all, in fractions."""
        return float(self.times.sum())


def solve(columns: list[Column], counts: NDArray[np.int64], budget: Budget) -> LinearSolution | None:
    """Solves min Σ times, Σ times · column ≥ counts, times ≥ 0; None where the budget ends or the solver fails.

    Example: patterns of two and of one cover five sequences with 2.5 packs.

        >>> solve([((0, 2),), ((0, 1),)], np.array([5]), Budget(10**6)).packs
        2.5
    """
    entries = np.array([entry for column in columns for entry in column], dtype=np.int64)
    offsets = np.zeros(len(columns) + 1, dtype=np.int64)
    np.cumsum([len(column) for column in columns], out=offsets[1:])
    matrix = csc_array((-entries[:, 1].astype(float), entries[:, 0], offsets), shape=(counts.size, len(columns)))
    steps_each = 6000 + 8 * counts.size + 2 * len(entries)  # of an iteration of the simplex method, measured
    most = budget.steps // steps_each
    if most < 1:
        return None
    result = linprog(
        np.ones(len(columns)), A_ub=matrix, b_ub=-counts.astype(float), method="highs", options={"maxiter": most}
    )
    budget.spend(steps_each * int(result.nit))
    if result.status == 1:
        return None
    if result.status != 0:
        logger.warning("The solver found no optimum of %d columns (%s).", len(columns), result.message)
        return None
    return LinearSolution(columns, result.x, np.maximum(0.0, -result.ineqlin.marginals))


class ColumnSearch:
    """Finds the columns a linear program over some sizes needs, and prices that bound the number of packs.

    Args:
        sizes: distinct sizes from 1 to `capacity`, and their counts.
        capacity: slots of a pack.
        max_sequences: most sequences in a pack.
        budget: steps it may take.

    Example: sizes 4 and 3 in packs of 10, where 4 + 3 + 3 leaves no slot.

        >>> search = ColumnSearch(LengthHistogram(np.array([3, 4]), np.array([4, 2])), 10, None, Budget(10**7))
        >>> search.run([], enough=0).packs, round(search.bound, 6)
        (2.0, 2.0)
    """

    def __init__(self, sizes: LengthHistogram, capacity: int, max_sequences: int | None, budget: Budget) -> None:
        self.sizes, self.capacity, self.max_sequences, self.budget = sizes, capacity, max_sequences, budget
        # Sizes over the capacity are prices at which no pack is worth more than 1: they bound by ⌈T / L⌉.
        self.prices = np.where(sizes.counts > 0, sizes.sizes / capacity, 0.0)
        self.bound = float(sizes.counts @ self.prices)

    def run(self, columns: Iterable[Column], enough: int, rounds: int = ROUNDS) -> LinearSolution | None:
        """Solves and adds columns until nothing can be gained, or the solution rounds up to `enough` or to the bound.

        Returns:
            the last solution; None if there was none within the budget.
        """
        known = dict.fromkeys(columns)
        covered = {index for column in known for index, _ in column}
        for index in np.flatnonzero(self.sizes.counts).tolist():
            if index not in covered:
                known[((index, 1),)] = None
        solution = None
        for _ in range(rounds):
            last, solution = solution, solve(list(known), self.sizes.counts, self.budget)
            if solution is None:
                return last
            if np.ceil(solution.packs - 1e-6) <= max(enough, np.ceil(self.bound - 1e-6)):
                break
            fresh = self._fresh(solution, known)
            if not fresh:
                break
            if len(known) > COLUMNS_A_SIZE * self.sizes.sizes.size:
                known = self._most_useful(solution)
            known.update(dict.fromkeys(fresh))
        return solution

    def _fresh(self, solution: LinearSolution, known: dict[Column, None]) -> list[Column]:
        share = SMOOTHING
        while self.budget.spend(pricing_steps(self.sizes.sizes.size, self.capacity, self.max_sequences)):
            prices = share * self.prices + (1 - share) * solution.prices
            columns, best = most_valuable(self.sizes.sizes, prices, self.capacity, self.max_sequences)
            # No pack is worth more than 1 at prices / best, so that they bound the packs (Farley 1990).
            if best > 0 and (bound := float(self.sizes.counts @ prices) / best) > self.bound:
                self.prices, self.bound = prices / best, bound
            worth = solution.prices.tolist()
            fresh = [
                column
                for column in columns
                if column not in known and sum(worth[index] * count for index, count in column) > 1 + 1e-9
            ]
            if fresh or not share:
                return fresh
            share = share / 2 if share > 0.3 else 0.0
        return []

    def _most_useful(self, solution: LinearSolution) -> dict[Column, None]:
        """The columns in use, which cover every size, and those worth most."""
        worth = solution.prices.tolist()
        missing = np.array([1 - sum(worth[index] * count for index, count in column) for column in solution.columns])
        missing[solution.times > 0] = -np.inf
        kept = np.argsort(missing, kind="stable")[: COLUMNS_A_SIZE * self.sizes.sizes.size // 2]
        return {solution.columns[k]: None for k in np.sort(kept).tolist()}


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
