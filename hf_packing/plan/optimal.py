"""The fewest packs there can be: best fit, exact fill, then column generation, until the proven bound is met.

Every stage hands in its packs and its bound, the best of both are kept, and the search ends where they meet or where
its budget of steps (never the clock) runs out.

Shape legend: D distinct sizes, K columns.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .bounds import BoundCertificate, simple_bound
from .columns import ColumnSearch, LinearSolution, dual_proof
from .exact import Budget, exact_fill, refill
from .histogram import best_fit_decreasing, pack_quickly
from .lengths import LengthHistogram
from .pricing import Column
from .table import PackTable, Pattern


__all__ = ["AUTO_STEPS", "OPTIMAL_STEPS", "pack_tightly"]

logger = logging.getLogger(__name__)

AUTO_STEPS = 200_000_000
"""Budget of strategy `auto`: about 0.5 s on one core."""
OPTIMAL_STEPS = 2_000_000_000
"""Budget of strategy `optimal`: about 5 s on one core."""
DIVE_ROUNDS = 40
DIVES = ((0.1, 3), (0.1, 0), (0.3, 3), (0.03, 3), (0.3, 0))
"""(share of the fractional packs rounded up in one round, rounds of new columns before it), tried in this order."""


def pack_tightly(
    sizes: LengthHistogram, capacity: int, max_sequences: int | None = None, steps: int = OPTIMAL_STEPS
) -> tuple[PackTable, BoundCertificate]:
    """Packs for these sizes, and the proof of how few there could be; equal where the search succeeds.

    Args:
        sizes: distinct sizes from 1 to `capacity`, and their counts.
        capacity: slots of a pack.
        max_sequences: most sequences in a pack.
        steps: budget, about 2.5 ns each.

    Example: best-fit decreasing needs 11 packs for every 9 here.

        >>> sizes = LengthHistogram(np.array([510, 513, 514, 1025]), np.array([12, 6, 6, 6]))
        >>> best_fit_decreasing(sizes, 2048).num_packs
        11
        >>> table, proof = pack_tightly(sizes, 2048)
        >>> table.num_packs, proof.bound
        (9, 9)
    """
    step = int(np.gcd.reduce(sizes.sizes)) if sizes.sizes.size else 1
    if step > 1:
        units = LengthHistogram(sizes.sizes // step, sizes.counts)
        table, proof = pack_tightly(units, capacity // step, max_sequences, steps)
        # With sizes in multiples of 4, a pack of 10 holds no more than one of 8; weights do not change with the unit,
        # except where they are the sizes themselves, which a pack_weight of 8 slots counts in the same unit.
        proof = replace(proof, sizes=sizes.sizes, capacity=capacity)
        return replace(table, sizes=table.sizes * step), proof
    if max_sequences is not None and sizes.sizes.size and max_sequences >= capacity // int(sizes.sizes[0]):
        table, proof = pack_tightly(sizes, capacity, None, steps)
        return table, replace(proof, max_sequences=max_sequences)
    return _Search(sizes, capacity, max_sequences, Budget(steps)).run()


class _Search:
    """The best packs and the best proof so far, and what may still be spent on better ones."""

    def __init__(self, sizes: LengthHistogram, capacity: int, max_sequences: int | None, budget: Budget) -> None:
        self.sizes, self.capacity, self.max_sequences, self.budget = sizes, capacity, max_sequences, budget
        self.proof = simple_bound(sizes, capacity, max_sequences)
        self.table = pack_quickly(sizes, capacity, max_sequences, self.proof.bound)

    @property
    def met(self) -> bool:
        return self.table.num_packs <= self.proof.bound

    def offer(self, table: PackTable) -> bool:
        """Keeps the better packs; True when the bound is met."""
        if table.num_packs < self.table.num_packs:
            self.table = table
        return self.met

    def run(self) -> tuple[PackTable, BoundCertificate]:
        if self.met:
            return self.table, self.proof
        tables = [self.table]
        for table in self._heuristics():
            tables.append(table)
            if self.offer(table):
                return self.table, self.proof
        solution = self._bound_by_columns(tables)
        if solution is not None and not self.met:
            for share, fresh_rounds in DIVES:
                if self._dive(solution, share, fresh_rounds) or self.budget.steps <= 0:
                    break
        if not self.met:
            logger.info(
                "%d packs are %d above the proven bound of %d; the search ended there.",
                self.table.num_packs,
                self.table.num_packs - self.proof.bound,
                self.proof.bound,
            )
        return self.table, self.proof

    def _heuristics(self) -> Iterator[PackTable]:
        """Other packs, cheap ones first, each found when it is asked for."""
        limits = self.capacity, self.max_sequences, self.budget
        if self.max_sequences is None:
            yield refill(self.table, *limits)
            yield exact_fill(self.sizes, *limits)
            return
        yield exact_fill(self.sizes, *limits, shortest_first=True)
        yield refill(self.table, *limits)

    def _bound_by_columns(self, tables: Sequence[PackTable]) -> LinearSolution | None:
        """Solves the linear program, starting with the packs there are, and keeps its bound if it is better."""
        search = ColumnSearch(self.sizes, self.capacity, self.max_sequences, self.budget)
        solution = search.run(_columns_of(tables, self.sizes), enough=self.proof.bound)
        if np.ceil(search.bound - 1e-6) > self.proof.bound:
            proof = dual_proof(self.sizes, search.prices, self.capacity, self.max_sequences)
            self.proof = max(self.proof, proof, key=lambda proof: proof.bound)
        return solution

    def _dive(self, solution: LinearSolution, share: float, fresh_rounds: int) -> bool:
        """Fixes the whole part of a solution, solves for the rest, and so on; True when the bound is met.

        After every round the rest is also packed at once, which usually meets the bound in the first rounds.
        """
        left = self.sizes.counts.copy()
        patterns: list[Pattern] = []
        for number in range(DIVE_ROUNDS):
            taken = _take(solution, 0.0 if number == 0 else share, left)
            patterns += [(self._pattern(column), times) for column, times in taken]
            if self.offer(PackTable.from_patterns([*patterns, *self._pack(left).patterns()])):
                return True
            if not left.any() or (number > 0 and not taken):
                return False
            next_solution = self._solve_rest(solution.columns, left, fresh_rounds)
            if next_solution is None:
                return False
            solution = next_solution
        return False

    def _pack(self, left: NDArray[np.int64]) -> PackTable:
        """The better of best fit and exact fill for what is left."""
        present = left > 0
        rest = LengthHistogram(self.sizes.sizes[present], left[present])
        tables = (
            best_fit_decreasing(rest, self.capacity, self.max_sequences),
            exact_fill(rest, self.capacity, self.max_sequences, self.budget, self.max_sequences is not None),
        )
        return min(tables, key=lambda table: table.num_packs)

    def _solve_rest(self, columns: list[Column], left: NDArray[np.int64], rounds: int) -> LinearSolution | None:
        available = left.tolist()
        fitting = {column: None for column in columns if all(available[i] >= count for i, count in column)}
        for index in np.flatnonzero(left).tolist():  # as many of one size as fit, so that every size can be covered
            most = min(self.capacity // int(self.sizes.sizes[index]), available[index])
            fitting[((index, min(most, self.max_sequences or most)),)] = None
        rest = LengthHistogram(self.sizes.sizes, left)
        search = ColumnSearch(rest, self.capacity, self.max_sequences, self.budget)
        return search.run(fitting, enough=0, rounds=rounds + 1)

    def _pattern(self, column: Column) -> list[tuple[int, int]]:
        return [(int(self.sizes.sizes[index]), count) for index, count in reversed(column)]


def _columns_of(tables: Sequence[PackTable], sizes: LengthHistogram) -> list[Column]:
    """The different patterns of the best tables, in size indices; three a size or a little more are enough."""
    index_of = {size: index for index, size in enumerate(sizes.sizes.tolist())}
    columns: dict[Column, None] = {}
    for table in sorted(tables, key=lambda table: table.num_packs):
        if len(columns) > 3 * sizes.sizes.size:
            break
        for entries, _ in table.patterns():
            members: dict[int, int] = {}
            for size, count in entries:
                members[index_of[size]] = members.get(index_of[size], 0) + count
            columns[tuple(sorted(members.items()))] = None
    return list(columns)


def _take(solution: LinearSolution, share: float, left: NDArray[np.int64]) -> list[tuple[Column, int]]:
    """Uses each column the whole number of times, then a share of the fractional packs once, the largest parts first.

    What is taken is taken off `left`; no column is used more often than what is left allows.
    """
    whole = np.floor(solution.times + 1e-6).astype(np.int64)
    parts = solution.times - whole
    wanted = [(int(k), int(whole[k])) for k in np.flatnonzero(whole)]
    if share:
        extra = max(1, int(share * parts.sum()))
        wanted += [(int(k), 1) for k in np.argsort(-parts, kind="stable")[:extra] if parts[k] > 1e-6]
    taken = []
    for k, most in wanted:
        column = solution.columns[k]
        number = min(most, *(int(left[index]) // count for index, count in column))
        if number:
            for index, count in column:
                left[index] -= number * count
            taken.append((column, number))
    return taken
