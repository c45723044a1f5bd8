"""Where every sequence of a batch lies: which slots are real tokens, which are filler, which are trailing pads.

Shape legend: S real sequences, G segments (S plus one segment of pads a row that has any), B rows of L slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


__all__ = ["BatchLayout"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLayout:
    """The segments of one batch, in slot order; together they cover every one of the B·L slots exactly once."""

    segments: NDArray[np.int64]
    """`[G]`: slots of each segment, filler included."""
    real: NDArray[np.int64]
    """`[G]`: real tokens at the start of each segment; 0 marks a segment of trailing pads."""
    rows: int
    """B."""
    row_length: int
    """L."""

    @classmethod
    def flat(cls, lengths: NDArray[np.int64], *, multiple_of: int, pad_to_multiple_of: int) -> BatchLayout:
        """One row that holds all sequences, pads as one last segment.

        Example:

            >>> layout = BatchLayout.flat(np.array([3, 5]), multiple_of=4, pad_to_multiple_of=16)
            >>> layout.segments.tolist(), layout.real.tolist(), layout.row_length
            ([4, 8, 4], [3, 5, 0], 16)
        """
        filled = round_up(lengths, multiple_of)
        total = int(filled.sum())
        row_length = int(round_up(total, pad_to_multiple_of))
        if row_length == total:
            return cls(segments=filled, real=lengths, rows=1, row_length=row_length)
        return cls(
            segments=np.append(filled, row_length - total), real=np.append(lengths, 0), rows=1, row_length=row_length
        )

    @classmethod
    def stacked(
        cls, lengths: NDArray[np.int64], counts: NDArray[np.int64], *, multiple_of: int, pad_to_multiple_of: int
    ) -> BatchLayout:
        """B rows of equal length, each with its own trailing pads; `counts[b]` sequences lie in row b.

        Example:

            >>> lengths, counts = np.array([3, 2, 4]), np.array([2, 1])
            >>> layout = BatchLayout.stacked(lengths, counts, multiple_of=1, pad_to_multiple_of=1)
            >>> layout.segments.tolist(), layout.real.tolist(), (layout.rows, layout.row_length)
            ([3, 2, 4, 1], [3, 2, 4, 0], (2, 5))
        """
        filled = round_up(lengths, multiple_of)
        # counts [2, 1] of filled [3, 2, 4]: the rows end behind sequences [2, 3] and hold [5, 4] slots.
        ends_B = np.cumsum(counts)
        totals_B = np.add.reduceat(filled, ends_B - counts)
        row_length = int(round_up(int(totals_B.max()), pad_to_multiple_of))
        short_B = totals_B < row_length
        return cls(
            segments=np.insert(filled, ends_B[short_B], (row_length - totals_B)[short_B]),
            real=np.insert(lengths, ends_B[short_B], 0),
            rows=counts.size,
            row_length=row_length,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(B, L)."""
        return self.rows, self.row_length

    @property
    def is_dense(self) -> bool:
        """Whether the real tokens lie side by side from slot 0 on (then placing them is one copy)."""
        return self.rows == 1 and bool((self.segments[: self.num_sequences] == self.real[: self.num_sequences]).all())

    @property
    def num_sequences(self) -> int:
        """S."""
        return int(np.count_nonzero(self.real))

    def starts(self) -> NDArray[np.int64]:
        """First slot of every real sequence, `[S]`, counted over the flattened B·L slots."""
        return (np.cumsum(self.segments) - self.segments)[self.real > 0]

    def lengths(self) -> NDArray[np.int64]:
        """Real tokens of every real sequence, `[S]`."""
        return self.real[self.real > 0]

    def slots(self) -> NDArray[np.int64]:
        """Slot of every real token, in order, `[tokens]`.

        Example:

            >>> BatchLayout.flat(np.array([3, 2]), multiple_of=4, pad_to_multiple_of=1).slots().tolist()
            [0, 1, 2, 4, 5]
        """
        # real [3, 2] in segments [4, 4]: tokens 0..4 move by [0, 0, 0, 1, 1], the filler in front of their sequence.
        filler_G = self.segments - self.real
        shift_G = np.cumsum(filler_G) - filler_G
        return np.arange(int(self.real.sum()), dtype=np.int64) + np.repeat(shift_G, self.real)


def round_up(value: Any, multiple: int) -> Any:
    """The next multiple of `multiple`."""
    return value if multiple == 1 else -(-value // multiple) * multiple
