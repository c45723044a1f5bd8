"""Best-fit decreasing on the histogram makes the packs of best-fit decreasing on single sequences."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.data_utils import _pack_bfd

from hf_packing.plan import plan_packs
from hf_packing.plan.histogram import best_fit_decreasing, level_fit_decreasing
from hf_packing.plan.lengths import histogram
from hf_packing.plan.table import PackTable


def bfd_one_by_one(lengths, capacity, most=None):
    """The textbook algorithm, quadratic."""
    rooms, numbers = [], []
    for length in sorted(lengths, reverse=True):
        open_packs = [i for i, room in enumerate(rooms) if room >= length and (not most or numbers[i] < most)]
        if open_packs:
            i = min(open_packs, key=lambda i: rooms[i])
            rooms[i] -= length
            numbers[i] += 1
        else:
            rooms.append(capacity - length)
            numbers.append(1)
    return sorted(capacity - room for room in rooms)


def slots_of(table: PackTable) -> list[int]:
    return sorted(np.repeat(table.pack_slots, table.multiplicity).tolist())


@settings(max_examples=200, deadline=None)
@given(capacity=st.integers(1, 40), data=st.data())
def test_the_packs_are_those_of_the_textbook(capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=80))
    table = best_fit_decreasing(histogram(np.array(lengths)), capacity)
    assert slots_of(table) == bfd_one_by_one(lengths, capacity)
    assert table.num_sequences == len(lengths)


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60), most=st.integers(1, 6))
def test_no_pack_holds_more_than_the_largest_number(lengths, most):
    table = best_fit_decreasing(histogram(np.array(lengths)), 20, most)
    assert table.pack_sizes.max() <= most and table.num_sequences == len(lengths)
    assert max(slots_of(table)) <= 20


def test_a_limit_of_sequences_costs_few_packs(load_lengths):
    lengths = load_lengths("gsm8k_train")
    plan = plan_packs(lengths, 1024, max_sequences=5)
    assert plan.gap == 0 and plan.certificate.kind == "number"
    assert (
        len(bfd_one_by_one(lengths[:1000].tolist(), 1024, 5))
        > plan_packs(lengths[:1000], 1024, max_sequences=5).num_packs
    )


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60), most=st.integers(1, 6), packs=st.integers(1, 30))
def test_level_packs_hold_every_sequence(lengths, most, packs):
    counted = histogram(np.array(lengths))
    table = level_fit_decreasing(counted, 20, most, packs)
    assert table.pack_sizes.max() <= most and max(slots_of(table)) <= 20
    held = np.repeat(table.sizes, table.counts * np.repeat(table.multiplicity, np.diff(table.offsets)))
    assert sorted(held.tolist()) == sorted(lengths)


@pytest.mark.parametrize(("name", "length"), [("gsm8k_train", 512), ("gsm8k_train", 2048), ("mf_math", 2048)])
def test_never_more_packs_than_trl(name, length, load_lengths):
    lengths = np.minimum(load_lengths(name), length)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    column = pa.LargeListArray.from_arrays(offsets, pa.nulls(int(lengths.sum())))
    theirs = _pack_bfd(pa.table({"input_ids": column}), length).num_rows
    assert plan_packs(lengths, length).num_packs <= theirs


@pytest.mark.parametrize(
    ("lengths", "packs"),
    [
        ([1025] * 500, 500),
        ([1] * 1_000_000, 489),
        ([683] * 900, 450),
        ([512] * 401, 101),
        (range(1, 2049), 1025),
        ([1025] * 24_000 + [514] * 24_000 + [513] * 24_000 + [510] * 48_000, 44_000),
    ],
    ids=["over half", "ones", "683", "equal", "sorted", "11/9"],
)
def test_adversarial_sets(lengths, packs):
    plan = plan_packs(np.fromiter(lengths, int), 2048)
    assert plan.num_packs == packs
    assert plan.ledger.sequences_packed == len(lengths)
