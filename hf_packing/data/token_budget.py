"""Batches up to a budget of tokens: as many in every epoch, with other neighbours in each.

Shape legend: P units (sequences), M batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import PackingError
from ..plan import plan_packs
from .shuffle import random_keys


__all__ = ["fill_batches", "group_batches", "split_batches"]

IntArray = NDArray[np.int64]

# Each turn tries to exchange one unit a batch. Large sets repeat their lengths, so that most tries fit; in small ones
# few do, and more turns cost nothing.
_MIN_TURNS, _MAX_TURNS, _TRIES = 8, 256, 1 << 18


def fill_batches(tokens: IntArray, max_tokens: int, seed: int, epoch: int) -> list[IntArray]:
    """As few batches of at most `max_tokens` tokens as best-fit decreasing needs, whatever the epoch.

    Args:
        tokens (int64 `[P]`): tokens of every unit.
        max_tokens (`int`): the budget.
        seed (`int`): chooses, with the epoch, which units meet.
        epoch (`int`): the number of batches does not depend on it.

    Returns:
        Units of every batch, int64.

    Raises:
        PackingError: for a unit above the budget.

    Example:

        >>> sorted(sorted(batch.tolist()) for batch in fill_batches(np.array([6, 3, 4, 2]), 8, seed=0, epoch=0))
        [[0, 3], [1, 2]]
    """
    _check_budget(tokens, max_tokens)
    plan = plan_packs(tokens, max_tokens, seed=int(random_keys(np.array([epoch]), seed)[0]))
    units = plan.sequence_ids.copy()
    if plan.num_packs:
        _exchange(units, plan.pack_offsets, tokens, max_tokens, padded=False, numbers=(seed, epoch))
    return np.split(units, plan.pack_offsets[1:-1]) if plan.num_packs else []


def group_batches(tokens: IntArray, max_tokens: int, seed: int, epoch: int) -> list[IntArray]:
    """Batches of units of like length whose padded size (longest × number) is at most `max_tokens`.

    Units are cut in order of length, each batch as wide as the budget allows; then neighbouring batches exchange units
    where both stay within it. Units of like length meet again: that is what grouping by length means.

    Example:

        >>> [sorted(batch.tolist()) for batch in group_batches(np.array([6, 3, 3, 2]), 8, seed=0, epoch=0)]
        [[1, 3], [2], [0]]
    """
    _check_budget(tokens, max_tokens)
    units = np.lexsort((random_keys(np.arange(tokens.size), seed, epoch), tokens))
    ordered, cuts = tokens[units], [0]
    while cuts[-1] < units.size:
        cuts.append(cuts[-1] + _widest(ordered, cuts[-1], max_tokens))
    if not units.size:
        return []
    _exchange(units, np.array(cuts), tokens, max_tokens, padded=True, numbers=(seed, epoch))
    return np.split(units, cuts[1:-1])


def split_batches(batches: list[IntArray], count: int) -> list[IntArray]:
    """Split the batches with the most units in two until there are `count`, or nothing is left to split.

    Example:

        >>> [batch.tolist() for batch in split_batches([np.array([4, 7, 1]), np.array([2])], 3)]
        [[4, 7], [2], [1]]
    """
    batches = list(batches)
    while 0 < len(batches) < count:
        widest = max(range(len(batches)), key=lambda at: batches[at].size)
        batch = batches[widest]
        if batch.size < 2:
            break
        half = (batch.size + 1) // 2
        batches[widest] = batch[:half]
        batches.append(batch[half:])
    return batches


def _exchange(
    units: IntArray, offsets: IntArray, tokens: IntArray, max_tokens: int, *, padded: bool, numbers: tuple[int, int]
) -> None:
    """Exchange units between batches, in place, where both stay within the budget; the number of batches stays."""
    sizes = np.diff(offsets)
    for turn in range(min(_MAX_TURNS, max(_MIN_TURNS, _TRIES // units.size))):
        keys = random_keys(np.arange(sizes.size), *numbers, turn)
        # Units of like length stay together where only neighbouring batches exchange; else any two may.
        order = np.arange(turn % 2, sizes.size) if padded else np.argsort(keys, kind="stable")
        order = order[: order.size // 2 * 2]
        left, right = order[0::2], order[1::2]
        picked = offsets[:-1] + (random_keys(keys.astype(np.int64), turn) % sizes.astype(np.uint64)).astype(np.int64)
        _swap(units, picked[left], picked[right])
        values = tokens[units]
        used = sizes * np.maximum.reduceat(values, offsets[:-1]) if padded else np.add.reduceat(values, offsets[:-1])
        over = (used[left] > max_tokens) | (used[right] > max_tokens)
        _swap(units, picked[left[over]], picked[right[over]])


def _swap(units: IntArray, here: IntArray, there: IntArray) -> None:
    units[here], units[there] = units[there], units[here]


def _widest(ordered: IntArray, start: int, max_tokens: int) -> int:
    """Most units from `start` on whose padded size fits; ordered lengths make the last one the longest."""
    reach = ordered[start : start + int(max_tokens // ordered[start])]
    return int(np.searchsorted(reach * np.arange(1, reach.size + 1), max_tokens, side="right"))


def _check_budget(tokens: IntArray, max_tokens: int) -> None:
    if tokens.size and tokens.max() > max_tokens:
        at = int(tokens.argmax())
        raise PackingError(
            f"Sequence {at} (counting from 0) has {int(tokens[at])} tokens, more than a batch may hold: "
            f"max_tokens={max_tokens}, {int((tokens > max_tokens).sum())} such sequences. Raise max_tokens, or "
            "truncate or split long sequences first."
        )
