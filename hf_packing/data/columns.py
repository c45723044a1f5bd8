"""Token columns of a dataset as NumPy views over its Arrow buffers: no token is copied until it is asked for.

Shape legend: N rows of the dataset, P pieces that are asked for, T tokens in all of them.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset, is_caching_enabled
from datasets.fingerprint import get_temporary_cache_files_directory
from numpy.typing import NDArray

from ..errors import PackingError
from .slices import Slices


__all__ = [
    "TokenColumn",
    "cache_file",
    "dataset_fingerprint",
    "dataset_lengths",
    "is_token_column",
    "row_order",
    "table_of",
]


def dataset_lengths(dataset: Dataset, column: str = "input_ids") -> NDArray[np.int64]:
    """Tokens of every row, read off the Arrow offsets: no token is touched, whatever the size of the dataset.

    Args:
        dataset: a `datasets.Dataset`; sliced, filtered, shuffled, concatenated, and formatted ones alike.
        column: the list column to measure.

    Returns:
        int64 `[N]`.

    Raises:
        PackingError: no such column, a column that is not a list of numbers, or a row without a value.

    Example:

        >>> dataset = Dataset.from_dict({"input_ids": [[5, 6, 7], [8], []]})
        >>> dataset_lengths(dataset).tolist()
        [3, 1, 0]
    """
    return TokenColumn.of_dataset(dataset, column).lengths


class TokenColumn:
    """One list column, addressed by dataset row; `lengths` is int64 `[N]`.

    Example:

        >>> column = TokenColumn("input_ids", pa.chunked_array([[[5, 6, 7], [8]], [[9, 4]]]))
        >>> column.lengths.tolist()
        [3, 1, 2]
        >>> column.gather(Slices(np.array([2, 0]), np.array([0, 1]), np.array([2, 2]))).tolist()
        [9, 4, 6, 7]
    """

    def __init__(self, name: str, chunks: pa.ChunkedArray, order: NDArray[np.int64] | None = None) -> None:
        _check_type(name, chunks.type)
        self.name = name
        self._values: list[NDArray[Any]] = []
        starts, lengths, rows = [], [], [0]
        for chunk in chunks.chunks:
            if len(chunk) == 0:
                continue
            _check_nulls(name, chunk, rows[-1], order)
            offsets = _offsets(chunk)
            self._values.append(_flat_values(name, chunk, offsets, rows[-1], order))
            starts.append(offsets[:-1])
            lengths.append(np.diff(offsets))
            rows.append(rows[-1] + len(chunk))
        empty = np.empty(0, dtype=np.int64)
        starts_N = np.concatenate(starts) if starts else empty
        lengths_N = np.concatenate(lengths) if lengths else empty
        chunk_N = np.repeat(np.arange(len(self._values), dtype=np.int32), np.diff(rows))
        if order is not None:
            starts_N, lengths_N, chunk_N = starts_N[order], lengths_N[order], chunk_N[order]
        self.lengths: NDArray[np.int64] = lengths_N
        self._starts = starts_N
        self._chunk = chunk_N if len(self._values) > 1 else None
        if not self._values:
            self._values.append(np.empty(0, dtype=_numpy_type(chunks.type)))

    @classmethod
    def of_dataset(cls, dataset: Dataset, name: str) -> TokenColumn:
        """The column of a dataset, in the order of its rows."""
        table = table_of(dataset)
        if name not in table.column_names:
            raise PackingError(
                f"The dataset has no column {name!r} (its columns: {sorted(table.column_names)}); tokenise it first, "
                "or name the column that holds the token ids."
            )
        return cls(name, table.column(name), row_order(dataset))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one value."""
        return self._values[0].dtype

    def everything(self) -> NDArray[Any]:
        """All rows one after the other, freshly allocated."""
        return self.gather(Slices.whole(np.arange(self.lengths.size), self.lengths))

    def gather(self, slices: Slices, dtype: Any = None) -> NDArray[Any]:
        """The pieces one after the other, by default in the stored type: `[T]`, freshly allocated."""
        rows = slices.rows
        if rows.size == 0:
            return np.empty(0, dtype=dtype or self.dtype)
        first_P = self._starts[rows] + slices.starts
        last_P = (first_P + slices.lengths).tolist()
        # One slice (a view) a piece and one concatenation: memory is read once, in runs as long as the pieces.
        if self._chunk is None:
            values = self._values[0]
            return np.concatenate([values[a:b] for a, b in zip(first_P.tolist(), last_P)], dtype=dtype)
        chunks = self._values
        return np.concatenate(
            [chunks[c][a:b] for c, a, b in zip(self._chunk[rows].tolist(), first_P.tolist(), last_P)]
        )


