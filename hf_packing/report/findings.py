"""What the tokens themselves show before packing: missing or doubled EOS and BOS, and rows that repeat."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


__all__ = ["TokenFindings", "find"]

BATCH = 10_000  # rows read at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFindings:
    """Counts over the non-empty rows of a dataset. None where the token is not known."""

    rows: int
    """Rows with at least one token."""
    eos_token_id: int | None
    """End-of-sequence token looked for."""
    bos_token_id: int | None
    """Begin-of-sequence token looked for."""
    without_eos: int | None
    """Rows that do not end in EOS: packed, the model never learns to stop there."""
    doubled_eos: int | None
    """Rows that end in EOS twice."""
    without_bos: int | None
    """Rows that do not begin with BOS."""
    doubled_bos: int | None
    """Rows that begin with BOS twice, the trace of a chat template and a tokenizer that both add it."""
    duplicates: int
    """Rows whose tokens equal those of an earlier row."""
    duplicate_tokens: int
    """Tokens in these rows."""

    def lines(self) -> list[str]:
        """The findings in words, one a line; what is as it should be is said too."""
        found = []
        for what, token, count in (
            ("do not end in EOS", self.eos_token_id, self.without_eos),
            ("end in EOS twice", self.eos_token_id, self.doubled_eos),
            ("do not begin with BOS", self.bos_token_id, self.without_bos),
            ("begin with BOS twice", self.bos_token_id, self.doubled_bos),
        ):
            if count is not None:
                share = f" ({count / self.rows:.1%})" if count else ""
                found.append(f"{count:,} of {self.rows:,} rows{share} {what} (id {token})")
        share = f" ({self.duplicates / self.rows:.1%}, {self.duplicate_tokens:,} tokens)" if self.duplicates else ""
        found.append(f"{self.duplicates:,} of {self.rows:,} rows{share} repeat an earlier row token by token")
        if self.eos_token_id is None:
            found.append("EOS was not looked for: no tokenizer was given")
        return found


def _rows_of(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens of all rows one after the other, and offsets; nulls count as empty rows."""
    tokens, lengths = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for chunk in column.chunks:
        # flatten() follows slices and leaves nulls out, which chunk.values does not.
        tokens.append(chunk.flatten().to_numpy(zero_copy_only=False).astype(np.int64, copy=False))
        lengths.append(chunk.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
    sizes = np.concatenate(lengths)
    return np.concatenate(tokens), np.concatenate([[0], np.cumsum(sizes)])


def _ends(
    tokens: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64], token: int, last: bool
) -> Any:
    """Rows without `token` at their end (or beginning), and rows with it twice."""
    at = ends - 1 if last else starts
    has = tokens[at] == token
    long = ends - starts >= 2
    beside = np.where(long, at - 1 if last else at + 1, at)
    return int((~has).sum()), int((has & long & (tokens[beside] == token)).sum())


def find(
    dataset: Any, *, column: str = "input_ids", eos_token_id: int | None = None, bos_token_id: int | None = None
) -> TokenFindings:
    """Read the tokens once, in batches, and count.

    Duplicates are found by a 16-byte hash of the tokens (blake2b).

    Args:
        dataset (`datasets.Dataset`): with lists of token ids in `column`.
        eos_token_id, bos_token_id (`int`, *optional*): tokens to look for; None leaves them out.

    Example:

        >>> from datasets import Dataset
        >>> rows = Dataset.from_dict({"input_ids": [[1, 5, 2], [1, 5, 2], [1, 1, 7]]})
        >>> found = find(rows, eos_token_id=2, bos_token_id=1)
        >>> found.without_eos, found.doubled_bos, found.duplicates
        (1, 1, 1)
    """
    counted = np.zeros(4, np.int64)
    rows = duplicates = duplicate_tokens = 0
    seen: set[bytes] = set()
    for batch in dataset.select_columns([column]).with_format("arrow").iter(batch_size=BATCH):
        tokens, offsets = _rows_of(batch.column(column))
        full = np.diff(offsets) > 0
        starts, ends = offsets[:-1][full], offsets[1:][full]
        rows += starts.size
        if eos_token_id is not None:
            counted[:2] += _ends(tokens, starts, ends, eos_token_id, last=True)
        if bos_token_id is not None:
            counted[2:] += _ends(tokens, starts, ends, bos_token_id, last=False)
        for start, end in zip(starts.tolist(), ends.tolist()):
            digest = hashlib.blake2b(tokens[start:end].tobytes(), digest_size=16).digest()
            if digest in seen:
                duplicates += 1
                duplicate_tokens += end - start
            seen.add(digest)
    eos = counted[:2].tolist() if eos_token_id is not None else (None, None)
    bos = counted[2:].tolist() if bos_token_id is not None else (None, None)
    return TokenFindings(
        rows=rows,
        eos_token_id=eos_token_id,
        bos_token_id=bos_token_id,
        without_eos=eos[0],
        doubled_eos=eos[1],
        without_bos=bos[0],
        doubled_bos=bos[1],
        duplicates=duplicates,
        duplicate_tokens=duplicate_tokens,
    )
