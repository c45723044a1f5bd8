"""Proofs that no plan can have fewer packs, as whole numbers that a few lines can check.

Give every size a weight such that no pack that can exist weighs more than `pack_weight`. Then the total weight over
`pack_weight`, rounded up, is a lower bound on the number of packs. All bounds here are of this form:

    size          weight = size,                                   pack_weight = capacity          (⌈T / L⌉)
    martello-toth weight = size, capacity or 0 (large, small),     pack_weight = capacity
    number        weight = 1,                                      pack_weight = max_sequences
    duals         weight = duals of the LP, rounded to integers,   pack_weight = an exact integer knapsack

Shape legend: D distinct sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .lengths import LengthHistogram


__all__ = ["BoundCertificate", "heaviest_pack", "simple_bound"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundCertificate:
    """Weights that prove `bound` packs are needed, and everything needed to check that they do.

    Example: three sequences of 6 in packs of 10 need three packs, though their 18 tokens would fit in two.

        >>> proof = simple_bound(LengthHistogram(np.array([6]), np.array([3])), capacity=10)
        >>> proof.bound, proof.kind, proof.weights.tolist(), proof.pack_weight
        (3, 'martello-toth', [10], 10)
        >>> proof.holds()
        True
    """

    kind: str
    """Where the weights come from: size, martello-toth, number, duals."""
    capacity: int
    """Slots of a pack."""
    max_sequences: int | None
    """Most sequences in a pack."""
    sizes: NDArray[np.int64]
    """`[D]`: slots a sequence occupies."""
    counts: NDArray[np.int64]
    """`[D]`: sequences of each size."""
    weights: NDArray[np.int64]
    """`[D]`: weight of one sequence of each size, at least 0."""
    pack_weight: int
    """The most a pack can weigh."""
    own_packs: int = 0
    """Packs of one over-long sequence each, which come on top."""

    @property
    def bound(self) -> int:
        """`own_packs` + ⌈total weight / `pack_weight`⌉, in exact integers."""
        total = sum(weight * count for weight, count in zip(self.weights.tolist(), self.counts.tolist()))
        return self.own_packs + (-(-total // self.pack_weight) if total else 0)

    def holds(self) -> bool:
        """Whether no pack weighs more than `pack_weight`, by a knapsack in exact integers (O(D · capacity))."""
        heaviest = heaviest_pack(self.sizes, self.weights, self.capacity, self.max_sequences)
        return bool((self.weights >= 0).all()) and heaviest <= self.pack_weight


def heaviest_pack(
    sizes: NDArray[np.int64], weights: NDArray[np.int64], capacity: int, max_sequences: int | None = None
) -> int:
    """The most any pack can weigh: an integer knapsack with as many sequences of a size as fit.

    Example:

        >>> heaviest_pack(np.array([3, 5]), np.array([4, 7]), 10)
        14
        >>> heaviest_pack(np.array([1, 5]), np.array([1, 7]), 8, max_sequences=2)
        8
    """
    if not sizes.size:
        return 0
    step = int(np.gcd.reduce(sizes))
    sizes, capacity = sizes // step, capacity // step
    useful = weights > 0
    sizes, weights = sizes[useful], weights[useful]
    fits = sizes <= capacity
    sizes, weights = sizes[fits], weights[fits]
    if not sizes.size:
        return 0
    most = capacity // int(sizes.min())
    if max_sequences is not None and max_sequences < most:
        return _heaviest_of_few(sizes, weights, capacity, max_sequences)
    best = np.zeros(capacity + 1, dtype=np.int64)
    for room in range(int(sizes.min()), capacity + 1):
        usable = sizes.searchsorted(room, side="right")
        best[room] = max(int((best[room - sizes[:usable]] + weights[:usable]).max()), int(best[room - 1]))
    return int(best[capacity])


def _heaviest_of_few(sizes: NDArray[np.int64], weights: NDArray[np.int64], capacity: int, most: int) -> int:
    # best[room] with one sequence more in each pass: the old row shifted by a size plus its weight, best of all sizes.
    best = np.zeros(capacity + 1, dtype=np.int64)
    for _ in range(most):
        before = best.copy()
        for size, weight in zip(sizes.tolist(), weights.tolist()):
            np.maximum(best[size:], before[: capacity + 1 - size] + weight, out=best[size:])
    return int(best[capacity])


def simple_bound(
    sizes: LengthHistogram, capacity: int, max_sequences: int | None = None, own_packs: int = 0
) -> BoundCertificate:
    """The best of the bounds that need no search: total size, Martello and Toth's L2 (1990), number.

    L2 takes a threshold t ≤ capacity / 2: a sequence above capacity − t leaves no room for one of t or more and weighs
    a whole pack, one below t weighs nothing, the others their size. Half the capacity rounded up as the threshold says
    that two sequences above the half never share.

    Example:

        >>> simple_bound(LengthHistogram(np.array([4, 7]), np.array([4, 4])), capacity=10).bound
        6
    """
    candidates = [("size", sizes.sizes, capacity)]
    threshold, total = _best_threshold(sizes, capacity)
    if total > sizes.tokens:
        candidates.append(("martello-toth", _threshold_weights(sizes.sizes, capacity, threshold), capacity))
    if max_sequences is not None:
        candidates.append(("number", np.ones_like(sizes.sizes), max_sequences))
    proofs = [
        BoundCertificate(
            kind=kind,
            capacity=capacity,
            max_sequences=max_sequences,
            sizes=sizes.sizes,
            counts=sizes.counts,
            weights=weights,
            pack_weight=pack_weight,
            own_packs=own_packs,
        )
        for kind, weights, pack_weight in candidates
    ]
    return max(proofs, key=lambda proof: proof.bound)


def _threshold_weights(sizes: NDArray[np.int64], capacity: int, threshold: int) -> NDArray[np.int64]:
    weights = np.where(sizes < threshold, 0, sizes)
    weights[sizes > capacity - threshold] = capacity
    return weights


def _best_threshold(sizes: LengthHistogram, capacity: int) -> tuple[int, int]:
    """The threshold with the largest total weight; only sizes up to half the capacity, and just above it, matter."""
    half = capacity // 2
    thresholds = np.append(sizes.sizes[sizes.sizes <= half], (capacity + 1) // 2)
    counts_before = np.concatenate([[0], np.cumsum(sizes.counts)])
    tokens_before = np.concatenate([[0], np.cumsum(sizes.counts * sizes.sizes)])
    small = sizes.sizes.searchsorted(thresholds, side="left")
    large = np.maximum(sizes.sizes.searchsorted(capacity - thresholds, side="right"), small)
    totals = tokens_before[large] - tokens_before[small] + capacity * (counts_before[-1] - counts_before[large])
    best = int(totals.argmax())
    return int(thresholds[best]), int(totals[best])
