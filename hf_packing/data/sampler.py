"""PackBatchSampler: which packs each rank trains on in each step, alike in cost within a step.

Shape legend: P units (packs, or sequences where nothing is packed), N ranks, B units a batch, K = N·B units a step.

    lengths ─► cost of each unit ─► EpochOrder: K units of like cost a step ─► dealt to the ranks ─► one rank's batches

Every rank computes the steps of all ranks and keeps its own batches, so that no rank needs to ask another.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from ..errors import PackingError
from .cost import pack_sums
from .deal import deal_evenly, deal_neighbours
from .epoch_order import EpochOrder, sort_by_cost
from .shuffle import random_keys
from .token_budget import fill_batches, group_batches, split_batches


__all__ = ["PackBatchSampler", "check_schedule"]

logger = logging.getLogger(__name__)

Balance = Literal["attention", "length"] | None


@runtime_checkable
class _Packs(Protocol):
    """What is read of a `PackPlan`: the lengths of all sequences, pack after pack, and where each pack begins."""

    lengths: NDArray[np.int64]
    pack_offsets: NDArray[np.int64]


# Windows are computed in blocks of about this many units: NumPy's cost per call vanishes, memory stays a few MB.
_BLOCK = 1 << 14
_RANKS = 16  # a stream of random numbers of its own, beside those of epoch_order.py


class PackBatchSampler(Sampler[list[int]]):
    """Batches of packs for one of N ranks: the same number on each, balanced, different in every epoch, resumable.

    Every unit comes once an epoch, on one rank. Where the units do not fill the last step, its batches are smaller on
    every rank alike, and a rank for which nothing is left gets an empty batch `[]`: the trainers' collator turns it
    into a filler micro-batch without targets. All ranks compute the same schedule from the seed, without
    communication. A loader over it is used as it is: `accelerator.prepare` would share it out a second time.

    Args:
        lengths_or_plan: a `PackPlan`; or one length a sequence (1-D integers); or a list of lengths a pack
            (`seq_lengths` of a packed dataset). The sampler yields indices of its packs, or sequences.
        batch_size (`int`, *optional*): packs (or sequences) a batch. Either this or `max_tokens`.
        max_tokens (`int`, *optional*): most tokens a batch; batches are then filled with sequences up to this budget
            (with `balance="length"`: up to this padded size, longest × number).
        num_replicas (`int`, *optional*, defaults to `1`): ranks that train on different data.
        rank (`int`, *optional*, defaults to `0`): this one of them.
        seed (`int`, *optional*, defaults to `0`): chooses the order; the same on every rank.
        balance (`str` or `None`, *optional*, defaults to `"attention"`): `"attention"`: the batches of one step cost
            about the same on all ranks, so that none waits. `"length"`: each batch holds units of like length (less
            padding where rows are padded). `None`: random.
        cost (`tuple[float, float]`, *optional*): (a, b) of the cost a·l + b·l² of a sequence of l tokens, from
            `attention_cost(model.config)`. Without it b·l² alone decides: packs hold almost the same number of tokens,
            so only attention tells them apart.
        window (`int`, *optional*, defaults to `16`): steps within which units are exchanged. More of them balance
            better, fewer keep the order more random.
        drop_last (`bool`, *optional*, defaults to `False`): leave out the last step where it is not full. Other units
            are left out in every epoch.
        heaviest_first (`bool`, *optional*, defaults to `False`): the first step of epoch 0 takes the most expensive
            units, so that running out of memory shows at once.

    Raises:
        PackingError: on lengths below 1, on both or none of `batch_size` and `max_tokens`, on a rank outside
            0..num_replicas − 1, and on a state of another schedule.

    Example:

        >>> packs = [[5, 3], [8], [4, 4], [2, 2, 2, 2], [7], [6, 2]]
        >>> ranks = [PackBatchSampler(packs, batch_size=1, num_replicas=2, rank=rank) for rank in (0, 1)]
        >>> [len(rank) for rank in ranks]
        [3, 3]
        >>> sorted(index for rank in ranks for batch in rank for index in batch)
        [0, 1, 2, 3, 4, 5]
        >>> sampler = ranks[0]
        >>> rest = list(sampler)[1:]
        >>> sampler.load_state_dict(sampler.state_dict(batches=1))
        >>> list(sampler) == rest
        True
    """

    def __init__(
        self,
        lengths_or_plan: Any,
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        num_replicas: int = 1,
        rank: int = 0,
        seed: int = 0,
        balance: Balance = "attention",
        cost: tuple[float, float] | None = None,
        window: int = 16,
        drop_last: bool = False,
        heaviest_first: bool = False,
    ) -> None:
        _check_settings(batch_size, max_tokens, num_replicas, rank, balance, window)
        self._lengths, self._offsets = _read_lengths(lengths_or_plan)
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.num_replicas = num_replicas
        self.rank = rank
        self.seed = seed
        self.balance = balance
        self.cost = cost or (0.0, 1.0)
        self.window = window
        self.drop_last = drop_last
        self.heaviest_first = heaviest_first
        self.epoch = 0
        self._resume_at = 0
        self._position = 0

        tokens, squares = pack_sums(self._lengths, self._offsets)
        a, b = self.cost
        self._costs = a * tokens + b * squares if balance == "attention" else tokens.astype(np.float64)
        self._tokens = None if max_tokens is None else tokens
        # With one rank there is nothing to balance, and a fully random order is better.
        self._sorts = balance == "length" or (balance == "attention" and num_replicas > 1)
        self._units = self._read_units()
        self._full_steps, self._left_over = divmod(self._units.costs.size, (batch_size or 1) * num_replicas)
        if drop_last and self._left_over and rank == 0:
            logger.warning(
                "drop_last leaves out %s of %s packs (or batches) in every epoch, others each time.",
                self._left_over,
                self._units.costs.size,
            )

    def __len__(self) -> int:
        """Batches of one epoch on every rank; the same in every epoch."""
        return self._full_steps + (0 if self.drop_last or not self._left_over else 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration follows; a position loaded for this epoch is kept."""
        if epoch != self.epoch:
            self.epoch, self._resume_at, self._position = epoch, 0, 0

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where the schedule stands, as JSON-able values; equal on all ranks.

        Args:
            batches (`int`, *optional*): batches of this epoch that were trained on. Give it when a DataLoader sits in
                between: its workers fetch ahead, so more batches have left the sampler than were trained on.
        """
        position = self._position if batches is None else batches
        return {"epoch": self.epoch, "batches": position, "schedule": self.schedule}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the state's epoch behind its last batch, with the next iteration."""
        check_schedule(state["schedule"], self.schedule)
        if not 0 <= state["batches"] <= len(self):
            raise PackingError(f"The state stands at batch {state['batches']} of an epoch of {len(self)} batches.")
        self.epoch = int(state["epoch"])
        self._resume_at = self._position = int(state["batches"])

    def __iter__(self) -> Iterator[list[int]]:
        start, self._resume_at = self._resume_at, 0
        self._position = start
        for batch in self._batches(start):
            self._position += 1
            yield batch

    @cached_property
    def schedule(self) -> dict[str, Any]:
        """Everything that decides which batch comes when, except the rank; JSON-able."""
        digest = hashlib.blake2b(np.ascontiguousarray(self._lengths).data, digest_size=16)
        digest.update(np.ascontiguousarray(self._offsets).data)
        return {
            "lengths": digest.hexdigest(),
            "batch_size": self.batch_size,
            "max_tokens": self.max_tokens,
            "num_replicas": self.num_replicas,
            "seed": self.seed,
            "balance": self.balance,
            "cost": list(self.cost),
            "window": self.window,
            "drop_last": self.drop_last,
            "heaviest_first": self.heaviest_first,
        }

    def _read_units(self) -> _Units:
        """What is dealt out in this epoch: the packs themselves, or batches filled up to the token budget."""
        if self.max_tokens is None or self._tokens is None:
            costs, batches = self._costs, None
        else:
            fill = group_batches if self.balance == "length" else fill_batches
            batches = fill(self._tokens, self.max_tokens, self.seed, self.epoch)
            costs = np.array([self._costs[batch].sum() for batch in batches])
        return _Units(self.epoch, costs, sort_by_cost(costs) if self._sorts else None, batches)

    def _batches(self, start: int) -> Iterator[list[int]]:
        """This rank's batches from number `start` on."""
        if self.max_tokens is not None and self._units.epoch != self.epoch:
            self._units = self._read_units()
        batches = self._units.batches
        for first, steps in self._blocks(start):
            mine = self._deal(steps, first)[max(0, start - first) :, self.rank].tolist()
            if batches is None:
                yield from ([unit for unit in batch if unit >= 0] if batch[-1] < 0 else batch for batch in mine)
            elif first == self._full_steps:  # the last step, which does not fill the ranks: its batches are split
                parts = split_batches([batches[unit] for unit in steps[0] if unit >= 0], self.num_replicas)
                yield parts[self.rank].tolist() if self.rank < len(parts) else []
            else:
                yield from (batches[unit].tolist() for (unit,) in mine)

    def _blocks(self, start: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Number of a first step, and the units of the steps from there on, `[steps, K]`, −1 for none."""
        per_step = (self.batch_size or 1) * self.num_replicas
        head = int(self.heaviest_first and self.epoch == 0 and self._full_steps > 0)
        order = EpochOrder(
            self._units.costs,
            self._units.by_cost,
            per_step=per_step,
            window=self.window,
            numbers=(self.seed, self.epoch),
            head=bool(head),
        )
        if head and start == 0:
            yield 0, order.head[None]
        block = max(1, _BLOCK // (self.window * per_step)) * self.window
        for first in range(0, order.full_steps, block):
            last = min(first + block, order.full_steps)
            if last + head > start:
                yield first + head, order.steps(first, last)
        if start < len(self) and len(self) > self._full_steps:
            yield self._full_steps, np.pad(order.tail, (0, per_step - order.tail.size), constant_values=-1)[None]

    def _deal(self, steps: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        """The units of these steps as batches of all ranks, `[steps, N, B]`, ranks in random order."""
        ranks = self.num_replicas
        evenly = self.balance == "attention" and ranks > 1
        batches = deal_evenly(steps, self._units.costs, ranks) if evenly else deal_neighbours(steps, ranks)
        numbers = np.arange(first * ranks, (first + steps.shape[0]) * ranks)
        keys = random_keys(numbers, self.seed, self.epoch, _RANKS).reshape(-1, ranks)
        return np.take_along_axis(batches, np.argsort(keys, axis=1, kind="stable")[:, :, None], axis=1)


def check_schedule(saved: dict[str, Any], schedule: dict[str, Any]) -> None:
    """Compare the `schedule` of the run that is resumed with the one of this run.

    Raises:
        PackingError: batch n would not hold the sequences that it held there.
    """
    different = sorted(name for name in schedule if schedule[name] != saved.get(name))
    if different:
        values = ", ".join(f"{name} {saved.get(name)!r} (now {schedule[name]!r})" for name in different)
        raise PackingError(
            f"This state belongs to another schedule: it was saved with {values}. Resuming would repeat some "
            "sequences and skip others; restore these settings, or begin an epoch anew (set_epoch; in a trainer, "
            "ignore_data_skip=True)."
        )


@dataclass(frozen=True)
class _Units:
    """What one epoch deals out."""

    epoch: int
    costs: NDArray[np.float64]
    by_cost: NDArray[np.integer] | None
    batches: list[NDArray[np.int64]] | None
    """Sequences of each unit; `None` where a unit is a pack."""


def _read_lengths(lengths_or_plan: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths of all sequences, and where each unit's begin."""
    if isinstance(lengths_or_plan, _Packs):
        return lengths_or_plan.lengths, lengths_or_plan.pack_offsets
    packed = len(lengths_or_plan) > 0 and np.ndim(lengths_or_plan[0]) == 1
    flat = np.concatenate([np.asarray(pack) for pack in lengths_or_plan]) if packed else np.asarray(lengths_or_plan)
    if flat.ndim != 1 or (flat.size and flat.dtype.kind not in "iu"):
        raise PackingError(
            f"Lengths must be a 1-D array of integers, a list of lists of them, or a PackPlan; got {flat.ndim} "
            f"dimensions of {flat.dtype}."
        )
    if flat.size and flat.min() < 1:
        at = int(flat.argmin())
        raise PackingError(f"Sequence {at} (counting from 0) has length {int(flat[at])}; drop empty sequences first.")
    sizes = np.array([len(pack) for pack in lengths_or_plan]) if packed else np.ones(flat.size, np.int64)
    return flat.astype(np.int64, copy=False), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _check_settings(
    batch_size: int | None, max_tokens: int | None, num_replicas: int, rank: int, balance: Balance, window: int
) -> None:
    if (batch_size is None) == (max_tokens is None):
        raise PackingError(
            "Give either batch_size (packs a batch) or max_tokens (tokens a batch); got "
            f"batch_size={batch_size!r} and max_tokens={max_tokens!r}."
        )
    counts = {"batch_size": batch_size, "max_tokens": max_tokens, "num_replicas": num_replicas, "window": window}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise PackingError(f"{name} must be at least 1, got {value}.")
    if not 0 <= rank < num_replicas:
        raise PackingError(f"rank must lie in 0..{num_replicas - 1} for num_replicas={num_replicas}, got {rank}.")
    if balance not in ("attention", "length", None):
        raise PackingError(f"balance must be 'attention', 'length' or None, got {balance!r}.")
