"""Lower bounds: never above the fewest packs there can be, and provable by a few lines that share no code."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.plan.bounds import heaviest_pack, simple_bound
from hf_packing.plan.lengths import LengthHistogram, histogram
from tests.plan.checker import fewest_packs


def lengths_and_capacity(max_size=9):
    return st.integers(3, 30).flatmap(
        lambda capacity: st.tuples(
            st.lists(st.integers(1, capacity), min_size=1, max_size=max_size), st.just(capacity)
        )
    )


def heaviest_by_search(sizes, weights, capacity, most):
    if not most:
        return 0
    tries = [
        weight + heaviest_by_search(sizes, weights, capacity - size, most - 1)
        for size, weight in zip(sizes, weights)
        if size <= capacity
    ]
    return max(tries, default=0)


@settings(max_examples=150, deadline=None)
@given(drawn=lengths_and_capacity(), most=st.sampled_from([None, 1, 2, 3]))
def test_the_bound_is_never_above_the_best_plan(drawn, most):
    lengths, capacity = drawn
    proof = simple_bound(histogram(np.array(lengths)), capacity, most)
    assert proof.holds()
    assert proof.bound <= fewest_packs(lengths, capacity, most or len(lengths))


@settings(max_examples=100, deadline=None)
@given(
    items=st.dictionaries(st.integers(2, 12), st.integers(0, 9), min_size=1, max_size=4),
    capacity=st.integers(1, 20),
    most=st.sampled_from([None, 1, 2, 3]),
)
def test_the_heaviest_pack_is_the_heaviest(items, capacity, most):
    sizes = np.array(sorted(items))
    weights = np.array([items[size] for size in sizes.tolist()])
    expected = heaviest_by_search(sizes.tolist(), weights.tolist(), capacity, most or capacity)
    assert heaviest_pack(sizes, weights, capacity, most) == expected


@pytest.mark.parametrize(
    ("lengths", "capacity", "most", "bound", "kind"),
    [
        ([6, 6, 6], 10, None, 3, "martello-toth"),
        ([5, 5, 5], 10, None, 2, "size"),
        ([7, 7, 7, 4, 4], 10, None, 4, "martello-toth"),
        ([1, 1, 1, 1, 1], 10, 2, 3, "number"),
        ([6] * 3, 11, None, 3, "martello-toth"),
    ],
)
def test_known_bounds(lengths, capacity, most, bound, kind):
    proof = simple_bound(histogram(np.array(lengths)), capacity, most)
    assert (proof.bound, proof.kind) == (bound, kind)


def test_a_false_proof_does_not_hold():
    proof = simple_bound(LengthHistogram(np.array([3, 6]), np.array([4, 4])), 10)
    object.__setattr__(proof, "pack_weight", 8)
    assert not proof.holds()


def test_bounds_are_exact_beyond_the_precision_of_floats():
    counts = np.array([3 * 10**15 + 1])
    assert simple_bound(LengthHistogram(np.array([4]), counts), 12).bound == 10**15 + 1
