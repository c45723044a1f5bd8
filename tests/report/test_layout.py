"""The layouts' figures against worked examples and against counting every slot by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.report.layout import (
    length_buckets,
    length_grouped,
    padded_batch,
    padded_max,
    padding_free,
    sum_of_squares,
)


FOUR = np.array([2, 8, 3, 7])


def test_four_sequences_in_batches_of_two():
    in_order, grouped, free = padded_batch(FOUR, 2), length_grouped(FOUR, 2), padding_free(FOUR, 2)
    assert (in_order.slots, grouped.slots, free.slots) == (30, 22, 20)
    assert [round(100 * layout.fill, 1) for layout in (in_order, grouped, free)] == [66.7, 90.9, 100.0]
    assert (in_order.sum_squares, free.sum_squares) == (226, 126)
    assert (in_order.steps, in_order.rows, free.rows) == (2, 4, 2)


@pytest.mark.parametrize(
    ("lengths", "max_length", "slots", "padding", "waste"),
    [
        ([2048, 512, 256, 128], 2048, 8192, 5248, 64.1),
        ([1024, 768, 512, 256, 96], 2048, 10240, 7584, 74.1),
        ([2048, 128], 131072, 262144, 259968, 99.2),
    ],
)
def test_waste_of_padding_to_max_length(lengths, max_length, slots, padding, waste):
    layout = padded_max(np.array(lengths), max_length, 8)
    assert (layout.slots, layout.padding) == (slots, padding)
    assert round(100 * layout.waste, 1) == waste
    assert layout.waste == pytest.approx(1 - np.mean(lengths) / max_length)


def test_scores_are_half_squares():
    lengths = np.array([2048, 512, 256, 128])
    padded, free = padded_max(lengths, 2048, 8), padding_free(lengths, 8)
    assert (padded.causal_scores, free.causal_scores) == (8_388_608, 2_269_184)
    assert round(100 * free.causal_scores / padded.causal_scores, 1) == 27.1
    # The exact causal counts, without and with the diagonal, lie on both sides of the half square.
    strict = sum(length * (length - 1) // 2 for length in lengths.tolist())
    assert strict < free.causal_scores < strict + int(lengths.sum())


def test_ten_documents_of_400_tokens_use_a_tenth_of_a_dense_row():
    assert padding_free(np.full(10, 400), 10).sum_squares / 4000**2 == 0.1


def test_odd_squares_keep_their_half():
    assert padding_free(np.array([3]), 1).causal_scores == 4.5


@given(st.lists(st.integers(1, 300), min_size=1, max_size=400), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_batches_counted_one_by_one(lengths, batch_size):
    array = np.array(lengths)
    batches = [lengths[start : start + batch_size] for start in range(0, len(lengths), batch_size)]
    layout = padded_batch(array, batch_size)
    assert layout.slots == sum(len(batch) * max(batch) for batch in batches)
    assert layout.sum_squares == sum(len(batch) * max(batch) ** 2 for batch in batches)
    assert layout.steps == len(batches)

    window = 50 * batch_size
    grouped = [
        length for start in range(0, len(lengths), window) for length in sorted(lengths[start : start + window])
    ]
    assert length_grouped(array, batch_size).slots == padded_batch(np.array(grouped), batch_size).slots
    for other in (
        length_grouped(array, batch_size),
        length_buckets(array, batch_size),
        padding_free(array, batch_size),
    ):
        assert other.tokens == sum(lengths) <= other.slots <= padded_max(array, 300, batch_size).slots


def test_fifty_buckets_pad_to_the_longest_of_each_bucket():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 1000, 5000)
    ordered = np.sort(lengths).reshape(50, 100)
    assert length_buckets(lengths, 8).slots == int((ordered[:, -1] * 100).sum())


def test_squares_do_not_wrap():
    lengths, times = np.array([2**20, 3]), np.array([2**30, 1])
    assert sum_of_squares(lengths, times) == 2**70 + 9


def test_nothing_to_lay_out():
    empty = np.zeros(0, np.int64)
    for layout in (
        padded_max(empty, 8, 2),
        padded_batch(empty, 2),
        length_grouped(empty, 2),
        length_buckets(empty, 2),
        padding_free(empty, 2),
    ):
        assert (layout.slots, layout.rows, layout.steps, layout.fill) == (0, 0, 0, 1.0), layout.name
