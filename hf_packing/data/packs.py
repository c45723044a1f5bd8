"""Packs: a run of packed rows as flat columns, on its way to NumPy rows or to an Arrow table.

Shape legend: R packs, P pieces in them, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .rows import IGNORE_INDEX
from .slices import Slices
from .source import SequenceSource


__all__ = ["Packs", "as_pack_numbers", "needs_64_bits", "places_of", "split_targets"]

_MOST_IN_32_BITS = 2**31 - 1
"""Largest offset of an Arrow list column; lists with more values below them need 64-bit offsets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packs:
    """Packed rows: `columns` hold one value a token, the others one value a sequence."""

    columns: dict[str, NDArray[Any]]
    """`[T]` each: input_ids, labels, and the columns packed along."""
    token_offsets: NDArray[np.int64]
    """`[R + 1]`: pack r is the tokens token_offsets[r] : token_offsets[r + 1]."""
    seq_lengths: NDArray[np.int64]
    """`[S]`: tokens of each sequence; without isolation one a pack."""
    length_offsets: NDArray[np.int64]
    """`[R + 1]`: where the sequences of each pack begin among `seq_lengths`."""
    numbers: dict[str, NDArray[np.int64]]
    """`[P]` each: sequence_ids, and sequence_targets where sequences are split."""
    number_offsets: NDArray[np.int64]
    """`[R + 1]`: where the pieces of each pack begin among `numbers`."""

    @classmethod
    def read(
        cls,
        source: SequenceSource,
        slices: Slices,
        pack_offsets: NDArray[np.int64],
        sequence_targets: NDArray[np.int64] | None = None,
        *,
        with_ids: bool = True,
        dtype: Any = None,
    ) -> Packs:
        """Gathers pieces `slices`, of which pack r has pack_offsets[r] : pack_offsets[r + 1]; ids as `dtype`.

        Example:

            >>> source = SequenceSource(pa.table({"input_ids": [[5, 6, 7], [8, 9]]}))
            >>> slices = Slices.whole(np.array([1, 0]), np.array([2, 3]))
            >>> packs = Packs.read(source, slices, np.array([0, 2]))
            >>> {name: values.tolist() for name, values in packs.row(0).items()}  # doctest: +NORMALIZE_WHITESPACE
            {'input_ids': [8, 9, 5, 6, 7], 'labels': [-100, 9, -100, 6, 7], 'seq_lengths': [2, 3],
             'sequence_ids': [1, 0]}
        """
        columns = source.read(slices, dtype)
        # Pieces of [2, 3, 4] tokens in packs [0, 2, 3]: offsets of the tokens are [0, 5, 9].
        token_offsets = slices.bounds[pack_offsets]
        if source.preparation.isolate:
            seq_lengths, length_offsets = slices.lengths, pack_offsets
        else:
            seq_lengths, length_offsets = np.diff(token_offsets), np.arange(pack_offsets.size)
            columns["labels"][token_offsets[:-1]] = IGNORE_INDEX
        numbers = {"sequence_ids": slices.rows} if with_ids else {}
        if sequence_targets is not None:
            numbers["sequence_targets"] = sequence_targets
        return cls(
            columns=columns,
            token_offsets=token_offsets,
            seq_lengths=seq_lengths,
            length_offsets=length_offsets,
            numbers=numbers,
            number_offsets=pack_offsets,
        )

    def __len__(self) -> int:
        return int(self.token_offsets.size - 1)

    def row(self, number: int) -> dict[str, NDArray[Any]]:
        """One packed row as NumPy arrays (views)."""
        tokens = slice(int(self.token_offsets[number]), int(self.token_offsets[number + 1]))
        lengths = slice(int(self.length_offsets[number]), int(self.length_offsets[number + 1]))
        pieces = slice(int(self.number_offsets[number]), int(self.number_offsets[number + 1]))
        row = {name: values[tokens] for name, values in self.columns.items()}
        row["seq_lengths"] = self.seq_lengths[lengths]
        for name, values in self.numbers.items():
            row[name] = values[pieces]
        return row

    def per_length(self, name: str) -> NDArray[np.int64]:
        """One of `numbers` for each of `seq_lengths`; -1 where unknown, as in continuous text of several sequences."""
        numbers = self.numbers.get(name)
        if numbers is None:
            return np.full(self.seq_lengths.size, -1)
        if numbers.size == self.seq_lengths.size:
            return numbers
        alone = np.diff(self.number_offsets) == 1
        return np.where(alone, numbers[self.number_offsets[:-1]], -1)

    def to_table(self, *, wide: bool = False) -> pa.Table:
        """An Arrow table of list columns; 64-bit offsets where the values need them, or everywhere with `wide`."""
        arrays = {name: _list_array(values, self.token_offsets, wide) for name, values in self.columns.items()}
        arrays["seq_lengths"] = _list_array(self.seq_lengths, self.length_offsets, False)
        for name, numbers in self.numbers.items():
            arrays[name] = _list_array(numbers, self.number_offsets, False)
        return pa.table(arrays)


