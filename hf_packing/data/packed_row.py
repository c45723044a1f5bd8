"""PackedRow: one pack, gathered when its arrays are asked for, or together with the other rows of its batch."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .packs import Packs, places_of
from .slices import Slices
from .source import SequenceSource


__all__ = ["ArrangedPacks", "PackedRow"]


@dataclass(frozen=True, slots=True, eq=False)
class ArrangedPacks:
    """The packs of one epoch over an open dataset."""

    source: SequenceSource
    slices: Slices
    """Pieces in pack order."""
    pack_offsets: NDArray[np.int64]
    """`[P + 1]`: pack p has the pieces pack_offsets[p] : pack_offsets[p + 1]."""
    targets: NDArray[np.int64] | None
    """Targets of the whole sequence each piece was cut from, where any was."""

    def read(self, numbers: Sequence[int], dtype: Any = None) -> Packs:
        """Several packs as flat columns; with `dtype`, ids and labels of that type."""
        places, offsets = places_of(self.pack_offsets, numbers)
        targets = None if self.targets is None else self.targets[places]
        return Packs.read(self.source, self.slices[places], offsets, targets, dtype=dtype)


class PackedRow(MutableMapping[str, NDArray[Any]]):
    """A dict of NumPy arrays that are read when the first of them is asked for; it can be changed like a dict.

    Until then it is a place in a plan, and the collator reads all rows of a batch at once, straight into the batch.
    It is no `dict`, so that Trainer's column remover, which would take `seq_lengths` from it, leaves it alone.
    """

    __slots__ = ("_values", "number", "packs")

    def __init__(self, packs: ArrangedPacks | None, number: int) -> None:
        self.packs, self.number = packs, number
        self._values: dict[str, NDArray[Any]] = {}

    @classmethod
    def of_arrays(cls, values: dict[str, NDArray[Any]], number: int = -1) -> PackedRow:
        """A row that has its arrays already."""
        row = cls(None, number)
        row._values = values
        return row

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The row as a dict, which is the row's own."""
        if self.packs is not None:
            self._values = self.packs.read(range(self.number, self.number + 1)).row(0)
            self.packs = None  # from here on the row is its arrays, which may be changed
        return self._values

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays()[name]

    def __setitem__(self, name: str, values: NDArray[Any]) -> None:
        self.arrays()[name] = values

    def __delitem__(self, name: str) -> None:
        del self.arrays()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays())

    def __len__(self) -> int:
        return len(self.arrays())

    def __repr__(self) -> str:
        return f"PackedRow({self.arrays()!r})"

    def __reduce__(self) -> Any:
        return dict, (self.arrays(),)
