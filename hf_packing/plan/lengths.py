"""Sequence lengths: checking them, counting them, and what padding them costs.

Shape legend: N sequences, D distinct lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from ..errors import PackingError


__all__ = [
    "LengthHistogram",
    "check_lengths",
    "fill",
    "group_by_size",
    "histogram",
    "occupied_slots",
    "padded_slots",
    "padding_waste",
    "row_blocks",
    "score_counts",
]

IntArray = NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class LengthHistogram:
    """Distinct lengths, ascending, and how often each occurs (int64 `[D]` both)."""

    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def sequences(self) -> int:
        """How many sequences were counted."""
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        """Sum of all lengths."""
        return int(self.sizes @ self.counts)


def check_lengths(lengths: ArrayLike) -> IntArray:
    """The lengths as a 1-D integer array `[N]` without a copy where they are one already.

    Raises:
        PackingError: for anything but whole numbers ≥ 0 in one dimension; names the first bad entry and its value.

    Example:

        >>> check_lengths([3, 0, 2]).tolist()
        [3, 0, 2]
    """
    try:
        array = np.asarray(lengths)
    except ValueError as error:  # ragged lists
        raise PackingError(f"lengths must be a flat list of whole numbers, one a sequence: {error}.") from error
    if array.ndim != 1:
        raise PackingError(
            f"lengths has {array.ndim} dimensions, shape {array.shape}; give one whole number a sequence, shape [N]. "
            "A matrix of token ids is not a list of lengths: use dataset_lengths."
        )
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype == object or array.dtype == np.uint64:
        array = _as_int64(array)
    if not np.issubdtype(array.dtype, np.integer):
        at = _first_fraction(array)
        raise PackingError(
            f"lengths[{at}] is {array[at]!r} ({array.dtype}); a length is a whole number of tokens. "
            "Convert with .astype(int) if the values are exact."
        )
    if array.min() < 0:
        at = int(np.argmax(array < 0))
        raise PackingError(f"lengths[{at}] is {int(array[at])}; a length is at least 0.")
    return array


def _as_int64(array: NDArray) -> NDArray[np.int64]:
    limit = np.iinfo(np.int64).max
    for at, value in enumerate(array.tolist()):
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise PackingError(
                f"lengths[{at}] is {value!r}; a length is a whole number of tokens, not missing or text."
            )
        if value > limit:
            raise PackingError(f"lengths[{at}] is {value}, above the largest int64 {limit}.")
    return array.astype(np.int64)


def _first_fraction(array: NDArray) -> int:
    if not np.issubdtype(array.dtype, np.floating):
        return 0
    with np.errstate(invalid="ignore"):
        odd = array != np.floor(array)
    return int(np.argmax(odd))


def histogram(sizes: IntArray) -> LengthHistogram:
    """Counts the distinct values of `[N]` whole numbers ≥ 0 in one pass.

    Example:

        >>> counted = histogram(np.array([5, 2, 5]))
        >>> counted.sizes.tolist(), counted.counts.tolist()
        ([2, 5], [1, 2])
    """
    if sizes.size == 0:
        return LengthHistogram(np.zeros(0, np.int64), np.zeros(0, np.int64))
    # A table of all values is the fastest count unless the values are far apart (one sequence of a billion tokens).
    if int(sizes.max()) <= _table_limit(sizes):
        table = np.bincount(sizes)
        present = np.flatnonzero(table)
        return LengthHistogram(present.astype(np.int64), table[present].astype(np.int64))
    present, counts = np.unique(sizes, return_counts=True)
    return LengthHistogram(present.astype(np.int64), counts.astype(np.int64))


def group_by_size(sizes: IntArray) -> tuple[LengthHistogram, IntArray]:
    """Counts `[N]` whole numbers ≥ 0 and sorts them, equal ones in input order: one counting sort, O(N + largest).

    Returns:
        the histogram, and the indices `[N]` that sort ascending: group after group, in the histogram's order.

    Example:

        >>> counted, order = group_by_size(np.array([5, 2, 5, 1]))
        >>> counted.sizes.tolist(), counted.counts.tolist(), order.tolist()
        ([1, 2, 5], [1, 1, 2], [3, 1, 0, 2])
    """
    largest = int(sizes.max()) if sizes.size else 0
    if sizes.size >= np.iinfo(np.int32).max or largest > _table_limit(sizes):
        return histogram(sizes), np.argsort(sizes, kind="stable")
    # A row-compressed matrix with one entry a row, in column `size`, turned into its column-compressed form: SciPy
    # does this by counting, and it lists the rows of a column in order. Three times the speed of NumPy's radix sort.
    firsts = np.arange(sizes.size + 1, dtype=np.int32)
    entries = np.ones(sizes.size, dtype=np.int8)
    matrix = csr_array((entries, sizes.astype(np.int32, copy=False), firsts), shape=(sizes.size, largest + 1))
    grouped = matrix.tocsc()
    table = np.diff(grouped.indptr)
    present = np.flatnonzero(table)
    return LengthHistogram(present.astype(np.int64), table[present].astype(np.int64)), grouped.indices


def _table_limit(sizes: IntArray) -> int:
    """Lengths up to this are counted in a table; longer ones would leave it mostly empty."""
    return max(4 * sizes.size, 1 << 20)


def occupied_slots(lengths: IntArray, multiple_of: int) -> IntArray:
    """Slots that sequences occupy when each is filled up to a multiple.

    Example:

        >>> occupied_slots(np.array([5, 8]), 4).tolist()
        [8, 8]
    """
    if multiple_of == 1:
        return lengths
    return -(-lengths.astype(np.int64) // multiple_of) * multiple_of


def fill(lengths: IntArray, slots: int) -> float:
    """Real tokens over slots, η = Σl / slots; 1.0 where there are no slots.

    Example:

        >>> fill(np.array([2048, 512, 256, 128]), 4 * 2048)
        0.359375
    """
    return float(lengths.sum(dtype=np.int64)) / slots if slots else 1.0


def padding_waste(lengths: IntArray, slots: int) -> float:
    """Share of the slots that holds no token, 1 − Σl / slots.

    Example:

        >>> padding_waste(np.array([2048, 512, 256, 128]), 4 * 2048)
        0.640625
    """
    return 1.0 - fill(lengths, slots)


def row_blocks(lengths: IntArray, batch_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and longest length of every batch of `batch_size` consecutive sequences; the last batch may be smaller.

    Example:

        >>> rows, longest = row_blocks(np.array([2, 8, 3, 7, 1]), 2)
        >>> rows.tolist(), longest.tolist()
        ([2, 2, 1], [8, 7, 1])
    """
    if batch_size < 1:
        raise PackingError(f"batch_size={batch_size}; a batch holds at least one sequence.")
    if lengths.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    firsts = np.arange(0, lengths.size, batch_size)
    longest = np.maximum.reduceat(lengths, firsts).astype(np.int64)
    rows = np.minimum(batch_size, lengths.size - firsts).astype(np.int64)
    return rows, longest


def padded_slots(lengths: IntArray, batch_size: int | None = None, row_length: int | None = None) -> int:
    """Slots of padded batches: rows × `row_length` where that is given, else rows × the longest of each batch.

    Example:

        >>> padded_slots(np.array([2, 8, 3, 7]), batch_size=2)
        30
        >>> padded_slots(np.sort([2, 8, 3, 7]), batch_size=2)
        22
        >>> padded_slots(np.array([2048, 512, 256, 128]), row_length=2048)
        8192
    """
    if row_length is not None:
        return int(lengths.size) * row_length
    rows, longest = row_blocks(lengths, batch_size if batch_size is not None else max(1, lengths.size))
    return int(rows @ longest)


def score_counts(lengths: IntArray) -> tuple[float, int]:
    """Attention scores of sequences that see themselves alone: (Σl²/2, Σl²).

    Σl²/2 is what a causal kernel computes, the diagonal counted half; the strict lower triangles have Σl(l−1)/2.

    Example:

        >>> score_counts(np.array([2, 8, 3, 7]))
        (63.0, 126)
    """
    counted = histogram(lengths)
    squares = sum(size * size * count for size, count in zip(counted.sizes.tolist(), counted.counts.tolist()))
    return squares / 2, squares
