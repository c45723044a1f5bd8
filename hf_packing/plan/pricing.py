"""What a pack is worth when every size has a price: unbounded knapsacks over all rooms at once.

Shape legend: D distinct sizes, C capacity.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


__all__ = ["Column", "most_valuable", "pricing_steps"]

# A pattern as the linear program sees it: ((index of a size, how many of it), ...), indices ascending.
Column = tuple[tuple[int, int], ...]
# The most a room can be worth, for every room `[C + 1]`, and what is in it (index of a size: how many).
Rooms = tuple[NDArray[np.float64], Callable[[int], dict[int, int]]]


def pricing_steps(sizes: int, capacity: int, max_sequences: int | None) -> int:
    """What [`most_valuable`] costs, in steps of a budget (measured)."""
    if max_sequences is None:
        return capacity * (2000 + sizes)
    return max_sequences * sizes * (3000 + 2 * capacity)


def most_valuable(
    sizes: NDArray[np.int64], prices: NDArray[np.float64], capacity: int, max_sequences: int | None = None
) -> tuple[list[Column], float]:
    """For each size that has a price, the most valuable pattern that contains it; and the worth of the best of all.

    Args:
        sizes (`[D]`): ascending.
        prices (`[D]`): of one sequence of each size, at least 0.
        capacity: slots of a pack.
        max_sequences: most sequences in a pack.

    Example: a pack of 7 holds 2 + 5, or 2 + 2 + 2.

        >>> most_valuable(np.array([2, 5]), np.array([0.25, 1.0]), 7)
        ([((0, 1), (1, 1))], 1.25)
    """
    if max_sequences is None:
        value, content = _any_number(sizes, prices, capacity)
    else:
        value, content = _at_most(sizes, prices, capacity, max_sequences - 1)
    columns: dict[Column, None] = {}
    best = 0.0
    for index, (size, price) in enumerate(zip(sizes.tolist(), prices.tolist())):
        if price <= 0:
            continue
        members = content(capacity - size)
        members[index] = members.get(index, 0) + 1
        columns[tuple(sorted(members.items()))] = None
        best = max(best, price + float(value[capacity - size]))
    return list(columns), best


def _any_number(sizes: NDArray[np.int64], prices: NDArray[np.float64], capacity: int) -> Rooms:
    value = np.zeros(capacity + 1)
    last = np.full(capacity + 1, -1)  # index of the size put in last; -1: the room one smaller is worth as much
    usable = sizes.searchsorted(np.arange(capacity + 1), side="right")
    for room in range(int(sizes[0]), capacity + 1):
        worth = value[room - sizes[: usable[room]]] + prices[: usable[room]]
        best = int(worth.argmax())
        if worth[best] > value[room - 1]:
            value[room], last[room] = worth[best], best
        else:
            value[room] = value[room - 1]

    def content(room: int) -> dict[int, int]:
        members: dict[int, int] = {}
        while room > 0:
            index = int(last[room])
            if index < 0:
                room -= 1
            else:
                members[index] = members.get(index, 0) + 1
                room -= int(sizes[index])
        return members

    return value, content


def _at_most(sizes: NDArray[np.int64], prices: NDArray[np.float64], capacity: int, most: int) -> Rooms:
    value = np.zeros((most + 1, capacity + 1))
    last = np.full((most + 1, capacity + 1), -1)  # -1: one sequence fewer is worth as much
    for number in range(1, most + 1):
        value[number] = value[number - 1]
        for index, (size, price) in enumerate(zip(sizes.tolist(), prices.tolist())):
            if price <= 0:
                continue
            worth = value[number - 1, : capacity + 1 - size] + price
            better = worth > value[number, size:]
            value[number, size:][better] = worth[better]
            last[number, size:][better] = index

    def content(room: int) -> dict[int, int]:
        members: dict[int, int] = {}
        for number in range(most, 0, -1):
            index = int(last[number, room])
            if index >= 0:
                members[index] = members.get(index, 0) + 1
                room -= int(sizes[index])
        return members

    return value[most], content
