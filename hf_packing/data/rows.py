"""One row as the collator sees it: NumPy columns without pads, and the lengths of its sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import PackingError
from .boundaries import starts_from_position_ids


__all__ = ["IGNORE_INDEX", "MASK_COLUMNS", "Row", "read_row"]

IGNORE_INDEX = -100
"""Label of a token that is no target, as torch's cross entropy and all of Transformers use it."""

MASK_COLUMNS = ("completion_mask", "assistant_masks", "assistant_mask")
"""Columns that mark with 1 the tokens to train on; where several are present, all must allow a token."""

_DESCRIBING = frozenset(
    {
        *("input_ids", "labels", "attention_mask", "position_ids", "seq_lengths", "sequence_ids", "sequence_targets"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "length", *MASK_COLUMNS),
    }
)
"""Keys of a row that say something about its tokens and are not columns to pack along."""


@dataclass(frozen=True, slots=True)
class Row:
    """Columns of one row; every array is 1-D or longer with the row's real tokens first."""

    input_ids: NDArray[Any]
    labels: NDArray[Any] | None
    lengths: NDArray[np.int64]
    """`[S]`: tokens of each sequence, each at least 1, sum = len(input_ids)."""
    sequence_ids: NDArray[np.int64] | None
    """`[S]`: row of the source dataset each sequence came from."""
    sequence_targets: NDArray[np.int64] | None
    """`[S]`: targets of the whole sequence that each piece was cut from."""
    aligned: dict[str, NDArray[Any]]
    """Further columns with one entry a token."""


def read_row(row: Mapping[str, Any], number: int, where: str = "batch") -> Row:
    """Check one packed or plain row and take its pads off.

    Args:
        row: `input_ids` and, all optional, `labels` or masks (`completion_mask`, `assistant_masks`), `attention_mask`,
            `seq_lengths` (or `position_ids` that restart), `sequence_ids`, and token-aligned columns; lists, NumPy
            arrays or tensors, of shape `[T]` or `[1, T]`.
        number, where: its place, and in what (`batch`, `stream`), for messages.

    Raises:
        PackingError: no input_ids, columns of different length, lengths that do not add up.

    Example:

        >>> row = read_row({"input_ids": [5, 6, 7, 0], "attention_mask": [1, 1, 1, 0], "seq_lengths": [2, 2]}, 0)
        >>> row.input_ids.tolist(), row.lengths.tolist()
        ([5, 6, 7], [2, 1])
    """
    place = f"row {number} of the {where}"
    if "input_ids" not in row:
        raise PackingError(
            f"{place.capitalize()} has no 'input_ids' (its columns: {sorted(row)}); tokenise the dataset first, "
            "or keep the column when others are removed."
        )
    input_ids = _tokens(row["input_ids"], "input_ids", place)
    tokens = input_ids.shape[0]
    lengths = _lengths(row, place, tokens)
    labels = _labels(row, place, input_ids)
    provenance = [_provenance(row, name, lengths.size) for name in ("sequence_ids", "sequence_targets")]
    aligned = {}
    for name, value in row.items():
        if name not in _DESCRIBING and (column := _aligned(value, tokens)) is not None:
            aligned[name] = column

    mask = row.get("attention_mask")
    if mask is not None:
        kept = _tokens(mask, "attention_mask", place) != 0
        _check_length("attention_mask", kept, tokens, place)
        if not kept.all():
            # lengths [2, 2], kept [1, 1, 1, 0]: counts of kept tokens in each sequence are [2, 1].
            owner_T = np.repeat(np.arange(lengths.size), lengths)
            lengths = np.bincount(owner_T[kept], minlength=lengths.size).astype(np.int64)
            input_ids = input_ids[kept]
            labels = None if labels is None else labels[kept]
            aligned = {name: column[kept] for name, column in aligned.items()}

    if lengths.size and lengths.min() == 0:
        filled = lengths > 0
        provenance = [None if column is None else column[filled] for column in provenance]
        lengths = lengths[filled]
    return Row(input_ids, labels, lengths, provenance[0], provenance[1], aligned)


