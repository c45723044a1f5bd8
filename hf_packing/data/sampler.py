"""PackBatchSampler: which packs each rank trains on in each step, alike in cost within a step.

Shape legend: U units (packs, or sequences where nothing is packed), N ranks, B units a batch, W steps a window.

    random order of all units ─► windows of W·N·B ─► sorted by cost, cut into W steps ─► N batches of like cost
                                                     └ steps in random order            └ random rank

Every rank computes the whole window and keeps its own batches, so that no rank needs to ask another. One window of
16 steps on 1,000 ranks is 16,000 packs; the rest of the corpus is not touched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from ..errors import PackingError
from .cost import pack_sums
from .shuffle import RandomOrder, random_keys


__all__ = ["PackBatchSampler"]

Balance = Literal["attention", "length"] | None

# Windows are computed in groups of about this many units: NumPy's cost per call vanishes, memory stays a few MB.
_GROUP = 1 << 14
# Streams of random numbers that must not repeat each other.
_ORDER, _STEPS, _RANKS = range(3)


@runtime_checkable
class _Packs(Protocol):
    """What the sampler reads of a PackPlan."""

    lengths: NDArray[np.int64]
    pack_offsets: NDArray[np.int64]


class PackBatchSampler(Sampler[list[int]]):
    """Batches of packs for one of N ranks: the same number on each, balanced, different in every epoch, resumable.

    Every unit comes once an epoch, on one rank. Where the units do not fill the last step, its batches are smaller on
    every rank alike, and a rank for which nothing is left gets an empty batch `[]`: the trainers' collator turns it
    into a filler micro-batch without targets. All ranks compute the same schedule from the seed, without
    communication.

    Args:
        lengths_or_plan: a `PackPlan`; or one length a sequence (1-D integers); or a list of lengths a pack
            (`seq_lengths` of a packed dataset). The sampler yields indices of its packs, or sequences.
        batch_size (`int`, *optional*): packs (or sequences) a batch. Either this or `max_tokens`.
        max_tokens (`int`, *optional*): most tokens a batch; batches are then filled with sequences up to this budget.
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
        step = (batch_size or 1) * num_replicas
        self._full_steps, self._left_over = divmod(tokens.size, step)

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
        return {"epoch": self.epoch, "batches": position, "schedule": self._schedule()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the state's epoch behind its last batch, with the next iteration."""
        here, there = self._schedule(), state["schedule"]
        different = sorted(name for name in here if here[name] != there.get(name))
        if different:
            values = ", ".join(f"{name} {there.get(name)!r} (now {here[name]!r})" for name in different)
            raise PackingError(
                f"This state belongs to another schedule: it was saved with {values}. Resuming would repeat some "
                "sequences and skip others; restore these settings, or start a new epoch with set_epoch."
            )
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

    def _schedule(self) -> dict[str, Any]:
        """Everything that decides which batch comes when, except the rank."""
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

    def _batches(self, start: int) -> Iterator[list[int]]:
        """This rank's batches from number `start` on; a window is computed only when its turn comes."""
        per_step = (self.batch_size or 1) * self.num_replicas
        group = max(1, _GROUP // (self.window * per_step)) * self.window
        whole = self._full_steps - self._full_steps % self.window
        order = _Order(self._costs, self.seed, self.epoch, per_step if self.heaviest_first else 0)
        blocks = [(first, min(first + group, whole)) for first in range(0, whole, group)]
        blocks += [(whole, self._full_steps)] if whole < self._full_steps else []
        for first, last in blocks:
            if last <= start:
                continue
            steps = self._assign(order, first, last)[:, self.rank]
            yield from steps[max(0, start - first) :].tolist()
        if len(self) > self._full_steps and start < len(self):
            batch = self._assign(order, self._full_steps, self._full_steps + 1)[0, self.rank]
            yield [unit for unit in batch.tolist() if unit >= 0]

    def _assign(self, order: _Order, first: int, last: int) -> NDArray[np.int64]:
        """Units of the steps `first` to `last` (whole windows, or part of one), `[steps, N, B]`, −1 for none."""
        steps = min(self.window, last - first)
        ranks, size = self.num_replicas, self.batch_size or 1
        positions = np.arange(first * ranks * size, last * ranks * size)
        present = positions < self._costs.size
        units = np.where(present, order(np.minimum(positions, self._costs.size - 1)), -1)
        costs = np.where(present, self._costs[units], -1.0)
        units, costs = units.reshape(-1, steps * ranks * size), costs.reshape(-1, steps * ranks * size)
        if self.balance is not None:
            by_cost = np.argsort(-costs, axis=1, kind="stable")
            units, costs = (np.take_along_axis(values, by_cost, axis=1) for values in (units, costs))
        units, costs = (values.reshape(-1, ranks * size) for values in (units, costs))
        batches = _fold(units, costs, ranks) if self.balance == "attention" else _cut(units, ranks)

        numbers = (self.seed, self.epoch)
        step_keys = random_keys(np.arange(first, last), *numbers, _STEPS)
        if first == 0 and self.epoch == 0 and self.heaviest_first:
            step_keys[0] = 0
        turns = np.argsort(step_keys.reshape(-1, steps), axis=1, kind="stable")
        turns += np.arange(0, last - first, steps)[:, None]
        rank_keys = random_keys(np.arange(first * ranks, last * ranks), *numbers, _RANKS)
        seats = np.argsort(rank_keys.reshape(-1, ranks), axis=1, kind="stable")
        return np.take_along_axis(batches[turns.reshape(-1)], seats[:, :, None], axis=1)


def _fold(units: NDArray[np.int64], costs: NDArray[np.float64], ranks: int) -> NDArray[np.int64]:
    """Units of every step, most expensive first, dealt out so that the ranks' costs come close: `[steps, N, B]`.

    Each round deals one unit a rank, the most expensive one to the rank with the least so far (LPT, Graham 1969, with
    equal numbers). For costs [9, 7, 4, 1] on 2 ranks: round 1 deals 9 and 7, round 2 deals 4 to the second rank and
    1 to the first: 10 and 11.
    """
    rounds = units.reshape(units.shape[0], -1, ranks)
    dealt = np.empty_like(rounds)
    loads = np.zeros((units.shape[0], ranks))
    for turn in range(rounds.shape[1]):
        lightest = np.argsort(loads, axis=1, kind="stable")
        np.put_along_axis(dealt[:, turn], lightest, rounds[:, turn], axis=1)
        added = np.empty_like(loads)
        np.put_along_axis(added, lightest, costs.reshape(rounds.shape)[:, turn], axis=1)
        loads += np.maximum(added, 0)  # a missing unit costs nothing; its −1 only sorts it to the end
    return dealt.transpose(0, 2, 1)


def _cut(units: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """Neighbours share a batch, `[steps, N, B]`; units missing from the last step are missing on all ranks alike."""
    size = units.shape[1] // ranks
    missing = int((units[-1] < 0).sum())
    if not missing:
        return units.reshape(-1, ranks, size)
    # 5 units for 2 ranks of 4 are cut into [3, 2], not into [4, 1]. There is one such step, and it comes alone.
    cut = np.full((1, ranks, size), -1, dtype=np.int64)
    for rank, part in enumerate(np.array_split(units[-1][units[-1] >= 0], ranks)):
        cut[0, rank, : part.size] = part
    return cut


class _Order:
    """The epoch's random order of the units, the `first` most expensive ones moved to its front in epoch 0."""

    def __init__(self, costs: NDArray[np.float64], seed: int, epoch: int, first: int) -> None:
        self._order = RandomOrder(costs.size, seed, epoch, _ORDER)
        first = min(first, costs.size) if epoch == 0 else 0
        front = self._order(np.arange(first)).tolist()
        # Exchanging the unit at each front place with the wanted one keeps the order a permutation.
        moved: dict[int, int] = {}
        origin: dict[int, int] = {}
        for there, wanted in zip(front, _heaviest(costs, first)):
            here, source = moved.get(there, there), origin.get(wanted, wanted)
            moved[there], moved[source] = wanted, here
            origin[wanted], origin[here] = there, source
        self._from = np.array(sorted(moved), dtype=np.int64)
        self._to = np.array([moved[key] for key in sorted(moved)], dtype=np.int64)

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        units = self._order(positions)
        if self._from.size:
            at = np.minimum(np.searchsorted(self._from, units), self._from.size - 1)
            units = np.where(self._from[at] == units, self._to[at], units)
        return units


def _heaviest(costs: NDArray[np.float64], count: int) -> list[int]:
    """The `count` most expensive units, ties in order of their index on every machine."""
    if count == 0:
        return []
    bound = np.partition(costs, costs.size - count)[costs.size - count]
    candidates = np.flatnonzero(costs >= bound)
    return candidates[np.argsort(-costs[candidates], kind="stable")][:count].tolist()


def _read_lengths(lengths_or_plan: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths of all sequences, and where each unit's begin."""
    if isinstance(lengths_or_plan, _Packs):
        return np.asarray(lengths_or_plan.lengths), np.asarray(lengths_or_plan.pack_offsets)
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
