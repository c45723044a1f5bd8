"""Packs as patterns with a multiplicity: the form in which packing a billion sequences is as cheap as packing a few.

Shape legend: K patterns, E entries in all patterns, N sequences, P packs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


__all__ = ["PackTable", "Pattern", "fill_from_table"]

# ((size, how many of it), ...) and in how many packs it occurs.
Pattern = tuple[Sequence[tuple[int, int]], int]


@dataclass(frozen=True, slots=True)
class PackTable:
    """K different packs, each with how often it occurs. Entry e of a pattern is `counts[e]` sequences of `sizes[e]`.

    Example:

        >>> table = PackTable.from_patterns([([(5, 1), (3, 1)], 2), ([(2, 4)], 1)])
        >>> table.num_packs, table.num_sequences
        (3, 8)
    """

    multiplicity: NDArray[np.int64]
    """`[K]`: packs of each pattern."""
    offsets: NDArray[np.int64]
    """`[K + 1]`: pattern k owns the entries offsets[k] : offsets[k + 1]."""
    sizes: NDArray[np.int64]
    """`[E]`: slots one sequence of this entry occupies."""
    counts: NDArray[np.int64]
    """`[E]`: sequences of this entry in one pack."""

    @classmethod
    def from_patterns(cls, patterns: Iterable[Pattern]) -> PackTable:
        """Flattens patterns into arrays, dropping those that occur in no pack."""
        kept = [pattern for pattern in patterns if pattern[1]]
        entries = [entry for pattern, _ in kept for entry in pattern]
        flat = np.array(entries, dtype=np.int64).reshape(-1, 2)
        offsets = np.zeros(len(kept) + 1, dtype=np.int64)
        np.cumsum([len(pattern) for pattern, _ in kept], out=offsets[1:])
        multiplicity = np.array([times for _, times in kept], dtype=np.int64)
        return cls(multiplicity, offsets, flat[:, 0].copy(), flat[:, 1].copy())

    def patterns(self) -> Iterator[Pattern]:
        """The patterns again, with their multiplicity."""
        entries = list(zip(self.sizes.tolist(), self.counts.tolist()))
        offsets = self.offsets.tolist()
        for k, times in enumerate(self.multiplicity.tolist()):
            yield entries[offsets[k] : offsets[k + 1]], times

    @property
    def num_packs(self) -> int:
        """Packs of all patterns."""
        return int(self.multiplicity.sum())

    @property
    def pack_sizes(self) -> NDArray[np.int64]:
        """`[K]`: sequences in one pack of each pattern."""
        return self._per_pattern(self.counts)

    @property
    def pack_slots(self) -> NDArray[np.int64]:
        """`[K]`: slots occupied in one pack of each pattern."""
        return self._per_pattern(self.counts * self.sizes)

    @property
    def num_sequences(self) -> int:
        """Sequences in all packs."""
        return int(self.multiplicity @ self.pack_sizes)

    def _per_pattern(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(values.size + 1, dtype=np.int64)
        np.cumsum(values, out=sums[1:])
        return sums[self.offsets[1:]] - sums[self.offsets[:-1]]


def fill_from_table(
    table: PackTable, order: NDArray[np.integer], group_starts: dict[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Puts sequences into the packs of a table, those of one size in the order given.

    Args:
        table: packs of N sequences in all.
        order (`[N]`): sequences, all of one size side by side.
        group_starts: for each size, where its sequences start in `order`.

    Returns:
        The sequences in pack order, int64 `[N]`; where each pack starts and ends, int64 `[P + 1]`; the sizes in pack
        order, int64 `[N]`.

    Example:

        >>> table = PackTable.from_patterns([([(5, 1), (3, 1)], 2)])
        >>> packed, offsets, sizes = fill_from_table(table, np.array([7, 8, 1, 2]), {3: 0, 5: 2})
        >>> packed.tolist(), offsets.tolist(), sizes.tolist()
        ([1, 7, 2, 8], [0, 2, 4], [5, 3, 5, 3])
    """
    pack_sizes = table.pack_sizes
    offsets = np.zeros(table.num_packs + 1, dtype=np.int64)
    np.cumsum(np.repeat(pack_sizes, table.multiplicity), out=offsets[1:])
    packed = np.empty(int(offsets[-1]), dtype=np.int64)
    packed_sizes = np.empty_like(packed)
    cursor = dict(group_starts)
    sizes, counts, entry_offsets = table.sizes.tolist(), table.counts.tolist(), table.offsets.tolist()
    size_rows = np.repeat(table.sizes, table.counts)  # the sizes in one pack of each pattern, end to end
    begin = row = 0
    # One strided copy an entry. For two packs [a b b] the block of packed is [[a0 b0 b1], [a1 b2 b3]]: column 0 takes
    # two sequences of size a, columns 1:3 take four of size b, row by row.
    for k, (times, pack_size) in enumerate(zip(table.multiplicity.tolist(), pack_sizes.tolist())):
        end = begin + times * pack_size
        block = packed[begin:end].reshape(times, pack_size)
        packed_sizes[begin:end].reshape(times, pack_size)[:] = size_rows[row : row + pack_size]
        row += pack_size
        column = 0
        for e in range(entry_offsets[k], entry_offsets[k + 1]):
            count = counts[e]
            first = cursor[sizes[e]]
            last = cursor[sizes[e]] = first + times * count
            block[:, column : column + count] = order[first:last].reshape(times, count)
            column += count
        begin = end
    return packed, offsets, packed_sizes
