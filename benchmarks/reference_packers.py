"""Packers to compare with: first fit, first-fit decreasing, shortest-pack-first and non-negative least squares.

Written from their descriptions, for clarity and not for speed. Shortest-pack-first (SPFHP) and non-negative least
squares (NNLSHP) histogram packing are those of Krell et al., "Efficient Sequence Packing without Cross-contamination",
arXiv:2107.02027: both take `depth`, the most sequences in a pack.

A packing is a list of (sizes of one pack, how many such packs).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from scipy.optimize import nnls


Packing = list[tuple[tuple[int, ...], int]]


def one_each(sizes: np.ndarray, counts: np.ndarray) -> Packing:
    """No packing: every sequence has a row of its own."""
    return [((size,), count) for size, count in zip(sizes.tolist(), counts.tolist())]


def in_order(lengths: np.ndarray, capacity: int) -> Packing:
    """Next fit on the sequences as they come: a pack is closed when the next sequence does not fit ("greedy")."""
    packs: Packing = []
    pack: list[int] = []
    room = capacity
    for length in lengths.tolist():
        if length > room:
            packs.append((tuple(pack), 1))
            pack, room = [], capacity
        pack.append(length)
        room -= length
    return [*packs, (tuple(pack), 1)] if pack else packs


def first_fit(lengths: np.ndarray, capacity: int) -> Packing:
    """Each sequence into the first pack, in order of opening, that has room; a tree of rooms finds it."""
    leaves = 1 << max(1, int(lengths.size - 1).bit_length())
    most = [0] * (2 * leaves)  # the largest room below a node; packs not opened yet have none
    packs: list[list[int]] = []
    for length in lengths.tolist():
        if most[1] >= length:
            node = 1
            while node < leaves:
                node = 2 * node if most[2 * node] >= length else 2 * node + 1
            packs[node - leaves].append(length)
            most[node] -= length
        else:
            node = leaves + len(packs)
            packs.append([length])
            most[node] = capacity - length
        while node > 1:
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1])
    return [(tuple(pack), 1) for pack in packs]


def first_fit_decreasing(lengths: np.ndarray, capacity: int) -> Packing:
    """First fit, longest sequences first."""
    return first_fit(np.sort(lengths)[::-1], capacity)


def shortest_pack_first(sizes: np.ndarray, counts: np.ndarray, capacity: int, depth: int | None) -> Packing:
    """Longest size first; all its sequences go to the emptiest packs that can take one, else to new packs.

    Packs that have reached `depth` sequences are closed.
    """
    most = depth or capacity
    open_packs: dict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)  # by room
    closed: Packing = []
    for size, left in zip(sizes[::-1].tolist(), counts[::-1].tolist()):
        room = capacity
        placed: list[tuple[int, tuple[int, ...], int]] = []
        for room in sorted((room for room in open_packs if room >= size), reverse=True):
            while left and open_packs[room]:
                pack, times = open_packs[room].pop()
                used = min(left, times)
                if used < times:
                    open_packs[room].append((pack, times - used))
                placed.append((room - size, (*pack, size), used))
                left -= used
            if not left:
                break
        if left:
            placed.append((capacity - size, (size,), left))
        for room, pack, times in placed:
            if len(pack) == most or not room:
                closed.append((pack, times))
            else:
                open_packs[room].append((pack, times))
    return closed + [entry for stack in open_packs.values() for entry in stack]


def least_squares(sizes: np.ndarray, counts: np.ndarray, capacity: int) -> Packing:
    """Non-negative least squares over all exact packs of at most three, rounded, the rest as it is.

    Minimises the weighted difference between sequences there are and sequences in packs; what is left over is packed
    alone or dropped from packs that got too many, as the authors do: padding takes the place of a missing sequence.
    Sizes not among the given ones count as occurring never.
    """
    available = np.zeros(capacity + 1)
    available[sizes] = counts
    strategies = _exact_packs_of_three(capacity)
    matrix = np.zeros((capacity, len(strategies)))
    for column, strategy in enumerate(strategies):
        for size in strategy:
            matrix[size - 1, column] += 1
    weights = np.ones(capacity)
    weights[: capacity // 64] = 0.09  # short leftovers cost little: the authors' weight for lengths up to 8 of 512
    weights = np.sqrt(weights)
    solution, _ = nnls(matrix * weights[:, None], available[1:] * weights, maxiter=50 * len(strategies))
    times = np.rint(solution).astype(np.int64)
    left = available.astype(np.int64)
    packs: dict[tuple[int, ...], int] = defaultdict(int)
    for strategy, number in zip(strategies, times.tolist()):
        while number:
            fits = [size for index, size in enumerate(strategy) if left[size] > strategy[:index].count(size)]
            if not fits:
                break
            used = min(number, *(int(left[size]) // fits.count(size) for size in set(fits)))
            for size in fits:
                left[size] -= used
            packs[tuple(fits)] += used
            number -= used
    for size in np.flatnonzero(left).tolist():
        packs[(size,)] += int(left[size])
    return list(packs.items())


def _exact_packs_of_three(capacity: int) -> list[tuple[int, ...]]:
    """All packs of one, two or three sequences without a free slot."""
    packs: list[tuple[int, ...]] = [(capacity,)]
    packs += [(size, capacity - size) for size in range(1, capacity // 2 + 1)]
    for first in range(1, capacity // 3 + 1):
        packs += [(first, second, capacity - first - second) for second in range(first, (capacity - first) // 2 + 1)]
    return packs


def check(packing: Packing, sizes: np.ndarray, counts: np.ndarray, capacity: int) -> int:
    """The number of packs, after counting that every sequence is in exactly one and none is overfull."""
    seen: dict[int, int] = defaultdict(int)
    for pack, times in packing:
        assert sum(pack) <= capacity, pack
        for size in pack:
            seen[size] += times
    assert dict(seen) == dict(zip(sizes.tolist(), counts.tolist())), "a sequence is missing or packed twice"
    return sum(times for _, times in packing)
