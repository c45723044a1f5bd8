"""FlatRows: the rows of a batch as flat columns, one sequence behind the other.

Shape legend: R rows, S sequences in them, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PackingError
from .packed_row import PackedRow
from .rows import Row, read_row


__all__ = ["FlatRows"]

_PLAIN_KEYS = frozenset({"input_ids", "labels", "seq_lengths", "sequence_ids", "sequence_targets"})


@dataclass(frozen=True, slots=True)
class FlatRows:
    """The real tokens of a batch; every array is freshly allocated."""

    input_ids: NDArray[np.int64]
    """`[T]`."""
    labels: NDArray[np.int64] | None
    """`[T]`."""
    lengths: NDArray[np.int64]
    """`[S]`: each at least 1."""
    counts: NDArray[np.int64]
    """`[R]`: sequences in each row, each at least 1."""
    sequence_ids: NDArray[np.int64]
    """`[S]`: -1 where unknown."""
    sequence_targets: NDArray[np.int64]
    """`[S]`: -1 where unknown."""
    aligned: dict[str, NDArray[Any]]
    """Further columns that every row has, `[T, ...]`."""

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, Any]]) -> FlatRows:
        """Packed and plain rows, checked; rows without a token are left out.

        Raises:
            PackingError: see `read_row`; no rows, only empty ones, or labels in some rows only.

        Example:

            >>> flat = FlatRows.read([{"input_ids": [7, 8, 9]}, {"input_ids": [4, 5, 6], "seq_lengths": [2, 1]}])
            >>> flat.lengths.tolist(), flat.counts.tolist()
            ([3, 2, 1], [1, 2])
        """
        if not len(rows):
            raise PackingError(
                "No rows to collate; a batch needs at least one. Check the sampler and the dataset's length."
            )
        if (flat := cls._of_places(rows)) is not None:
            return flat
        given = [row.arrays() if isinstance(row, PackedRow) else row for row in rows]
        return cls._of_packed(given) or cls._of_any(given)

    @classmethod
    def _of_places(cls, rows: Sequence[Mapping[str, Any]]) -> FlatRows | None:
        """Rows of a `PackedDataset` that nobody has looked into yet, straight from its buffers."""
        places = [row for row in rows if isinstance(row, PackedRow)]
        packs = places[0].packs if places else None
        if packs is None or len(places) < len(rows) or any(row.packs is not packs for row in places):
            return None
        read = packs.read([row.number for row in places], np.int64)
        columns = {
            name: values.astype(np.int64, copy=False) if values.dtype.kind in "iub" else values
            for name, values in read.columns.items()
        }
        return cls(
            input_ids=columns.pop("input_ids"),
            labels=columns.pop("labels"),
            lengths=read.seq_lengths,
            counts=np.diff(read.length_offsets),
            sequence_ids=read.per_length("sequence_ids"),
            sequence_targets=read.per_length("sequence_targets"),
            aligned=columns,
        )

    @classmethod
    def _of_packed(cls, rows: Sequence[Mapping[str, Any]]) -> FlatRows | None:
        """Packed rows of NumPy arrays, as our datasets give them, all columns at once; None for everything else."""
        keys = rows[0].keys()
        if "seq_lengths" not in keys or not keys <= _PLAIN_KEYS:
            return None
        if any(row.keys() != keys for row in rows):
            return None
        columns = {name: [row[name] for row in rows] for name in keys}
        for column in columns.values():
            if {type(values) for values in column} != {np.ndarray} or {values.ndim for values in column} != {1}:
                return None
            if {values.dtype.kind for values in column} != {"i"}:
                return None
        flat = {name: np.concatenate(column, dtype=np.int64) for name, column in columns.items()}
        tokens = [values.size for values in columns["input_ids"]]
        counts = np.array([values.size for values in columns["seq_lengths"]], dtype=np.int64)
        lengths = flat["seq_lengths"]
        # What is unusual, or wrong, goes the careful way and gets its message there.
        if not counts.all() or not lengths.size or lengths.min() < 1:
            return None
        if np.add.reduceat(lengths, np.cumsum(counts) - counts).tolist() != tokens:
            return None
        numbers = [flat.get(name) for name in ("sequence_ids", "sequence_targets")]
        known = [np.full(lengths.size, -1) if values is None else values for values in numbers]
        labels = flat.get("labels")
        if any(values.size != lengths.size for values in known) or (
            labels is not None and [values.size for values in columns["labels"]] != tokens
        ):
            return None
        return cls(flat["input_ids"], labels, lengths, counts, known[0], known[1], {})

    @classmethod
    def _of_any(cls, rows: Sequence[Mapping[str, Any]]) -> FlatRows:
        # Rows without a token (empty documents) have no segment: a repeated offset would break varlen kernels.
        read = [row for number, given in enumerate(rows) if (row := read_row(given, number)).lengths.size]
        if not read:
            raise PackingError(f"All {len(rows)} rows of the batch are empty; drop empty sequences before batching.")
        labelled = [row.labels is not None for row in read]
        if any(labelled) and not all(labelled):
            raise PackingError(
                f"Row {labelled.index(False)} of the batch (empty rows left out) has no labels, row "
                f"{labelled.index(True)} has; give labels (or a mask) to all rows or to none."
            )
        names = [name for name in read[0].aligned if all(name in row.aligned for row in read[1:])]
        return cls(
            input_ids=_whole_numbers([row.input_ids for row in read]),
            labels=_whole_numbers([row.labels for row in read]) if all(labelled) else None,
            lengths=np.concatenate([row.lengths for row in read]),
            counts=np.array([row.lengths.size for row in read], dtype=np.int64),
            sequence_ids=_numbers([row.sequence_ids for row in read], read),
            sequence_targets=_numbers([row.sequence_targets for row in read], read),
            aligned={name: _joined(name, [row.aligned[name] for row in read]) for name in names},
        )


def _whole_numbers(columns: list[Any]) -> NDArray[np.int64]:
    return np.concatenate(columns, dtype=np.int64, casting="unsafe")


def _joined(name: str, columns: list[NDArray[Any]]) -> NDArray[Any]:
    shapes = sorted({column.shape[1:] for column in columns})
    if len(shapes) > 1:
        raise PackingError(
            f"Column {name!r} has entries of different shapes in one batch ({shapes}); make them equal, or remove the "
            "column."
        )
    joined = np.concatenate(columns)
    return joined.astype(np.int64) if joined.dtype.kind in "iub" else joined


def _numbers(columns: list[NDArray[np.int64] | None], read: list[Row]) -> NDArray[np.int64]:
    return np.concatenate(
        [np.full(row.lengths.size, -1) if column is None else column for column, row in zip(columns, read)]
    )
