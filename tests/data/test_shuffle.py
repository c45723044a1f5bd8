"""RandomOrder: a permutation, uniform also where it is small, the same on every machine."""

from collections import Counter
from math import factorial

import numpy as np
import pytest

from hf_packing.data.shuffle import RandomOrder, random_keys


ORDER = [7, 4, 3, 2, 9, 5, 0, 8, 1, 6]
KEYS = [14611364593554838639, 14732635205406006297]


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 65, 1000, 100_003])
def test_every_item_once(size):
    items = RandomOrder(size, 1, 2)(np.arange(size))
    assert np.array_equal(np.sort(items), np.arange(size))
    salted = RandomOrder(size, 1, 2)(np.arange(size), np.full(size, 9))
    assert np.array_equal(np.sort(salted), np.arange(size))
    if size > 17:
        assert not np.array_equal(items, salted)


def test_any_part_alone_and_far_beyond_memory():
    order = RandomOrder(10**15, 3)
    places = np.array([0, 5, 10**15 - 1])
    items = order(places)
    assert ((items >= 0) & (items < 10**15)).all() and len(set(items.tolist())) == 3
    assert order(places[1:2]) == items[1]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", [3, 4])
def test_all_orders_of_a_few_items_are_equally_likely(size, seed):
    draws, orders = 200 * factorial(size), factorial(size)
    places = np.tile(np.arange(size), (draws, 1))
    items = RandomOrder(size, seed)(places, np.arange(draws)[:, None].repeat(size, axis=1))
    counts = Counter(map(tuple, items.tolist()))
    assert len(counts) == orders
    chi_square = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert chi_square < orders + 6 * orders**0.5, "far beyond what a uniform choice shows"


def test_neighbours_are_unrelated():
    items = RandomOrder(5000, 1, 2)(np.arange(5000))
    assert abs(np.corrcoef(items[:-1], items[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(items, np.arange(5000))[0, 1]) < 0.05
    other = RandomOrder(5000, 1, 3)(np.arange(5000))
    assert (items == other).sum() < 10, "an epoch later, items stand elsewhere"


def test_golden_values():
    """Ranks on other machines and with other versions of NumPy must compute these."""
    assert RandomOrder(10, 5, 3)(np.arange(10)).tolist() == ORDER
    assert random_keys(np.arange(2), 5, 3).tolist() == KEYS
