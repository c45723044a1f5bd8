"""Exact duplicates: the same tokens twice teach the same thing twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .slices import Slices


__all__ = ["find_duplicates"]


def find_duplicates(sequences: Iterable[tuple[Slices, NDArray[Any]]], total: int) -> NDArray[np.bool_]:
    """Marks every sequence whose tokens are those of an earlier one.

    Tokens are compared by a 128-bit BLAKE2b digest (16 bytes a sequence are held); empty sequences are no duplicates.

    Args:
        sequences: spans of consecutive sequences, as `SequenceSource.iter_ids` gives them.
        total: sequences in all.

    Returns:
        bool `[total]`.

    Example:

        >>> slices = Slices.whole(np.array([0, 1, 2]), np.array([2, 1, 2]))
        >>> find_duplicates([(slices, np.array([5, 6, 5, 5, 6]))], 3).tolist()
        [False, False, True]
    """
    digests = np.zeros((total, 2), dtype=np.uint64)
    empty = np.zeros(total, dtype=bool)
    for slices, ids in sequences:
        tokens = np.ascontiguousarray(ids, dtype="<i8").data.cast("B")
        ends = (slices.ends * 8).tolist()
        digested = bytearray()
        for first, last in zip([0, *ends], ends):
            digested += hashlib.blake2b(tokens[first:last], digest_size=16).digest()
        digests[slices.rows] = np.frombuffer(bytes(digested), dtype=np.uint64).reshape(-1, 2)
        empty[slices.rows] = slices.lengths == 0
    order = np.lexsort((np.arange(total), digests[:, 1], digests[:, 0]))
    ordered = digests[order]
    repeated = np.zeros(total, dtype=bool)
    # Sorted digests [a, a, b]: the second a is a copy of the one before it, and stands later in the dataset.
    repeated[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return repeated & ~empty
