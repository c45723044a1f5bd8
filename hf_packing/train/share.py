"""One rank's share of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node

from .ranks import Ranks


__all__ = ["EveryNth", "share_of"]


def share_of(stream: Any, ranks: Ranks) -> Any:
    """Shards where the stream has enough of them, every n-th row otherwise; the stream itself for one rank."""
    if isinstance(stream, IterableDataset):
        return split_dataset_by_node(stream, rank=ranks.rank, world_size=ranks.count)
    return stream if ranks.count == 1 else EveryNth(stream, ranks.rank, ranks.count)


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