def needs_64_bits(largest: int) -> bool:
    """Whether lists with this many values below them need 64-bit offsets.

    Example:

        >>> needs_64_bits(2**31 - 1), needs_64_bits(2**31)
        (False, True)
    """
    return largest > _MOST_IN_32_BITS


def _list_array(values: NDArray[Any], offsets: NDArray[np.int64], wide: bool) -> pa.Array:
    if wide or needs_64_bits(int(offsets[-1])):
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def places_of(pack_offsets: NDArray[np.int64], packs: Any) -> tuple[Any, NDArray[np.int64]]:
    """Where the pieces of some packs stand in the arrays of a plan, and the offsets of the packs among those pieces.

    Args:
        pack_offsets (`[P + 1]`): of the plan.
        packs: pack numbers, ≥ 0; a range of step 1 gives a slice, which is read without a copy.

    Example:

        >>> places, offsets = places_of(np.array([0, 2, 3]), [1, 0])
        >>> places.tolist(), offsets.tolist()
        ([2, 0, 1], [0, 1, 3])
        >>> places_of(np.array([0, 2, 3]), range(1, 2))
        (slice(2, 3, None), array([0, 1]))
    """
    if isinstance(packs, range) and packs.step == 1 and len(packs):
        first = int(pack_offsets[packs.start])
        return slice(first, int(pack_offsets[packs.stop])), pack_offsets[packs.start : packs.stop + 1] - first
    numbers = np.asarray(packs, dtype=np.int64)
    if not numbers.size:
        return slice(0, 0), pack_offsets[:1]
    firsts, lasts = pack_offsets[numbers], pack_offsets[numbers + 1]
    places = np.concatenate([np.arange(a, b) for a, b in zip(firsts.tolist(), lasts.tolist())])
    return places, np.concatenate([[0], np.cumsum(lasts - firsts)])


def split_targets(source: SequenceSource, slices: Slices) -> NDArray[np.int64] | None:
    """Targets of the whole sequence each piece was cut from, int64 `[P]`; -1 for pieces that are all of theirs.

    The targets of a split sequence are those of its packed pieces together, so that the weights
    targets(piece) / targets(sequence) of one sequence add up to 1. None where no sequence is split.

    Example:

        >>> source = SequenceSource(pa.table({"input_ids": [[1, 2, 3, 4, 5], [6, 7]]}))
        >>> split_targets(source, Slices(np.array([0, 1, 0]), np.array([0, 0, 3]), np.array([3, 2, 2]))).tolist()
        [3, -1, 3]
    """
    if not len(slices):
        return None
    counts = np.bincount(slices.rows)
    pieces = np.flatnonzero(counts[slices.rows] > 1)
    if not pieces.size:
        return None
    rows = slices.rows[pieces]
    targets = source.count_targets(rows, slices.starts[pieces], slices.lengths[pieces])
    totals = np.bincount(rows, weights=targets, minlength=counts.size).astype(np.int64)
    result = np.full(len(slices), -1, dtype=np.int64)
    result[pieces] = totals[rows]
    return result


def as_pack_numbers(key: Any, total: int) -> Sequence[int]:
    """Pack numbers of a slice or a list, negative ones counted from the end.

    Example:

        >>> list(as_pack_numbers(slice(1, None), 3)), as_pack_numbers([-1, 0], 3)
        ([1, 2], [2, 0])
    """
    if isinstance(key, slice):
        return range(*key.indices(total))
    numbers = [int(number) for number in key]
    for number in numbers:
        if not -total <= number < total:
            raise IndexError(f"Pack {number} is out of range; the plan has {total} packs.")
    return [number + total if number < 0 else number for number in numbers]
