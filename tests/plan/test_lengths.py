"""Histogram and counting sort agree with NumPy's slow ways."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hf_packing.plan import lengths as lengths_module
from hf_packing.plan.lengths import group_by_size, histogram, occupied_slots


@given(st.lists(st.integers(0, 300) | st.just(10**9), max_size=60))
def test_sorting_and_counting_agree_with_numpy(values):
    array = np.array(values, dtype=np.int64)
    sizes, counts = np.unique(array, return_counts=True)
    counted, order = group_by_size(array)
    for found in (histogram(array), counted):
        assert found.sizes.tolist() == sizes.tolist() and found.counts.tolist() == counts.tolist()
        assert found.sequences == array.size and found.tokens == int(array.sum())
    assert order.tolist() == np.argsort(array, kind="stable").tolist()


def test_the_way_for_far_apart_lengths_gives_the_same_order(monkeypatch):
    array = np.random.default_rng(0).integers(0, 50, 1000)
    monkeypatch.setattr(lengths_module, "_table_limit", lambda sizes: -1)
    counted, order = group_by_size(array)
    assert order.tolist() == np.argsort(array, kind="stable").tolist()
    assert counted.sequences == 1000


def test_slots_are_rounded_up_without_wrapping_around():
    assert occupied_slots(np.array([250, 1, 8], dtype=np.uint8), 8).tolist() == [256, 8, 8]
