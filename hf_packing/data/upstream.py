"""Upstream: rows from any iterable, its place in it, and the way back to that place."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from datasets import IterableDataset as HFIterableDataset
from torch.utils.data import get_worker_info

from ..errors import PackingError


__all__ = ["Upstream"]

logger = logging.getLogger(__name__)


_EXACT = frozenset(
    {
        *("ExamplesIterable", "ShuffledDataSourcesExamplesIterable", "TypedExamplesIterable", "StepExamplesIterable"),
        *("ArrowExamplesIterable", "ShuffledDataSourcesArrowExamplesIterable", "SelectColumnsIterable"),
        *("MappedExamplesIterable", "FilteredExamplesIterable", "SkipExamplesIterable", "TakeExamplesIterable"),
        *("VerticallyConcatenatedMultiSourcesExamplesIterable", "FormattedExamplesIterable"),
        *("CyclingMultiSourcesExamplesIterable", "RandomlyCyclingMultiSourcesExamplesIterable"),
        *("RebatchedArrowExamplesIterable", "InterleavedShardsExamplesIterable"),
    }
)
"""Steps of a `datasets.IterableDataset` that resume behind the very row their state was taken at."""


class Upstream:
    """Numbered rows of an iterable, pass after pass.

    A place is kept as the iterable's own state where it resumes exactly, else as the number of rows taken: those are
    then read again and skipped. A `datasets` shuffle buffer forgets its content when it is resumed, so such a stream
    is read again too: no row is lost, at the price of reading what was read before.

    In a loader's worker, a `datasets.IterableDataset` gives the worker its own shards; of any other iterable worker w
    of W takes every W-th row, beginning with number w.

    Args:
        rows: the iterable.
        share (`(int, int)`): (r, R): only every R-th row, beginning with number r.

    Example:

        >>> [number for number, row in Upstream("abcde", share=(1, 2))]
        [1, 3]
    """

    def __init__(self, rows: Iterable[Any], share: tuple[int, int] = (0, 1)) -> None:
        if not 0 <= share[0] < share[1]:
            raise PackingError(f"share={share}; it is (number, count) with 0 <= number < count.")
        self.rows: Any = rows
        self.share = share
        self.taken = 0
        """Rows that the iterable gave in this pass, to whichever worker."""
        self._loaded: dict[str, Any] | None = None
        self._initial: list[Any] = []

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The rows from the current place on, each with its number."""
        state, self._loaded = self._loaded, None
        self.taken, skip = self._return_to(state) if state is not None else self._restart()
        worker = None if isinstance(self.rows, HFIterableDataset) else get_worker_info()
        share, shares = self.share
        if worker:
            share, shares = share * worker.num_workers + worker.id, shares * worker.num_workers
        for row in self.rows:
            number, self.taken = self.taken, self.taken + 1
            if number >= skip and number % shares == share:
                yield number, row
        if self.taken < skip:
            raise PackingError(
                f"The stream ended after {self.taken} rows, the saved place is behind row {skip}; it does not give "
                "the rows it gave before. Pass an iterable that starts anew each time (a datasets.IterableDataset, a "
                "list, a class with __iter__), not a generator that was used up."
            )
        self.taken = 0

    def _return_to(self, state: dict[str, Any]) -> tuple[int, int]:
        """Rows taken so far, and rows to skip."""
        if state["rows"] is None:
            return 0, state["taken"]
        if not self._initial:
            self._initial.append(self.rows.state_dict())
        self.rows.load_state_dict(state["rows"])
        return state["taken"], 0

    def _restart(self) -> tuple[int, int]:
        # A datasets.IterableDataset begins every pass of an epoch at the state it was given once.
        if self._initial:
            self.rows.load_state_dict(self._initial[0])
        return 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Passed on where the iterable shuffles by epoch."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place behind the last row given, JSON-able."""
        if self._loaded is not None:
            return self._loaded
        own = self.rows.state_dict() if self.taken and resumes_exactly(self.rows) else None
        return {"taken": self.taken, "rows": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration starts at this place."""
        self._loaded = state
        if state["taken"] and state["rows"] is None:
            logger.info(
                "The stream has no exact place to return to: its first %s rows are read again.", state["taken"]
            )


def resumes_exactly(rows: Any) -> bool:
    """Whether the iterable's own state leads back to the very row; what cannot is read again from the start.

    Of a `datasets.IterableDataset` every step is looked at (there is no public way): shuffle buffers and batched steps
    over Arrow tables lose rows when they are resumed, as its documentation says.

    Example:

        >>> from datasets import Dataset
        >>> stream = Dataset.from_dict({"input_ids": [[1], [2]]}).to_iterable_dataset()
        >>> resumes_exactly(stream), resumes_exactly(stream.shuffle(buffer_size=10)), resumes_exactly([1, 2])
        (True, False, False)
    """
    if not (hasattr(rows, "state_dict") and hasattr(rows, "load_state_dict")):
        return False
    return not isinstance(rows, HFIterableDataset) or all(map(_is_exact, _steps(rows._ex_iterable)))


def _steps(step: Any) -> Iterator[Any]:
    yield step
    below = [getattr(step, "ex_iterable", None), *(getattr(step, "ex_iterables", None) or ())]
    for inner in below:
        if inner is not None:
            yield from _steps(inner)


def _is_exact(step: Any) -> bool:
    formatting = getattr(step, "formatting", None)
    return type(step).__name__ in _EXACT and not (formatting and formatting.is_table)
