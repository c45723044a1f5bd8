"""Slices: pieces of dataset rows, as plans name them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


__all__ = ["Slices"]


class Slices:
    """Pieces `[start, start + length)` of rows, in the order they are wanted; int64 `[P]` each, T tokens in all.

    Example:

        >>> slices = Slices(np.array([4, 1]), np.array([0, 2]), np.array([3, 2]))
        >>> slices.firsts.tolist(), slices.lasts.tolist(), slices.total
        ([0, 3], [2, 4], 5)
        >>> slices.sums(np.array([1, 0, 1, 1, 1])).tolist()
        [2, 2]
    """

    def __init__(self, rows: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.rows, self.starts, self.lengths = rows, starts, lengths
        self._bounds: NDArray[np.int64] | None = None

    @classmethod
    def whole(cls, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> Slices:
        """Rows from their first token on."""
        return cls(rows, np.zeros_like(rows), lengths)

    def __len__(self) -> int:
        return int(self.rows.size)

    def __getitem__(self, some: slice | NDArray[Any]) -> Slices:
        return Slices(self.rows[some], self.starts[some], self.lengths[some])

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Piece p is the tokens bounds[p] : bounds[p + 1] of the T, `[P + 1]`."""
        # No functools.cached_property here: its lock (Python 3.11) does not survive datasets' pickling of functions.
        if self._bounds is None:
            self._bounds = np.zeros(self.lengths.size + 1, dtype=np.int64)
            self.lengths.cumsum(out=self._bounds[1:])
        return self._bounds

    @property
    def ends(self) -> NDArray[np.int64]:
        """One behind the last place of each piece."""
        return self.bounds[1:]

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Place of each piece's first token."""
        return self.bounds[:-1]

    @property
    def lasts(self) -> NDArray[np.int64]:
        """Place of each piece's last token."""
        return self.ends - 1

    @property
    def total(self) -> int:
        """T."""
        return int(self.bounds[-1])

    def sums(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Sum of `values` `[T]` over each piece; a piece without tokens sums to 0."""
        running = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return running[self.ends] - running[self.firsts]
