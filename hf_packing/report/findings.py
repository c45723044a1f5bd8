"""What the tokens themselves show before packing: missing or doubled EOS and BOS, and rows that repeat."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .table import percent


__all__ = ["TokenFindings", "find"]

BATCH = 10_000  # rows read at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFindings:
    """Counts over the non-empty rows of a dataset; None where the token was not looked for."""

    rows: int
    """Rows with at least one token."""
    eos_token_ids: tuple[int, ...]
    """End-of-sequence tokens looked for."""
    bos_token_id: int | None
    """Begin-of-sequence token looked for."""
    without_eos: int | None
    """Rows that do not end in EOS: the model does not learn to stop there."""
    doubled_eos: int | None
    """Rows that end in EOS twice."""
    eos_then_one: int | None
    """Of the rows without EOS at their end, those with EOS one token before it, as `<|im_end|>` and a line break."""
    without_bos: int | None
    """Rows that do not begin with BOS."""
    doubled_bos: int | None
    """Rows that begin with BOS twice, the trace of a chat template and a tokenizer that both add it."""
    common_end: int | None
    """The token most rows end in."""
    common_end_rows: int
    """Rows that end in it."""
    duplicates: int
    """Rows whose tokens equal those of an earlier row."""
    duplicate_tokens: int
    """Tokens in these rows."""

    def lines(self) -> list[str]:
        """The findings in words, one a line; what is as it should be is said too."""
        eos = f"EOS (id {' or '.join(map(str, self.eos_token_ids))})"
        if self.without_bos == self.rows and self.rows:
            absent = [f"no row begins with BOS (id {self.bos_token_id}): right for a model trained without one"]
        else:
            absent = []
        found = [
            f"{self._count(count)} {what}"
            for what, count in (
                (f"do not end in {eos}", self.without_eos),
                (f"end in {eos} twice", self.doubled_eos),
                (f"do not begin with BOS (id {self.bos_token_id})", self.without_bos),
                (f"begin with BOS (id {self.bos_token_id}) twice", self.doubled_bos),
            )
            if count is not None and not (absent and "BOS" in what)
        ] + absent
        if not self.eos_token_ids:
            found.append("EOS and BOS were not looked for: no tokenizer and no ids were given")
        elif self.eos_then_one:
            found.append(
                f"{self._count(self.eos_then_one)} end in EOS and one more token, as chat templates write a line "
                f"break behind it (most rows end in id {self.common_end}): the model learns to stop"
            )
        elif self.common_end not in self.eos_token_ids and self.common_end_rows > self.rows / 2:
            found.append(
                f"{self._count(self.common_end_rows)} end in id {self.common_end}: if that is what the chat template "
                f"closes a turn with, it is the EOS to train and to stop on"
            )
        lost = f", {self.duplicate_tokens:,} tokens" if self.duplicates else ""
        found.append(f"{self._count(self.duplicates)} repeat an earlier row token by token{lost}")
        return found

    def _count(self, count: int) -> str:
        return f"{count:,} of {self.rows:,} rows" + (f" ({percent(count / self.rows)})" if count else "")


def _rows_of(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of all rows one after the other, and offsets; a null counts as an empty row."""
    tokens, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for chunk in column.chunks:
        # flatten() follows slices and leaves nulls out, which chunk.values does not.
        tokens.append(chunk.flatten().to_numpy(zero_copy_only=False).astype(np.int64, copy=False))
        lengths.append(chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
    sizes = np.concatenate(lengths)
    return np.concatenate(tokens), np.concatenate([[0], np.cumsum(sizes)])


def _counts(edge: NDArray[np.int64], beside: NDArray[np.int64], wanted: tuple[int, ...]) -> list[int]:
    """Rows without a wanted token at the edge, with two there (`beside` is -1 for none), with only the inner one."""
    at_edge, at_beside = np.isin(edge, wanted), np.isin(beside, wanted)
    return [int((~at_edge).sum()), int((at_edge & at_beside).sum()), int((~at_edge & at_beside).sum())]


def find(
    dataset: Any,
    *,
    column: str = "input_ids",
    eos_token_id: int | Sequence[int] | None = None,
    bos_token_id: int | None = None,
) -> TokenFindings:
    """Read the tokens once, in batches, and count.

    Two rows are duplicates when a 16-byte hash (blake2b) of their tokens is the same.

    Args:
        dataset (`datasets.Dataset`): with lists of token ids in `column`.
        eos_token_id (`int` or list, *optional*): tokens that end a sequence; None leaves EOS out.
        bos_token_id (`int`, *optional*): token that begins one; None leaves BOS out.

    Example:

        >>> from datasets import Dataset
        >>> rows = Dataset.from_dict({"input_ids": [[1, 5, 2], [1, 5, 2], [1, 1, 7]]})
        >>> found = find(rows, eos_token_id=2, bos_token_id=1)
        >>> found.without_eos, found.doubled_bos, found.duplicates
        (1, 1, 1)
    """
    eos_ids = () if eos_token_id is None else tuple(np.atleast_1d(eos_token_id).tolist())
    bos_ids = () if bos_token_id is None else (int(bos_token_id),)
    eos, bos = np.zeros(3, np.int64), np.zeros(3, np.int64)
    last_tokens: Counter[int] = Counter()
    rows = duplicates = duplicate_tokens = 0
    seen: set[bytes] = set()
    for batch in dataset.select_columns([column]).with_format("arrow").iter(batch_size=BATCH):
        tokens, offsets = _rows_of(batch.column(column))
        full = np.diff(offsets) > 0
        starts, ends = offsets[:-1][full], offsets[1:][full]
        rows += starts.size
        single = ends - starts == 1
        eos += _counts(tokens[ends - 1], np.where(single, -1, tokens[ends - 2]), eos_ids)
        beside = np.where(single, -1, tokens[np.minimum(starts + 1, ends - 1)])
        bos += _counts(tokens[starts], beside, bos_ids)
        values, counts = np.unique(tokens[ends - 1], return_counts=True)
        last_tokens.update(dict(zip(values.tolist(), counts.tolist())))
        for start, end in zip(starts.tolist(), ends.tolist()):
            digest = hashlib.blake2b(tokens[start:end].tobytes(), digest_size=16).digest()
            if digest in seen:
                duplicates += 1
                duplicate_tokens += end - start
            seen.add(digest)
    common = last_tokens.most_common(1)
    return TokenFindings(
        rows=rows,
        eos_token_ids=eos_ids,
        bos_token_id=bos_token_id,
        without_eos=int(eos[0]) if eos_ids else None,
        doubled_eos=int(eos[1]) if eos_ids else None,
        eos_then_one=int(eos[2]) if eos_ids else None,
        without_bos=int(bos[0]) if bos_ids else None,
        doubled_bos=int(bos[1]) if bos_ids else None,
        common_end=common[0][0] if common else None,
        common_end_rows=common[0][1] if common else 0,
        duplicates=duplicates,
        duplicate_tokens=duplicate_tokens,
    )
