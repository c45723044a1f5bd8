"""The order in which pieces fill packs: what every packer hands back, and shuffling it without breaking a pack.

Shape legend: M pieces, P packs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .lengths import IntArray, LengthHistogram
from .table import PackTable, fill_from_table


__all__ = ["Arrangement", "arrange_table", "shuffle_packs"]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`pieces` `[M]` in pack order; pack i holds pieces[offsets[i] : offsets[i + 1]], offsets being `[P + 1]`.

    `slots` `[M]`, the slots of each piece in pack order, where the packer knows them anyway.
    """

    pieces: NDArray[np.int64]
    offsets: NDArray[np.int64]
    slots: NDArray[np.int64] | None = None

    def among(self, pieces: NDArray[np.int64], alone: NDArray[np.int64]) -> Arrangement:
        """The same packs where piece i is one of many, pieces[i], and one more pack for each piece alone."""
        singles = self.offsets[-1] + 1 + np.arange(alone.size)
        return Arrangement(np.concatenate([pieces[self.pieces], alone]), np.concatenate([self.offsets, singles]))


def arrange_table(table: PackTable, counted: LengthHistogram, order: IntArray) -> Arrangement:
    """Puts pieces into the packs of a table, those of one size in the order given.

    Args:
        table: packs for exactly the sizes counted.
        counted: how many pieces there are of each size.
        order (`[M]`): the pieces, size after size as counted.
    """
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
    slots = None if arrangement.slots is None else arrangement.slots[came_from]
    return Arrangement(arrangement.pieces[came_from], offsets, slots)
