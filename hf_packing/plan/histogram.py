"""Packing on the histogram of lengths: cost follows the number of distinct lengths, not of sequences."""

from __future__ import annotations

from bisect import bisect_left, insort

from .lengths import LengthHistogram
from .table import PackTable


__all__ = ["best_fit_decreasing", "level_fit_decreasing", "pack_quickly"]

# Entries of a pattern as a linked list, newest first: (entries before, size, count). Packs that share their first
# sequences share that part of the list.
Chain = tuple["Chain", int, int] | None
# (how many packs, sequences in each, entries of each)
Alike = tuple[int, int, Chain]


def best_fit_decreasing(sizes: LengthHistogram, capacity: int, max_sequences: int | None = None) -> PackTable:
    """Best-fit decreasing (Johnson 1973): longest first, each into the fullest pack that still has room.

    The packs are those of the algorithm on single sequences, found for all sequences of a size at once: the fullest
    pack with room for one is, after taking it, still the fullest with room, so it takes as many as fit.

    Args:
        sizes: distinct sizes from 1 to `capacity`, and their counts.
        capacity: slots of a pack.
        max_sequences: most sequences in a pack; a pack that holds them is closed whatever room it has.

    Example:

        >>> import numpy as np
        >>> table = best_fit_decreasing(LengthHistogram(np.array([2, 3, 7, 8]), np.array([1, 1, 1, 1])), 10)
        >>> table.num_packs, table.pack_slots.tolist()
        (2, [10, 10])
    """
    most = capacity if max_sequences is None else max_sequences
    smallest = int(sizes.sizes[0]) if sizes.sizes.size else 0
    rooms: list[int] = []  # the keys of `waiting`, ascending
    waiting: dict[int, list[Alike]] = {}  # room left -> packs with that room
    closed: list[Alike] = []
    for size, count in zip(sizes.sizes[::-1].tolist(), sizes.counts[::-1].tolist()):
        first = last = bisect_left(rooms, size)
        changed: list[tuple[int, Alike]] = []
        while count and last < len(rooms):
            room = rooms[last]
            stack = waiting[room]
            while stack and count:
                count = _place(size, count, room, stack.pop(), most, changed, stack)
            if not stack:
                del waiting[room]
                last += 1
        del rooms[first:last]
        if count:
            _place(size, count, capacity, (count, 0, None), most, changed, [])
        for room, packs in changed:
            if room < smallest or packs[1] == most:
                closed.append(packs)
            elif room in waiting:
                waiting[room].append(packs)
            else:
                waiting[room] = [packs]
                insort(rooms, room)
    closed.extend(packs for stack in waiting.values() for packs in stack)
    return PackTable.from_patterns((_entries(chain), times) for times, _, chain in closed)


def _place(
    size: int, count: int, room: int, packs: Alike, most: int, changed: list[tuple[int, Alike]], untouched: list[Alike]
) -> int:
    """Puts up to `count` sequences of one size into packs that are alike; returns how many are left over."""
    times, held, chain = packs
    each = min(room // size, most - held)
    if times * each <= count:
        changed.append((room - each * size, (times, held + each, (chain, size, each))))
        return count - times * each
    # For 5 sequences into 4 packs of 2 each: two packs take 2, one takes the rest of 1, one is not touched.
    full, rest = divmod(count, each)
    if full:
        changed.append((room - each * size, (full, held + each, (chain, size, each))))
    if rest:
        changed.append((room - rest * size, (1, held + rest, (chain, size, rest))))
    left = times - full - (rest > 0)
    if left:
        untouched.append((left, held, chain))
    return 0


def pack_quickly(sizes: LengthHistogram, capacity: int, max_sequences: int | None, fewest: int) -> PackTable:
    """Best-fit decreasing; under a limit of sequences the fewest level packs instead, where those are fewer.

    Best fit gives long sequences to each other and leaves more short ones than the limit has places for; the
    number of level packs that hold everything is found by bisection.

    Args:
        sizes: distinct sizes from 1 to `capacity`, and their counts.
        capacity: slots of a pack.
        max_sequences: most sequences in a pack.
        fewest: a lower bound on the number of packs.

    Example: of four to a pack, best fit leaves three packs of nothing but 1.

        >>> import numpy as np
        >>> sizes = LengthHistogram(np.array([1, 5]), np.array([12, 4]))
        >>> best_fit_decreasing(sizes, 10, 4).num_packs, pack_quickly(sizes, 10, 4, fewest=4).num_packs
        (5, 4)
    """
    table = best_fit_decreasing(sizes, capacity, max_sequences)
    most = table.num_packs
    while max_sequences is not None and fewest < most:
        packs = (fewest + most) // 2
        level = level_fit_decreasing(sizes, capacity, max_sequences, packs)
        if level.num_packs < table.num_packs:
            table = level
        if level.num_packs <= packs:
            most = packs
        else:
            fewest = packs + 1
    return table


def level_fit_decreasing(sizes: LengthHistogram, capacity: int, max_sequences: int, packs: int) -> PackTable:
    """Longest first, each into the emptiest of a given number of packs (Graham's LPT 1969): packs of equal number.

    Where `max_sequences` decides how many packs there must be, long sequences have to share with short ones, which
    best fit does not see. What fits nowhere opens packs of its own.

    Example: of two to a pack, best fit puts 3 + 3 together and leaves 1 + 1 and two single 6.

        >>> import numpy as np
        >>> sizes = LengthHistogram(np.array([1, 3, 6]), np.array([2, 2, 2]))
        >>> table = level_fit_decreasing(sizes, 7, 2, packs=3)
        >>> table.pack_slots.tolist(), table.multiplicity.tolist()
        ([6, 7], [1, 2])
    """
    rooms = [capacity]
    waiting: dict[int, list[Alike]] = {capacity: [(packs, 0, None)]}
    closed: list[Alike] = []
    for size, count in zip(sizes.sizes[::-1].tolist(), sizes.counts[::-1].tolist()):
        while count:
            if not rooms or rooms[-1] < size:
                rooms.append(capacity)
                waiting[capacity] = [(count, 0, None)]
            room = rooms[-1]
            times, held, chain = waiting[room].pop()
            used = min(times, count)
            if used < times:
                waiting[room].append((times - used, held, chain))
            elif not waiting[room]:
                del waiting[room], rooms[-1]
            count -= used
            fuller = (used, held + 1, (chain, size, 1))
            if held + 1 == max_sequences:
                closed.append(fuller)
            elif room - size in waiting:
                waiting[room - size].append(fuller)
            else:
                waiting[room - size] = [fuller]
                insort(rooms, room - size)
    closed.extend(alike for stack in waiting.values() for alike in stack if alike[1])
    return PackTable.from_patterns((_entries(chain), times) for times, _, chain in closed)


def _entries(chain: Chain) -> list[tuple[int, int]]:
    entries = []
    while chain is not None:
        chain, size, count = chain
        entries.append((size, count))
    entries.reverse()
    return entries
