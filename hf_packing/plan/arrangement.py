"""The order in which pieces fill packs: what every packer hands back, and shuffling it without breaking a pack.

Shape legend: M pieces, P packs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .lengths import IntArray, LengthHistogram, sort_by_length
from .table import PackTable, fill_from_table


__all__ = ["Arrangement", "arrange_table", "shuffle_packs"]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`pieces` `[M]` in pack order; pack i holds pieces[offsets[i] : offsets[i + 1]], offsets being `[P + 1]`."""

    pieces: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def followed_by_singles(self, pieces: NDArray[np.int64]) -> Arrangement:
        """With one more pack for each of the given pieces."""
        singles = self.offsets[-1] + 1 + np.arange(pieces.size)
        return Arrangement(np.concatenate([self.pieces, pieces]), np.concatenate([self.offsets, singles]))


def arrange_table(
    table: PackTable, counted: LengthHistogram, sizes: IntArray, rng: np.random.Generator | None = None
) -> Arrangement:
    """Puts pieces into the packs of a table: those of one size in their order, or at random.

    Args:
        table: packs for exactly the sizes counted.
        counted: `sizes`, counted.
        sizes (`[M]`): slots of each piece.
        rng: decides which of the pieces of one size goes where.
    """
    if rng is None:
        order = sort_by_length(sizes)
    else:
        shuffled = rng.permutation(sizes.size)
        order = shuffled[sort_by_length(sizes[shuffled])]
    firsts = (np.cumsum(counted.counts) - counted.counts).tolist()
    return Arrangement(*fill_from_table(table, order, dict(zip(counted.sizes.tolist(), firsts))))


def shuffle_packs(arrangement: Arrangement, rng: np.random.Generator) -> Arrangement:
    """The same packs in random order.

    Example:

        >>> mixed = shuffle_packs(Arrangement(np.array([4, 5, 6]), np.array([0, 2, 3])), np.random.default_rng(1))
        >>> sorted(np.split(mixed.pieces, mixed.offsets[1:-1]), key=len)
        [array([6]), array([4, 5])]
    """
    number = np.diff(arrangement.offsets)
    packs = rng.permutation(number.size)
    offsets = np.zeros_like(arrangement.offsets)
    np.cumsum(number[packs], out=offsets[1:])
    # Packs [4 5] [6] in the order 1, 0: offsets become [0 1 3], the packs came from 2 and 0, so the slots 0, 1, 2 read
    # from 0 + (2 - 0), 1 + (0 - 1), 2 + (0 - 1) = 2, 0, 1.
    came_from = np.repeat(arrangement.offsets[packs] - offsets[:-1], number[packs])
    came_from += np.arange(came_from.size)
    return Arrangement(arrangement.pieces[came_from], offsets)
