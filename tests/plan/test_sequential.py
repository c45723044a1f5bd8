"""Packers that keep the order: next fit never looks back, wrapped leaves no slot empty."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.plan import plan_packs
from tests.plan.checker import check_plan


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, most=st.sampled_from([None, 1, 3]))
def test_next_fit_keeps_the_order_and_closes_packs_only_when_it_must(lengths, most):
    plan = plan_packs(lengths, 20, strategy="sequential", max_sequences=most)
    assert plan.sequence_ids.tolist() == list(range(len(lengths)))
    for (_, _, before), (_, _, after) in zip(list(plan), list(plan)[1:]):
        assert before.sum() + after[0] > 20 or before.size == most
    check_plan(plan, lengths, max_sequences=most)


@settings(max_examples=100, deadline=None)
@given(lengths=LENGTHS, capacity=st.integers(1, 12), multiple_of=st.sampled_from([1, 2, 4]))
def test_wrapped_leaves_only_the_last_pack_open(lengths, capacity, multiple_of):
    capacity *= multiple_of
    plan = plan_packs(lengths, capacity, strategy="wrapped", multiple_of=multiple_of)
    occupied = [int((-(-sizes // multiple_of) * multiple_of).sum()) for _, _, sizes in plan]
    assert all(slots == capacity for slots in occupied[:-1])
    assert plan.gap == 0
    # Read in order, the pieces are the sequences again.
    assert plan.sequence_ids.tolist() == sorted(plan.sequence_ids.tolist())
    ends = {}
    for sequence, start, size in zip(plan.sequence_ids.tolist(), plan.starts.tolist(), plan.lengths.tolist()):
        assert ends.get(sequence, 0) == start
        ends[sequence] = start + size
    assert [ends[sequence] for sequence in range(len(lengths))] == lengths


def test_wrapped_with_a_limit_of_sequences_closes_packs_early():
    plan = plan_packs([1] * 10 + [20], 8, strategy="wrapped", max_sequences=3)
    assert plan.pack_sizes.tolist() == [3, 3, 3, 2, 1, 1] and plan.ledger.sequences_split == 1
    assert plan.lower_bound == 4


def test_wrapped_leaves_the_slots_of_pieces_without_targets_empty():
    # The first token of a piece is never a target, so that a cut that leaves one token leaves nothing to train.
    plan = plan_packs(
        [7, 9], 8, strategy="wrapped", count_targets=lambda ids, starts, lengths: np.maximum(0, lengths - 1)
    )
    assert [(ids.tolist(), lengths.tolist()) for ids, _, lengths in plan] == [([0], [7]), ([1], [8])]
    assert plan.ledger.tokens_dropped == 1 and plan.ledger.sequences_dropped == 0
