"""Histogram, counting sort, and the figures of padding, on the worked examples of the reports."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_packing.errors import PackingError
from hf_packing.plan import lengths as lengths_module
from hf_packing.plan.lengths import (
    fill,
    group_by_size,
    histogram,
    occupied_slots,
    padded_slots,
    padding_waste,
    row_blocks,
    score_counts,
)


EXAMPLE_A = np.array([2048, 512, 256, 128])
EXAMPLE_B = np.array([1024, 768, 512, 256, 96])


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


@pytest.mark.parametrize(
    ("lengths", "row", "slots", "padding", "waste"),
    [(EXAMPLE_A, 2048, 8192, 5248, 0.641), (EXAMPLE_B, 2048, 10_240, 7584, 0.741)],
    ids=["A", "B"],
)
def test_worked_examples_of_padding(lengths, row, slots, padding, waste):
    assert padded_slots(lengths, row_length=row) == slots
    assert slots - int(lengths.sum()) == padding
    assert padding_waste(lengths, slots) == pytest.approx(waste, abs=5e-4)
    assert fill(lengths, slots) == pytest.approx(1 - waste, abs=5e-4)


def test_two_sequences_at_131072_waste_nearly_everything():
    lengths = np.array([2048, 128])
    assert padding_waste(lengths, padded_slots(lengths, row_length=131_072)) == pytest.approx(0.992, abs=5e-4)


def test_batches_are_padded_to_their_longest():
    lengths = np.array([2, 8, 3, 7])
    assert padded_slots(lengths, batch_size=2) == 30
    assert padded_slots(np.sort(lengths), batch_size=2) == 22
    assert fill(lengths, 30) == pytest.approx(2 / 3) and fill(lengths, 22) == pytest.approx(10 / 11)
    assert padded_slots(lengths) == 32
    assert row_blocks(np.zeros(0, int), 4)[0].size == 0 and padded_slots(np.zeros(0, int)) == 0
    with pytest.raises(PackingError, match="batch_size=0"):
        row_blocks(lengths, 0)


def test_attention_scores_of_the_worked_examples():
    half, squares = score_counts(EXAMPLE_A)
    assert (half, squares) == (2_269_184, 4_538_368)
    assert half / (4 * 2048**2 / 2) == pytest.approx(0.2705, abs=1e-4)
    assert score_counts(np.array([2, 8, 3, 7]))[1] == 126
    # Ten documents of 400 in a pack of 4,000: a tenth of the dense scores are real.
    assert score_counts(np.full(10, 400))[1] / 4000**2 == pytest.approx(0.1)
    assert score_counts(np.array([2**33]))[1] == 2**66  # no overflow


def test_slots_are_rounded_up_without_wrapping_around():
    assert occupied_slots(np.array([250, 1, 8], dtype=np.uint8), 8).tolist() == [256, 8, 8]
