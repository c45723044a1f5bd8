"""A random order of n items that is never stored: position -> item, computed where it is asked for.

A sampler on each of 1,000 ranks would otherwise hold the same permutation of every pack of the corpus. The order is
a Feistel network over the smallest power of two that holds n, walked until it lands below n (Luby and Rackoff, 1988;
Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). It is made of 64-bit integer arithmetic alone, so
it is the same on every machine and with every version of NumPy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


__all__ = ["RandomOrder", "random_keys"]

_ROUNDS = 6
_LOW = np.uint64(32)
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_WORD = (1 << 64) - 1


def _scatter(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words whose upper half depends on every bit of the input."""
    mixed = values * _MULTIPLIER
    mixed ^= mixed >> _LOW
    mixed *= _MULTIPLIER
    mixed ^= mixed >> _LOW
    return mixed


def _word(*numbers: int) -> int:
    """One 64-bit word out of a few integers, each of them deciding about every bit."""
    word = 0
    for number in numbers:
        word = (word ^ (number & _WORD)) * 0x94D049BB133111EB & _WORD
        word = ((word ^ (word >> 31)) + _GOLDEN) & _WORD
        word = word * 0xBF58476D1CE4E5B9 & _WORD
        word ^= word >> 32
    return word


def random_keys(positions: NDArray[np.int64], *numbers: int) -> NDArray[np.uint64]:
    """One random 64-bit key a position, for sorting into a random order; `numbers` (seed, epoch, ...) choose it."""
    return _scatter(positions.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_word(*numbers)))


class RandomOrder:
    """A permutation of `range(size)` chosen by a few integers, with constant memory and constant time an item.

    Args:
        size (`int`): number of items.
        numbers (`int`): what chooses the order: seed, epoch.

    Example:

        >>> order = RandomOrder(5, 7, 0)
        >>> sorted(order(np.arange(5)).tolist())
        [0, 1, 2, 3, 4]
        >>> bool((order(np.arange(2, 4)) == order(np.arange(5))[2:4]).all())  # any part of it, alone
        True
    """

    def __init__(self, size: int, *numbers: int) -> None:
        self.size = size
        # At least 6 bits: with fewer, some orders of three to five items come up more often than others.
        bits = max(6, (size - 1).bit_length())
        self._left, self._right = bits // 2, bits - bits // 2
        self._keys = [np.uint64(_word(*numbers, turn)) for turn in range(_ROUNDS)]

    def __call__(self, positions: NDArray[np.int64], salts: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """The items at these positions, int64 of the same shape; every value of `salts` is an order of its own."""
        keys = np.zeros(positions.shape, np.uint64) if salts is None else _scatter(salts.astype(np.uint64))
        items = self._permute(positions.astype(np.uint64), keys)
        outside = items >= np.uint64(self.size)
        while outside.any():
            # The network permutes the next power of two; walking on from an outside value ends inside, on an item that
            # no other position reaches.
            items[outside] = self._permute(items[outside], keys[outside])
            outside = items >= np.uint64(self.size)
        return items.astype(np.int64)

    def _permute(self, values: NDArray[np.uint64], salts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        # The halves swap widths every round, so after an even number of rounds they are back in place.
        left_bits, right_bits = self._left, self._right
        left = values >> np.uint64(right_bits)
        right = values & np.uint64((1 << right_bits) - 1)
        for key in self._keys:
            left, right = right, left ^ (_scatter(right + (salts + key)) >> np.uint64(64 - left_bits))
            left_bits, right_bits = right_bits, left_bits
        return (left << np.uint64(right_bits)) | right
