"""Loaders that give every rank the same number of micro-batches, without repeating or dropping a sequence.

They are plain `DataLoader`s that accelerate does not prepare: its own sharding repeats sequences to even out the last
round (even_batches) or cuts batches between ranks (dispatch_batches). Batches stay on the CPU; the Trainer moves one
micro-batch at a time to the device.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from ..data import PackBatchSampler, attention_cost
from ..errors import PackingError
from .arrange import Arranged
from .config import PackingSettings
from .ranks import Ranks
from .window import sum_over_ranks


__all__ = [
    "EpochBatchSampler",
    "InOrderBatchSampler",
    "PackingDataLoader",
    "StreamBatches",
    "eval_loader",
    "stream_loader",
    "train_loader",
]

logger = logging.getLogger(__name__)


class EpochBatchSampler(PackBatchSampler):
    """A `PackBatchSampler` that tells the dataset of every epoch, so that neighbours change with the order."""

    def __init__(self, *args: Any, on_epoch: Callable[[int], None] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_epoch = on_epoch

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        if self._on_epoch is not None:
            self._on_epoch(epoch)


class InOrderBatchSampler(Sampler[list[int]]):
    """Batches in dataset order, dealt out to the ranks in turn; a rank that has none left gets `[]`.

    Example:
        >>> [list(InOrderBatchSampler(5, 2, num_replicas=2, rank=rank)) for rank in (0, 1)]
        [[[0, 1], [4]], [[2, 3], []]]
    """

    def __init__(self, size: int, batch_size: int, *, num_replicas: int = 1, rank: int = 0) -> None:
        self.size = size
        self.batch_size = batch_size
        self.num_replicas = num_replicas
        self.rank = rank

    def __len__(self) -> int:
        return -(-self.size // (self.batch_size * self.num_replicas))

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(len(self)):
            start = (step * self.num_replicas + self.rank) * self.batch_size
            yield list(range(min(start, self.size), min(start + self.batch_size, self.size)))

    @property
    def schedule(self) -> dict[str, Any]:
        """Everything that decides which batch comes when, except the rank; JSON-able."""
        return {"rows_in_order": self.size, "batch_size": self.batch_size, "num_replicas": self.num_replicas}


class PackingDataLoader(DataLoader):
    """A DataLoader over packs (or sequences) with a batch sampler of its own.

    `set_epoch` is what Trainer calls at the start of an epoch; after skipping batches of a resumed epoch it calls the
    sampler's instead, which does the same.
    """

    def set_epoch(self, epoch: int) -> None:
        set_epoch = getattr(self.batch_sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


class StreamBatches(IterableDataset):
    """Micro-batches of a stream's rows, pass after pass, for Trainer's loop over data of unknown length.

    Within a pass it yields lists of `batch_size` rows; when the pass is over it yields empty lists (filler) until
    `next_pass()` is called. The trainer calls that on all ranks together, once no rank has rows left, so that a window
    of gradient accumulation never mixes two passes and a rank whose shard is short waits for nobody.

    Args:
        stream: iterable of rows that starts its next pass each time it is iterated; with `set_epoch`, `state_dict` and
            `load_state_dict` where it can be resumed.
        batch_size (`int`): rows a micro-batch.
    """

    def __init__(self, stream: Any, batch_size: int) -> None:
        super().__init__()
        self.stream = stream
        self.batch_size = batch_size
        self.passes = 0
        self._rows: Iterator[Any] | None = None
        self._over = False
        self._skipped_by_trainer = 0
        self._resumed = False

    def __iter__(self) -> Iterator[list[Any]]:
        # Trainer fast-forwards a resumed run by drawing and dropping micro-batches. The state already stands behind
        # them, so it is given empty ones.
        for _ in range(self._skipped_by_trainer):
            yield []
        self._skipped_by_trainer = 0
        while True:
            if self._rows is None and not self._over:
                if not self._resumed and hasattr(self.stream, "set_epoch"):
                    self.stream.set_epoch(self.passes)
                self._resumed = False
                self._rows = iter(self.stream)
            batch = [] if self._over else self._take()
            if len(batch) < self.batch_size:
                self._over, self._rows = True, None
            yield batch

    def _take(self) -> list[Any]:
        batch: list[Any] = []
        for row in self._rows or ():
            batch.append(row)
            if len(batch) == self.batch_size:
                break
        return batch

    def next_pass(self) -> None:
        """Begin the next pass over the stream."""
        self.passes += 1
        self._rows, self._over = None, False

    def state_dict(self) -> dict[str, Any]:
        """Where this rank stands, as JSON-able values."""
        return {"passes": self.passes, "over": self._over, "stream": self.stream.state_dict()}

    def load_state_dict(self, state: dict[str, Any], skipped_by_trainer: int = 0) -> None:
        """Continue behind the last row of `state`; Trainer will drop `skipped_by_trainer` micro-batches first."""
        self.passes, self._over = state["passes"], state["over"]
        # A pass that is over has nothing to continue: the next one starts from the beginning of the stream.
        self._rows, self._resumed = None, not self._over
        if self._resumed:
            if hasattr(self.stream, "set_epoch"):
                self.stream.set_epoch(self.passes)
            self.stream.load_state_dict(state["stream"])
        self._skipped_by_trainer = skipped_by_trainer


class EvalStream(IterableDataset):
    """One pass over a stream in lists of rows. Every rank reads its own share; ranks that end early yield filler."""

    def __init__(self, stream: Any, batch_size: int, accelerator: Any) -> None:
        super().__init__()
        self.stream = stream
        self.batch_size = batch_size
        self._accelerator = accelerator

    def __iter__(self) -> Iterator[list[Any]]:
        rows = iter(self.stream)
        while True:
            batch = list(itertools.islice(rows, self.batch_size))
            # Trainer's loop gathers once a batch, so all ranks have to run the same number of them.
            if sum_over_ranks(self._accelerator, [len(batch)])[0] == 0:
                return
            yield batch


def train_loader(
    arranged: Arranged,
    collate: Callable[[Any], Any],
    args: Any,
    settings: PackingSettings,
    *,
    batch_size: int,
    ranks: Ranks,
    config: Any,
    grouped: bool,
) -> PackingDataLoader:
    """Batches of packs, or of sequences up to a token budget: other neighbours each epoch, alike in cost on all ranks.

    `train_sampling_strategy="sequential"` keeps the order of the packs, epoch after epoch.
    """
    workers = _worker_settings(args, args.dataloader_num_workers)
    if args.train_sampling_strategy == "sequential":
        in_order = InOrderBatchSampler(len(arranged.dataset), batch_size, num_replicas=ranks.count, rank=ranks.rank)
        return PackingDataLoader(arranged.dataset, batch_sampler=in_order, collate_fn=collate, **workers)
    size: dict[str, int] = {"batch_size": batch_size}
    if settings.max_tokens_per_batch is not None:
        size = {"max_tokens": settings.max_tokens_per_batch}
    elif grouped:
        size = {"max_tokens": batch_size * (settings.max_length or max(arranged.longest, 1))}
    by_length = grouped or args.train_sampling_strategy == "group_by_length"
    balance = "length" if by_length and not arranged.packed else "attention" if settings.balance_ranks else None
    if by_length and arranged.packed:
        logger.warning(
            "train_sampling_strategy='group_by_length' has no effect on packs: all are about max_length long."
        )
    on_epoch = getattr(arranged.dataset, "set_epoch", None) if settings.repack_each_epoch else None
    sampler = EpochBatchSampler(
        arranged.lengths,
        **size,
        num_replicas=ranks.count,
        rank=ranks.rank,
        seed=settings.seed,
        balance=balance,
        cost=_cost(config) if balance == "attention" else None,
        drop_last=args.dataloader_drop_last,
        on_epoch=on_epoch,
    )
    return PackingDataLoader(
        arranged.dataset,
        batch_sampler=sampler,
        collate_fn=collate,
        **workers,
    )


def stream_loader(stream: StreamBatches, collate: Callable[[Any], Any], args: Any) -> DataLoader:
    """Micro-batches of a stream, drawn in this process: its place is then known exactly, which a resume needs."""
    if args.dataloader_num_workers:
        logger.warning("dataloader_num_workers is ignored for a stream: workers would read ahead of its saved place.")
    return DataLoader(stream, batch_size=None, collate_fn=collate, **_worker_settings(args, 0))


def eval_loader(
    arranged: Arranged, collate: Callable[[Any], Any], args: Any, ranks: Ranks, accelerator: Any
) -> DataLoader:
    """Every sequence once, whatever the number of ranks."""
    dataset = arranged.dataset
    if arranged.is_stream:
        stream = EvalStream(dataset, args.eval_batch_size, accelerator)
        return DataLoader(stream, batch_size=None, collate_fn=collate)
    sampler = InOrderBatchSampler(len(dataset), args.eval_batch_size, num_replicas=ranks.count, rank=ranks.rank)
    return DataLoader(
        dataset, batch_sampler=sampler, collate_fn=collate, **_worker_settings(args, args.dataloader_num_workers)
    )


def _worker_settings(args: Any, workers: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "num_workers": workers,
        "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
        # A generator of its own, so that making a loader leaves the run's random numbers alone.
        "generator": torch.Generator().manual_seed(args.seed),
    }
    if workers:
        settings |= {
            "persistent_workers": args.dataloader_persistent_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }
    return settings


def _cost(config: Any) -> tuple[float, float] | None:
    try:
        return attention_cost(config)
    except PackingError as error:
        logger.info(
            "Packs are balanced by attention alone, since the model's config does not tell its cost: %s", error
        )
        return None