def as_array(value: Any) -> NDArray[Any]:
    """A NumPy array over a list, an array or a tensor; shares memory where it can."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def _tokens(value: Any, column: str, place: str) -> NDArray[Any]:
    if value is None:
        raise PackingError(f"Column {column!r}, {place} is null; drop such rows first.")
    try:
        array = as_array(value)
    except (TypeError, ValueError) as error:
        raise PackingError(f"Column {column!r}, {place} is not a list of integers: {error}.") from error
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 1:
        raise PackingError(
            f"Column {column!r}, {place} has shape {array.shape}; one sequence is a 1-D list of "
            "integers (or [1, T], as tokenizers return tensors). Pass the rows of a batch one by one."
        )
    if array.dtype.kind not in "iub":
        if array.size:
            raise PackingError(
                f"Column {column!r}, {place} holds {array.dtype} values such as {array[0]!r}; "
                "token columns hold integers. Tokenise the text, or remove the column."
            )
        array = array.astype(np.int64)
    return array


def _check_length(column: str, values: NDArray[Any], tokens: int, place: str) -> None:
    if values.shape[0] != tokens:
        raise PackingError(
            f"Column {column!r}, {place} has {values.shape[0]} entries, its 'input_ids' has "
            f"{tokens}; every token needs exactly one. Fix the step that made the column, or remove it."
        )


def _lengths(row: Mapping[str, Any], place: str, tokens: int) -> NDArray[np.int64]:
    given = row.get("seq_lengths")
    if given is not None:
        lengths = as_array(given).astype(np.int64, copy=False).reshape(-1)
        if lengths.size and lengths.min() < 0:
            raise PackingError(f"Column 'seq_lengths', {place} holds {int(lengths.min())}, below 0.")
        if int(lengths.sum()) != tokens:
            raise PackingError(
                f"Column 'seq_lengths', {place} adds up to {int(lengths.sum())} tokens, its "
                f"'input_ids' has {tokens}; a later step changed the tokens. Pack after all other steps."
            )
        return lengths
    position_ids = row.get("position_ids")
    if position_ids is None:
        return np.array([tokens], dtype=np.int64)
    positions = _tokens(position_ids, "position_ids", place)
    _check_length("position_ids", positions, tokens, place)
    starts = starts_from_position_ids(torch.from_numpy(positions.astype(np.int64))).numpy().nonzero()[0]
    return np.diff(starts, append=tokens)


def _labels(row: Mapping[str, Any], place: str, input_ids: NDArray[Any]) -> NDArray[Any] | None:
    labels = row.get("labels")
    if labels is not None:
        labels = _tokens(labels, "labels", place)
        _check_length("labels", labels, input_ids.shape[0], place)
    for name in MASK_COLUMNS:
        if (mask := row.get(name)) is not None:
            mask = _tokens(mask, name, place)
            _check_length(name, mask, input_ids.shape[0], place)
            labels = np.where(mask != 0, input_ids if labels is None else labels, IGNORE_INDEX)
    return labels


def _provenance(row: Mapping[str, Any], name: str, sequences: int) -> NDArray[np.int64] | None:
    value = row.get(name)
    if value is None:
        return None
    column = as_array(value).reshape(-1)
    # A row of continuous text (isolate=False) has one length and many sequences: then no segment has one origin.
    return column.astype(np.int64, copy=False) if column.size == sequences else None


def _aligned(value: Any, tokens: int) -> NDArray[Any] | None:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__") or isinstance(value, Mapping):
        return None
    if isinstance(value, (list, tuple)) and (len(value) != tokens or (tokens and isinstance(value[0], (str, bytes)))):
        return None
    array = as_array(value)
    if array.ndim > 1 and array.shape[0] == 1 and array.shape[1] == tokens:
        array = array[0]
    if array.ndim == 0 or array.shape[0] != tokens or array.dtype.kind not in "iubf":
        return None
    return array
