"""One rank's share of a stream, and its place in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node

from ..data.upstream import Upstream
from .ranks import Ranks


__all__ = ["EveryNth", "Resumable", "share_of"]


def share_of(stream: Any, ranks: Ranks) -> Any:
    """Shards where the stream has enough of them, every n-th row otherwise; the stream itself for one rank."""
    if isinstance(stream, IterableDataset):
        return split_dataset_by_node(stream, rank=ranks.rank, world_size=ranks.count)
    if ranks.count == 1:
        return stream
    # EveryNth has a state because its rows have one; Upstream would take it at its word.
    rows = stream if hasattr(stream, "state_dict") else Resumable(stream)
    return EveryNth(rows, ranks.rank, ranks.count)


class EveryNth:
    """Every `count`-th row of an iterable, beginning with number `rank`: one rank's share where it cannot be split.

    Example:
        >>> list(EveryNth(range(5), 1, 2))
        [1, 3]
    """

    def __init__(self, rows: Any, rank: int, count: int) -> None:
        self.rows = rows
        self.rank = rank
        self.count = count
        self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        for number, row in enumerate(self.rows, start=self._taken):
            self._taken = number + 1
            if number % self.count == self.rank:
                yield row
        self._taken = 0

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken, "rows": self.rows.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._taken = state["taken"]
        self.rows.load_state_dict(state["rows"])


class Resumable:
    """Rows as they come, with a place to return to where the stream has none of its own.

    A shuffle buffer of `datasets` loses what waits in it when its own state is loaded, and a plain iterable has no
    state; both are read again up to the place. Passes, epochs and states as in [`PackedStream`].

    Example:
        >>> rows = Resumable([1, 2, 3])
        >>> given = iter(rows)
        >>> state = [next(given), rows.state_dict()][1]
        >>> rows.load_state_dict(state)
        >>> list(rows), list(rows)
        ([2, 3], [1, 2, 3])
    """

    def __init__(self, rows: Any) -> None:
        self._upstream = Upstream(rows)

    def __iter__(self) -> Iterator[Any]:
        return (row for _, row in self._upstream)

    def set_epoch(self, epoch: int) -> None:
        self._upstream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self._upstream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._upstream.load_state_dict(state)
