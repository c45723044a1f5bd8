"""Dealing the units of a step to the ranks.

Shape legend: N ranks, B units a batch; a step is `[N·B]` units, the most expensive one first, −1 where one is missing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


__all__ = ["deal_evenly", "deal_neighbours"]

IntArray = NDArray[np.int64]


def deal_evenly(steps: IntArray, costs: NDArray[np.float64], ranks: int) -> IntArray:
    """Batches `[steps, N, B]` whose summed costs come close.

    Each round deals one unit a rank, the most expensive one to the rank with the least so far (LPT, Graham 1969, with
    equal numbers).

    Args:
        steps (int64 `[steps, N·B]`): units.
        costs (float64 `[P]`): cost of every unit.
        ranks (`int`): N.

    Example:

        >>> costs = np.array([9.0, 7.0, 4.0, 1.0])
        >>> deal_evenly(np.array([[0, 1, 2, 3]]), costs, 2).tolist()  # 9 + 1 and 7 + 4
        [[[0, 3], [1, 2]]]
    """
    rounds = steps.reshape(steps.shape[0], -1, ranks)
    dealt = np.empty_like(rounds)
    loads = np.zeros((steps.shape[0], ranks))
    for turn in range(rounds.shape[1]):
        lightest = np.argsort(loads, axis=1, kind="stable")
        np.put_along_axis(dealt[:, turn], lightest, rounds[:, turn], axis=1)
        loads += np.where(dealt[:, turn] >= 0, costs[dealt[:, turn]], 0.0)
    return dealt.transpose(0, 2, 1)


def deal_neighbours(steps: IntArray, ranks: int) -> IntArray:
    """Batches `[steps, N, B]` of neighbours; in a step that is not full every rank misses about the same number.

    Example:

        >>> deal_neighbours(np.array([[4, 2, 5, 1, 0, -1, -1, -1]]), 2).tolist()  # 3 and 2, not 4 and 1
        [[[4, 2, 5, -1], [1, 0, -1, -1]]]
    """
    present = (steps >= 0).sum(axis=1, keepdims=True)
    size = steps.shape[1] // ranks
    share, extra = np.divmod(present, ranks)
    sizes = share + (np.arange(ranks) < extra)
    firsts = np.cumsum(sizes, axis=1) - sizes
    seats = np.arange(size)
    at = np.minimum(firsts[:, :, None] + seats, steps.shape[1] - 1)
    dealt = np.take_along_axis(steps[:, None, :], at, axis=2)
    return np.where(seats < sizes[:, :, None], dealt, -1)