def table_of(dataset: Dataset) -> pa.Table:
    """The Arrow table below a dataset, before its row order is applied."""
    if isinstance(dataset, IterableDataset):
        raise PackingError(
            "An IterableDataset has no table to plan over; use PackedStream, or map PackingTransform over it with a "
            "finite batch_size."
        )
    if not isinstance(dataset, Dataset):
        raise PackingError(
            f"Expected a datasets.Dataset, got {type(dataset).__name__}; build one with Dataset.from_dict."
        )
    if dataset.format["type"] == "custom":
        raise PackingError(
            "The dataset computes its rows on access (with_transform); packing reads what is stored. Use dataset.map "
            "to store the tokens."
        )
    return dataset.data.table


def row_order(dataset: Dataset) -> NDArray[np.int64] | None:
    """Table row of every dataset row, or None where they are the same.

    `select`, `shuffle`, `filter` and `sort` keep the table and put an index before it; datasets has no public name for
    it, and its public way (`flatten_indices`) copies every token.
    """
    indices = dataset._indices
    return None if indices is None else indices.column(0).to_numpy().astype(np.int64, copy=False)


def dataset_fingerprint(dataset: Dataset) -> str:
    """The identity `datasets` keys its cache with: content and every step applied so far."""
    return str(dataset._fingerprint)


def cache_file(dataset: Dataset, fingerprint: str) -> str | None:
    """Where `datasets.map` would keep a result of this dataset: beside its own files, or None for one in memory."""
    if not dataset.cache_files:
        return None
    if is_caching_enabled():
        return os.path.join(os.path.dirname(dataset.cache_files[0]["filename"]), f"cache-{fingerprint}.arrow")
    return os.path.join(get_temporary_cache_files_directory(), f"cache-{uuid.uuid4().hex}.arrow")


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _check_type(name: str, kind: pa.DataType) -> None:
    if not _is_list(kind):
        raise PackingError(
            f"Column {name!r} holds {kind}, not lists of numbers; packing works on token ids. Tokenise the "
            "dataset first."
        )
    if _is_list(kind.value_type):
        raise PackingError(
            f"Column {name!r} holds lists of lists ({kind}); one row is one sequence. Tokenise without "
            "return_tensors, or take the inner list."
        )
    if not _is_numeric(kind.value_type) and not pa.types.is_null(kind.value_type):
        raise PackingError(
            f"Column {name!r} holds lists of {kind.value_type}, not of numbers; tokenise the text first."
        )


def is_token_column(kind: pa.DataType) -> bool:
    """Whether a column of this type can hold one number a token."""
    return _is_list(kind) and _is_numeric(kind.value_type)


def _dataset_row(table_row: int, order: NDArray[np.int64] | None) -> int | None:
    if order is None:
        return table_row
    found = np.flatnonzero(order == table_row)
    return int(found[0]) if found.size else None


def _check_nulls(name: str, chunk: pa.Array, first_row: int, order: NDArray[np.int64] | None) -> None:
    if chunk.null_count == 0:
        return
    null_rows = first_row + np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False))
    if order is not None:
        null_rows = np.flatnonzero(np.isin(order, null_rows))
    if null_rows.size:
        raise PackingError(
            f"Column {name!r}, row {int(null_rows[0])} is null ({null_rows.size} such rows or more); drop them first, "
            f"for example with dataset.filter(lambda row: row[{name!r}] is not None)."
        )


def _offsets(chunk: pa.Array) -> NDArray[np.int64]:
    """Where each row of a chunk begins in its flat values, `[rows + 1]`."""
    if pa.types.is_fixed_size_list(chunk.type):
        width = chunk.type.list_size
        return (np.arange(len(chunk) + 1, dtype=np.int64) + chunk.offset) * width
    return chunk.offsets.to_numpy(zero_copy_only=False).astype(np.int64)


def _numpy_type(kind: pa.DataType) -> Any:
    value = kind.value_type
    return np.int64 if pa.types.is_null(value) else value.to_pandas_dtype()


def _flat_values(
    name: str, chunk: pa.Array, offsets: NDArray[np.int64], first_row: int, order: NDArray[np.int64] | None
) -> NDArray[Any]:
    """All values below a chunk as a NumPy view; `offsets` index into it."""
    values = chunk.values
    if pa.types.is_null(values.type):
        values = values.slice(0, 0).cast(pa.int64()) if offsets[-1] == offsets[0] else values
    used = values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    if used.null_count:
        at = int(np.flatnonzero(used.is_null().to_numpy(zero_copy_only=False))[0] + offsets[0])
        row = _dataset_row(first_row + int(np.searchsorted(offsets, at, side="right")) - 1, order)
        if row is not None:
            raise PackingError(
                f"Column {name!r}, row {row} holds a null among its tokens; every token needs a value. Fix the row or "
                "drop it."
            )
        values = values.fill_null(0)
    # Booleans are stored as bits and have no view.
    return values.to_numpy(zero_copy_only=not pa.types.is_boolean(values.type) and values.null_count == 0)
