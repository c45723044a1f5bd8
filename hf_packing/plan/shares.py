"""Plans too large to write down: a rank lists only its own packs, and holds nothing that grows with the data.

A data set of a billion sequences is planned from how often each length occurs. The plan says of a pack "the 17th
sequence of length 90 and the 4th of length 412", so that whoever can find the n-th sequence of a length (data sorted
or indexed by length) can build it.

Shape legend: K patterns, E entries in all patterns, S sequences in the packs asked for, Q packs asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import PackingError
from .bounds import BoundCertificate, simple_bound
from .histogram import pack_quickly
from .lengths import LengthHistogram, check_lengths
from .optimal import AUTO_STEPS, OPTIMAL_STEPS, pack_tightly
from .policy import Strategy
from .table import PackTable


__all__ = ["HistogramPlan", "plan_histogram"]


@dataclass(frozen=True, kw_only=True)
class HistogramPlan:
    """Packs of sequences that are known by their length and their number among those of the same length."""

    max_length: int
    """Slots of a pack."""
    table: PackTable
    """The packs, as patterns with a multiplicity."""
    certificate: BoundCertificate
    """The proof of `lower_bound`."""

    @property
    def num_packs(self) -> int:
        """Packs of all ranks."""
        return self.table.num_packs

    @property
    def lower_bound(self) -> int:
        """Fewest packs there can be, proven by `certificate`."""
        return self.certificate.bound

    @property
    def fill(self) -> float:
        """Real tokens over slots."""
        slots = self.num_packs * self.max_length
        tokens = sum((self.table.pack_slots * self.table.multiplicity).tolist())
        return tokens / slots if slots else 1.0

    @cached_property
    def _first_packs(self) -> NDArray[np.int64]:
        """`[K]`: number of the first pack of each pattern."""
        return np.cumsum(self.table.multiplicity) - self.table.multiplicity

    @cached_property
    def _first_ordinals(self) -> NDArray[np.int64]:
        """`[E]`: for each entry, how many sequences of its size earlier entries use."""
        table = self.table
        used = table.counts * np.repeat(table.multiplicity, np.diff(table.offsets))
        order = np.argsort(table.sizes, kind="stable")
        before = np.cumsum(used[order]) - used[order]
        group_starts = np.flatnonzero(np.diff(table.sizes[order], prepend=-1))
        before -= np.repeat(before[group_starts], np.diff(np.append(group_starts, order.size)))
        firsts = np.empty(before.size, dtype=np.int64)
        firsts[order] = before
        return firsts

    def share(self, rank: int, num_replicas: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Every num_replicas-th pack, beginning with number `rank`; all ranks together have every pack once.

        For a random order give [`packs`] the numbers of a permutation that is computed where it is asked for.

        Args:
            rank: from 0 to `num_replicas` − 1.
            num_replicas: how many ranks there are.

        Returns:
            What [`packs`] returns.
        """
        if not 0 <= rank < num_replicas:
            raise PackingError(f"rank={rank} is not one of the {num_replicas} ranks 0 to {num_replicas - 1}.")
        return self.packs(np.arange(rank, self.num_packs, num_replicas))

    def packs(self, numbers: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The packs with these numbers.

        Args:
            numbers (`[Q]`): from 0 to `num_packs` − 1.

        Returns:
            int64 `[S]`: length of each sequence; int64 `[S]`: its number among those of that length, from 0;
            int64 `[Q + 1]`: where each pack starts and ends in them.

        Example:

            >>> plan = plan_histogram([3, 5], [4, 2], max_length=11)
            >>> lengths, ordinals, offsets = plan.packs([0, 1])
            >>> lengths.tolist(), ordinals.tolist(), offsets.tolist()
            ([5, 3, 3, 5, 3, 3], [0, 0, 1, 1, 2, 3], [0, 3, 6])
        """
        table, numbers_Q = self.table, np.asarray(numbers, dtype=np.int64)
        pattern_Q = self._first_packs.searchsorted(numbers_Q, side="right") - 1
        repeat_Q = numbers_Q - self._first_packs[pattern_Q]
        # Entries of pattern k are offsets[k] .. offsets[k + 1]; first spread packs over entries, then over sequences.
        entries_Q = np.diff(table.offsets)[pattern_Q]
        entry = _ranges(table.offsets[:-1][pattern_Q], entries_Q)
        count = table.counts[entry]
        repeats: NDArray[np.int64] = np.repeat(repeat_Q, entries_Q)
        first = self._first_ordinals[entry] + repeats * count
        offsets = np.zeros(numbers_Q.size + 1, dtype=np.int64)
        np.cumsum(table.pack_sizes[pattern_Q], out=offsets[1:])
        return np.repeat(table.sizes[entry], count), _ranges(first, count), offsets


def _ranges(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges end to end: firsts [7, 3] and counts [2, 3] give 7 8 3 4 5."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if ends.size else 0) + np.repeat(firsts - (ends - counts), counts)


def plan_histogram(
    sizes: ArrayLike,
    counts: ArrayLike,
    max_length: int,
    *,
    strategy: str = "auto",
    max_sequences: int | None = None,
) -> HistogramPlan:
    """Plans from how often each length occurs; cost and memory follow the number of distinct lengths.

    Args:
        sizes (`[D]`): distinct lengths, ascending, from 1 to `max_length`.
        counts (`[D]`): how many sequences there are of each, at least 1.
        max_length: slots of a pack.
        strategy: `bfd`, `optimal` or `auto`.
        max_sequences: most sequences in a pack.

    Raises:
        PackingError: for lengths out of range or order, or a strategy that looks at single sequences.

    Example: a billion sequences.

        >>> plan = plan_histogram([600, 1000], [6 * 10**8, 4 * 10**8], max_length=2048)
        >>> plan.num_packs, plan.lower_bound
        (400000000, 400000000)
        >>> plan.share(rank=3, num_replicas=10**8)[0].tolist()
        [1000, 1000, 1000, 1000, 600, 600, 600, 600, 600, 600]
    """
    sizes_D, counts_D = (check_lengths(values).astype(np.int64) for values in (sizes, counts))
    if sizes_D.shape != counts_D.shape or (np.diff(sizes_D) <= 0).any() or (counts_D < 1).any():
        raise PackingError("sizes must be distinct and ascending, with one count of at least 1 for each.")
    if sizes_D.size and not 1 <= sizes_D[0] <= sizes_D[-1] <= max_length:
        raise PackingError(
            f"sizes run from {sizes_D[0]} to {sizes_D[-1]}; they must lie within 1 and max_length={max_length}. Cut "
            "or drop longer sequences first."
        )
    counted = LengthHistogram(sizes_D, counts_D)
    if strategy == Strategy.BFD:
        proof = simple_bound(counted, max_length, max_sequences)
        table = pack_quickly(counted, max_length, max_sequences, proof.bound)
    elif strategy in (Strategy.AUTO, Strategy.OPTIMAL):
        steps = AUTO_STEPS if strategy == Strategy.AUTO else OPTIMAL_STEPS
        table, proof = pack_tightly(counted, max_length, max_sequences, steps)
    else:
        raise PackingError(f"strategy={strategy!r} looks at single sequences; choose one of bfd, optimal, auto.")
    return HistogramPlan(max_length=max_length, table=table, certificate=proof)
