"""Sequence lengths: checking, counting and sorting them.

Shape legend: N sequences, D distinct lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from ..errors import PackingError


__all__ = ["IntArray", "LengthHistogram", "check_lengths", "group_by_size", "histogram", "occupied_slots"]

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
