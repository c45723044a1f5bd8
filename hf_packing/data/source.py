"""SequenceSource: a dataset read as prepared sequences, any piece of any row, without a second copy of the tokens.

Shape legend: N rows of the dataset, P pieces that are asked for, T tokens in all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from numpy.typing import NDArray

from ..errors import PackingError
from .columns import TokenColumn, is_token_column, row_order, table_of
from .duplicates import find_duplicates
from .preparation import Preparation
from .rows import IGNORE_INDEX, MASK_COLUMNS
from .slices import Slices
from .specials import SpecialTokens


__all__ = ["SequenceSource"]

logger = logging.getLogger(__name__)

_NOT_PACKED_ALONG = frozenset(
    {"labels", "attention_mask", "position_ids", "sequence_ids", "sequence_targets", *MASK_COLUMNS}
)
_TOKENS_AT_ONCE = 1 << 22
"""Tokens read together when a whole dataset is scanned: bounds the memory, large enough for NumPy to be fast."""


class SequenceSource:
    """Prepared sequences over an Arrow table: pads off, special tokens on, labels made from labels or masks.

    Args:
        table: the stored columns.
        order (`[N]`, *optional*): table row of every row.
        preparation: what happens to each sequence.

    Raises:
        PackingError: a missing or ill-typed column, nulls, or a labels or mask column that does not fit its tokens.

    Example:

        >>> table = pa.table({"input_ids": [[5, 6, 7], [8, 9]], "completion_mask": [[0, 1, 1], [0, 1]]})
        >>> source = SequenceSource(table, preparation=Preparation.resolve(ensure_eos=9))
        >>> source.lengths.tolist()
        [4, 2]
        >>> columns = source.read(Slices.whole(np.array([0, 1]), source.lengths))
        >>> columns["input_ids"].tolist(), columns["labels"].tolist()
        ([5, 6, 7, 9, 8, 9], [-100, 6, 7, 9, -100, 9])
    """

    def __init__(
        self, table: pa.Table, order: NDArray[np.int64] | None = None, preparation: Preparation | None = None
    ) -> None:
        self.preparation = preparation or Preparation()
        column = self.preparation.column
        if column not in table.column_names:
            raise PackingError(
                f"There is no column {column!r} to pack (the columns: {sorted(table.column_names)}); tokenise the "
                "dataset first, or name the column that holds the token ids."
            )
        if "seq_lengths" in table.column_names:
            raise PackingError(
                "The dataset is packed already (it has a 'seq_lengths' column); use it as it is, or pack the dataset "
                "it was made from."
            )
        self._table, self._order = table, order
        self._ids = TokenColumn(column, table.column(column), order)
        self._labels = self._fitting("labels")
        self._masks = [mask for name in MASK_COLUMNS if (mask := self._fitting(name)) is not None]
        self._attention = self._fitting("attention_mask")
        self._aligned = self._aligned_columns()
        self._left_out: NDArray[np.bool_] | None = None
        self._kept = self._count_kept()
        self._has_pads = self._attention is not None and not np.array_equal(self._kept, self._ids.lengths)
        self._specials: SpecialTokens | None = None
        self.lengths = self._kept
        """Tokens of every prepared sequence, int64 `[N]`."""
        if self.preparation.ensure_bos is not None or self.preparation.ensure_eos is not None:
            first, last = self.token_at_start(0), self.token_at_end(1)
            self._specials = SpecialTokens.plan(self.preparation, first, last)
            self.lengths = self._kept + self._specials.added()

    @classmethod
    def of_dataset(cls, dataset: Dataset, preparation: Preparation | None = None) -> SequenceSource:
        """The sequences of a dataset in the order of its rows."""
        return cls(table_of(dataset), row_order(dataset), preparation)

    def __len__(self) -> int:
        return int(self._ids.lengths.size)

    @property
    def has_labels(self) -> bool:
        """Whether labels or masks were given, so that tokens have to be read to count targets."""
        return self._labels is not None or bool(self._masks)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the ids."""
        return self._ids.dtype

    def _fitting(self, name: str) -> TokenColumn | None:
        if name not in self._table.column_names or name == self.preparation.column:
            return None
        column = TokenColumn(name, self._table.column(name), self._order)
        wrong = np.flatnonzero(column.lengths != self._ids.lengths)
        if wrong.size:
            row = int(wrong[0])
            raise PackingError(
                f"Column {name!r}, row {row} has {int(column.lengths[row])} entries, {self.preparation.column!r} has "
                f"{int(self._ids.lengths[row])} ({wrong.size} such rows); every token needs exactly one. Fix the step "
                "that made the column, or remove it."
            )
        return column

    def _aligned_columns(self) -> list[TokenColumn]:
        packed, left_out = [], []
        for name in self._table.column_names:
            if name == self.preparation.column or name in _NOT_PACKED_ALONG:
                continue
            chunks = self._table.column(name)
            if is_token_column(chunks.type) and not chunks.null_count:
                column = TokenColumn(name, chunks, self._order)
                if np.array_equal(column.lengths, self._ids.lengths):
                    packed.append(column)
                    continue
            left_out.append(name)
        if left_out:
            logger.info("Columns without one number a token are not packed along: %s.", ", ".join(sorted(left_out)))
        return packed

    def _count_kept(self) -> NDArray[np.int64]:
        """Tokens of every row that its attention_mask lets stand, int64 `[N]`."""
        stored = self._ids.lengths
        if self._attention is None:
            return stored
        kept = np.empty(len(self), dtype=np.int64)
        for rows in self._spans(stored):
            slices = Slices.whole(rows, stored[rows])
            kept[rows] = slices.sums(self._attention.gather(slices) != 0)
        return kept

    def token_at_start(self, place: int) -> NDArray[np.int64]:
        """Token number `place` (from 0) of every stored row without its pads, int64 `[N]`; -1 where it has none."""
        return self._stored_token(np.full(len(self), place, dtype=np.int64))

    def token_at_end(self, place: int) -> NDArray[np.int64]:
        """Token number `place` from the end (1: the last), int64 `[N]`; -1 where a row has none."""
        return self._stored_token(self._kept - place)

    def _stored_token(self, position: NDArray[np.int64]) -> NDArray[np.int64]:
        tokens = np.full(len(self), -1, dtype=np.int64)
        inside = (position >= 0) & (position < self._kept)
        # Padded rows are read whole, others one token each: spans of stored tokens bound both.
        for rows in self._spans(self._ids.lengths if self._has_pads else np.full(len(self), 16)):
            rows = rows[inside[rows]]
            tokens[rows] = self._body(self._ids, Slices(rows, position[rows], np.ones_like(rows)))
        return tokens

    def _spans(self, lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Consecutive rows (or pieces), a bounded number of tokens at a time."""
        ends = np.cumsum(lengths)
        start = 0
        while start < lengths.size:
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + _TOKENS_AT_ONCE, side="right")))
            yield np.arange(start, stop)
            start = stop

    # Pieces: what plans ask for.

    def read(self, slices: Slices, dtype: Any = None) -> dict[str, NDArray[Any]]:
        """The tokens of the pieces, one piece after the other, each column `[T]` and freshly allocated.

        Args:
            slices: the pieces.
            dtype (*optional*): type of ids and labels; by default that of the stored ids.

        Returns:
            `input_ids`, `labels` (the first token of each piece is no target when sequences are isolated), and the
            columns packed along.

        Every piece has at least one token and lies within its prepared sequence (`check` tells).
        """
        input_ids = self._prepared(self._ids, slices, dtype=dtype)
        columns = {"input_ids": input_ids, "labels": self._read_labels(input_ids, slices)}
        for column in self._aligned:
            columns[column.name] = self._prepared(column, slices, 0)
        return columns

    def count_targets(
        self, rows: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Targets of each piece, int64 `[P]`, as `plan_packs(count_targets=...)` asks for; 0 for left out rows."""
        if self.has_labels or self.preparation.mask_eos_loss:
            counts = np.empty(rows.size, dtype=np.int64)
            pieces = Slices(rows, starts, lengths)
            for at in self._spans(lengths):
                slices = pieces[at]
                labels = self._read_labels(self._prepared(self._ids, slices), slices)
                counts[at] = slices.sums(labels != IGNORE_INDEX)
        else:
            counts = np.maximum(lengths - 1, 0) if self.preparation.isolate else lengths.copy()
        if self._left_out is not None:
            counts[self._left_out[rows]] = 0
        return counts

    def duplicates(self) -> NDArray[np.bool_]:
        """Rows whose prepared tokens are those of an earlier row, bool `[N]`."""
        return find_duplicates(self.iter_ids(), len(self))

    def leave_out(self, rows: NDArray[np.bool_]) -> None:
        """Count these rows (bool `[N]`) as sequences without targets, so that plans drop them and say so."""
        self._left_out = rows

    def iter_ids(self) -> Iterator[tuple[Slices, NDArray[Any]]]:
        """All prepared sequences in order, a bounded number of tokens at a time: their slices and their ids."""
        for rows in self._spans(self.lengths):
            slices = Slices.whole(rows, self.lengths[rows])
            yield slices, self._prepared(self._ids, slices)

    def check(self, slices: Slices) -> None:
        """Raises PackingError where a piece reaches past its prepared sequence."""
        past = np.flatnonzero(slices.starts + slices.lengths > self.lengths[slices.rows])
        if past.size:
            at = int(past[0])
            row = int(slices.rows[at])
            raise PackingError(
                f"The plan takes tokens up to {int(slices.starts[at] + slices.lengths[at])} from row {row}, which has "
                f"{int(self.lengths[row])} after its pads are taken off and special tokens are added; the plan "
                "was made from other lengths. Plan this dataset with the same options (plan_dataset)."
            )

    def _read_labels(self, input_ids: NDArray[Any], slices: Slices) -> NDArray[Any]:
        if self._labels is None:
            wide = input_ids.dtype if input_ids.dtype in (np.int32, np.int64) else np.dtype(np.int64)
            labels = input_ids.astype(wide, copy=True)
        else:
            labels = self._prepared(self._labels, slices, IGNORE_INDEX).astype(np.int64, copy=False)
        for mask in self._masks:
            labels[self._prepared(mask, slices, 1) == 0] = IGNORE_INDEX
        if self._specials is not None and self.preparation.ensure_eos is not None:
            labels[slices.lasts[self._specials.placed(slices, self.lengths)[1]]] = self.preparation.ensure_eos
        if self.preparation.mask_eos_loss:
            lasts = slices.lasts
            labels[lasts[np.isin(input_ids[lasts], self.preparation.eos_ids)]] = IGNORE_INDEX
        if self.preparation.isolate:
            labels[slices.firsts] = IGNORE_INDEX
        return labels

    def _prepared(
        self, column: TokenColumn, slices: Slices, filler: int | None = None, dtype: Any = None
    ) -> NDArray[Any]:
        """Values of the pieces; at special tokens the token itself, or `filler` in columns that are not ids."""
        if self._specials is None:
            return self._body(column, slices, dtype)
        bos, eos = self._specials.placed(slices, self.lengths)
        # Row [5, 6] with both added, piece [0, 4): the body is the stored [0, 2), it goes to the places 1 and 2 of 4.
        inner = Slices(slices.rows, slices.starts + bos - self._specials.bos[slices.rows], slices.lengths - bos - eos)
        body = self._body(column, inner, dtype)
        if not bos.any() and not eos.any():
            return body
        values = np.empty(slices.total, dtype=body.dtype)
        is_body = np.ones(values.size, dtype=bool)
        for places, token in (
            (slices.firsts[bos], self.preparation.ensure_bos),
            (slices.lasts[eos], self.preparation.ensure_eos),
        ):
            is_body[places] = False
            if places.size:
                values[places] = token if filler is None else filler
        values[is_body] = body
        return values

    def _body(self, column: TokenColumn, slices: Slices, dtype: Any = None) -> NDArray[Any]:
        """Stored values without pads; the slices count only tokens that the attention_mask lets stand."""
        if not self._has_pads or self._attention is None:
            return column.gather(slices, dtype)
        whole = Slices.whole(slices.rows, self._ids.lengths[slices.rows])
        values = column.gather(whole, dtype)[self._attention.gather(whole) != 0]
        kept = self._kept[slices.rows]
        firsts = np.cumsum(kept) - kept + slices.starts
        pieces = [values[a:b] for a, b in zip(firsts.tolist(), (firsts + slices.lengths).tolist())]
        return np.concatenate(pieces) if pieces else values
