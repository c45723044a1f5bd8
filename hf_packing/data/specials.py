"""SpecialTokens: where BOS and EOS are added, row by row, and where a cut sequence gets its end back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .preparation import Preparation
from .slices import Slices


__all__ = ["SpecialTokens"]


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Which rows of a dataset get a BOS in front and an EOS behind.

    Example:

        >>> tokens = SpecialTokens.plan(Preparation.resolve(ensure_eos=2), np.array([5, 5]), np.array([2, 6]))
        >>> tokens.added().tolist()
        [0, 1]
    """

    preparation: Preparation
    bos: NDArray[np.bool_]
    """`[N]`: rows that a BOS is put in front of."""
    eos: NDArray[np.bool_]
    """`[N]`: rows that an EOS is put behind."""

    @classmethod
    def plan(cls, preparation: Preparation, first: NDArray[np.int64], last: NDArray[np.int64]) -> SpecialTokens:
        """From the first and last token of every row, -1 where a row has none (nothing is added to empty rows)."""
        none = np.zeros(first.size, dtype=bool)
        bos, eos = none, none
        if preparation.ensure_bos is not None:
            bos = (first != preparation.ensure_bos) & (first >= 0)
        if preparation.ensure_eos is not None:
            eos = ~np.isin(last, preparation.eos_ids) & (last >= 0)
        return cls(preparation, bos, eos)

    def added(self) -> NDArray[np.int64]:
        """Tokens added to every row, `[N]`."""
        return self.bos.astype(np.int64) + self.eos

    def placed(self, slices: Slices, row_lengths: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Pieces whose first token is a placed BOS, and those whose last is a placed EOS, bool `[P]` each.

        Placed is what was added to the row, and what takes the place of a token where truncation cut the row's own
        end.
        """
        some = slices.lengths > 0
        bos, eos = np.zeros(len(slices), dtype=bool), np.zeros(len(slices), dtype=bool)
        if self.preparation.ensure_bos is not None:
            cut = (slices.starts > 0) & (self.preparation.overflow == "truncate_left")
            bos = (((slices.starts == 0) & self.bos[slices.rows]) | cut) & some
        if self.preparation.ensure_eos is not None:
            whole = slices.starts + slices.lengths == row_lengths[slices.rows]
            cut = ~whole & (self.preparation.overflow == "truncate")
            eos = ((whole & self.eos[slices.rows]) | cut) & (slices.lengths > bos)
        return bos, eos
