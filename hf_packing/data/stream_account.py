"""StreamAccount: what became of every row of a stream so far, and arrays as text for its saved state."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plan import TokenLedger


__all__ = ["StreamAccount", "decode_array", "encode_array"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class StreamAccount:
    """Counts of one pass. Tokens enter when they are given or lost, a sequence when its last piece is.

    Example:

        >>> account = StreamAccount()
        >>> account.take(0, 21, [8, 8, 5], [8, 8, 5])
        >>> account.give([0, 0], np.array([8, 5]), 16, 1)
        >>> account.ledger().tokens_in, account.ledger().sequences_in
        (13, 0)
        >>> account.give([0], np.array([8]), 16, 1)
        >>> account.ledger().sequences_split, account.ledger().tokens_padding
        (1, 11)
    """

    counts: dict[str, int] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    """Pieces of a split sequence that are not given yet, by its row."""
    lost_rows: list[int] = field(default_factory=list)
    """The first rows that lost tokens."""

    def _add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def take(self, row: int, tokens: int, cut: list[int], kept: list[int]) -> None:
        """A row came: `cut` are the lengths of its pieces under the policy, `kept` of those that have a target."""
        if not tokens:
            return self._add(sequences_in=1, sequences_empty=1)
        truncated = tokens - sum(cut) if cut else 0
        dropped = tokens - truncated - sum(kept)
        if truncated or dropped:
            self._lose(row, truncated + dropped)
        self._add(tokens_in=truncated + dropped, tokens_truncated=truncated, tokens_dropped=dropped)
        self._add(sequences_truncated=int(truncated > 0), sequences_split=int(len(cut) > 1))
        if not kept:
            return self._add(sequences_in=1, sequences_dropped=1)
        if len(kept) > 1:
            self.waiting[row] = len(kept)
        return None

    def _lose(self, row: int, tokens: int) -> None:
        if not self.lost_rows:
            logger.warning(
                "Row %s of the stream loses %s tokens (cut off, or without a target); further losses are counted in "
                "the stream's ledger.",
                row,
                tokens,
            )
        if len(self.lost_rows) < 5:
            self.lost_rows.append(row)

    def give(self, rows: list[int], lengths: NDArray[np.int64], max_length: int, multiple_of: int) -> None:
        """A pack left: the rows its pieces came from, and their lengths."""
        tokens = int(lengths.sum())
        occupied = int((-(-lengths // multiple_of) * multiple_of).sum())
        self._add(tokens_in=tokens, tokens_packed=tokens, slots=max(max_length, occupied))
        for row in rows:
            left = self.waiting.pop(row, 1) - 1
            if left:
                self.waiting[row] = left
            else:
                self._add(sequences_in=1, sequences_packed=1)

    def ledger(self) -> TokenLedger:
        """The account so far."""
        padding = self.counts.get("slots", 0) - self.counts.get("tokens_packed", 0)
        return TokenLedger(**self.counts, tokens_padding=padding)

    def log_total(self) -> None:
        """At the end of a pass: what was lost in all, if anything was."""
        ledger = self.ledger()
        if ledger.tokens_lost:
            logger.warning(
                "The stream left out %s of %s tokens: %s cut off, %s dropped. Rows such as %s.",
                ledger.tokens_lost,
                ledger.tokens_in,
                ledger.tokens_truncated,
                ledger.tokens_dropped,
                ", ".join(map(str, self.lost_rows)),
            )

    def state_dict(self) -> dict[str, Any]:
        """JSON-able."""
        waiting = [[row, pieces] for row, pieces in self.waiting.items()]
        return {"counts": dict(self.counts), "waiting": waiting, "lost_rows": list(self.lost_rows)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StreamAccount:
        """What `state_dict` gave."""
        return cls(dict(state["counts"]), dict(state["waiting"]), list(state["lost_rows"]))


def encode_array(values: NDArray[Any]) -> dict[str, Any]:
    """An array as text: a tenth of the size of a list of numbers in JSON, and exact.

    Example:

        >>> decode_array(encode_array(np.array([[1, -100]]))).tolist()
        [[1, -100]]
    """
    narrow = values.astype("<i4") if values.dtype == np.int64 and np.abs(values).max(initial=0) < 2**31 else values
    stored = np.ascontiguousarray(narrow)
    data = base64.b64encode(stored.tobytes()).decode("ascii")
    return {"type": stored.dtype.str, "as": values.dtype.str, "shape": list(values.shape), "data": data}


def decode_array(state: Mapping[str, Any]) -> NDArray[Any]:
    """The array that `encode_array` was given."""
    stored = np.frombuffer(base64.b64decode(state["data"]), dtype=state["type"])
    return stored.reshape(state["shape"]).astype(state["as"])
