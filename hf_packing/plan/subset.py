"""Exact subset sums on big whole numbers: bit s of a number says whether the sum s can be reached."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


__all__ = ["best_subset"]


def best_subset(sizes: Iterable[int], room: int, most: int | None = None) -> list[int]:
    """Indices of the sizes whose sum comes closest to `room` from below; early ones are preferred.

    One more size is one shift and one or on the number of all sums (Bellman's subset sum, a word of sums at a time).
    Sizes are read only until `room` itself is reached.

    Args:
        sizes: each at least 1.
        room: largest sum allowed.
        most: largest number of indices allowed; costs time in proportion.

    Example: 4 + 6 makes 10, so that 9 is not looked at.

        >>> best_subset([4, 3, 6, 9], 10)
        [0, 2]
        >>> best_subset([4, 3, 6, 9], 10, most=1)
        [3]
    """
    if room < 1 or most == 0:
        return []
    if most is not None:
        return _best_few(sizes, room, most)
    mask = (1 << (room + 1)) - 1
    reached = 1
    tried: list[tuple[int, int, int]] = []  # index, size, the sums reached before it
    for index, size in enumerate(sizes):
        if size <= room:
            tried.append((index, size, reached))
            reached |= (reached << size) & mask
            if reached >> room:
                break
    total = reached.bit_length() - 1
    chosen = []
    # Walking back: a size is part of the sum only if the sum could not be reached before it was there.
    for index, size, before in reversed(tried):
        if not before >> total & 1:
            chosen.append(index)
            total -= size
            if not total:
                break
    chosen.reverse()
    return chosen


def _best_few(sizes: Iterable[int], room: int, most: int) -> list[int]:
    mask = (1 << (room + 1)) - 1
    reached = [1] * (most + 1)  # reached[k]: the sums of at most k sizes
    tried: list[tuple[int, int, list[int]]] = []
    for index, size in enumerate(sizes):
        if size <= room:
            tried.append((index, size, reached))
            reached = [1, *(with_k | (with_less << size) & mask for with_less, with_k in pairwise(reached))]
            if reached[most] >> room:
                break
    total, left = reached[most].bit_length() - 1, most
    chosen = []
    for index, size, before in reversed(tried):
        if not before[left] >> total & 1:
            chosen.append(index)
            total -= size
            left -= 1
            if not total:
                break
    chosen.reverse()
    return chosen
