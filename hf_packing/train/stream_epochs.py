"""Streams by epochs: how many optimizer steps some passes over a stream make, for runs without `max_steps`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from accelerate.utils import gather_object
from datasets import IterableDataset as HFIterableDataset

from ..data import PackedStream
from ..errors import PackingError


__all__ = ["counted_later", "steps_of_stream"]


def counted_later(dataset: Any, args: Any) -> dict[str, int]:
    """Settings to show Trainer's init, which refuses a stream without `max_steps` before its passes can be counted.

    Raises:
        PackingError: a generator, which counting would use up.
    """
    sized = dataset is None or (
        hasattr(dataset, "__len__") and not isinstance(dataset, HFIterableDataset | PackedStream)
    )
    if sized or args.max_steps > 0:
        return {}
    if isinstance(dataset, Iterator):
        raise PackingError(
            f"train_dataset is a {type(dataset).__name__}, which can be read only once, and max_steps is not set. Set "
            "max_steps, or pass an iterable that starts anew each time (a datasets.IterableDataset, a class with "
            "__iter__), whose passes can be counted."
        )
    return {"max_steps": 1}


def steps_of_stream(stream: Any, batch_size: int, accumulation: int, epochs: float, accelerator: Any) -> int:
    """Optimizer steps of `epochs` passes, found by reading this rank's share once a pass; collective.

    A pass ends on all ranks together, so the rank with the most micro-batches decides: with 5 and 3 of them and an
    accumulation of 2, a pass is 3 steps. Each pass is read, since a stream shuffled by epoch packs differently.

    Raises:
        PackingError: a pass holds nothing to train on.

    Example:
        >>> from accelerate import Accelerator
        >>> rows = [{"input_ids": [1] * length} for length in (3, 5, 2, 6, 8)]
        >>> steps_of_stream(PackedStream(rows, 8), 1, 2, 1.5, Accelerator(cpu=True))  # 3 packs, 2 steps a pass
        3
    """
    total = 0
    for epoch in range(math.ceil(epochs)):
        if hasattr(stream, "set_epoch"):
            stream.set_epoch(epoch)
        micro_batches = -(-sum(1 for _ in stream) // batch_size)
        steps = -(-max(gather_object([micro_batches])) // accumulation)
        if steps == 0:
            raise PackingError(
                f"Pass {epoch + 1} over the stream gave nothing to train on; check that the dataset starts anew each "
                "time "
                "it is iterated, and its labels."
            )
        total += math.ceil(steps * min(1.0, epochs - epoch))
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(0)
    return total
