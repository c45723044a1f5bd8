"""plan_packs: every rule of a plan, for every strategy, policy and setting, by a checker of its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.errors import PackingError
from hf_packing.plan import Overflow, Strategy, plan_packs
from tests.plan.checker import check_plan


OVERFLOWS = [overflow for overflow in Overflow if overflow is not Overflow.ERROR]


@st.composite
def requests(draw):
    """Lengths and settings, some of them extreme for their capacity."""
    multiple_of = draw(st.sampled_from([1, 1, 2, 4]))
    max_length = multiple_of * draw(st.integers(1, 15))
    longest = draw(st.sampled_from([max_length // 2 + 1, max_length, 3 * max_length + 1]))
    lengths = draw(st.lists(st.integers(0, longest), max_size=60))
    max_sequences = draw(st.sampled_from([None, None, 1, 2, 5]))
    return lengths, max_length, {"multiple_of": multiple_of, "max_sequences": max_sequences}


def some_targets(sequence_ids, starts, lengths):
    """Targets of a piece as an arbitrary function of what it is."""
    return (7 * sequence_ids + 3 * starts + lengths) % 3


@pytest.mark.parametrize("strategy", list(Strategy))
@settings(max_examples=60, deadline=None)
@given(
    request=requests(), overflow=st.sampled_from(OVERFLOWS), seed=st.sampled_from([None, 0, 7]), counted=st.booleans()
)
def test_every_rule_holds(strategy, request, overflow, seed, counted):
    lengths, max_length, options = request
    count_targets = some_targets if counted else None
    plan = plan_packs(
        lengths, max_length, strategy=strategy, overflow=overflow, seed=seed, count_targets=count_targets, **options
    )
    check_plan(plan, lengths, overflow=overflow, **options)
    assert plan.certificate.holds()
    unseeded = plan_packs(
        lengths, max_length, strategy=strategy, overflow=overflow, count_targets=count_targets, **options
    )
    assert unseeded.num_packs == plan.num_packs and unseeded.ledger == plan.ledger
    if counted:
        assert (some_targets(plan.sequence_ids, plan.starts, plan.lengths) > 0).all()


@pytest.mark.parametrize("strategy", list(Strategy))
def test_the_same_arguments_give_the_same_plan_and_a_seed_another(strategy):
    lengths = np.random.default_rng(0).integers(1, 50, 400)
    plans = [plan_packs(lengths, 64, strategy=strategy, seed=seed).fingerprint for seed in (None, None, 1, 1, 2)]
    assert plans[0] == plans[1] and plans[2] == plans[3]
    assert len(set(plans)) == 3


@pytest.mark.parametrize("strategy", ["sequential", "stream", "wrapped"])
def test_a_seed_moves_whole_packs_where_order_matters(strategy):
    lengths = np.random.default_rng(0).integers(1, 50, 400)

    def packs(seed):
        plan = plan_packs(lengths, 64, strategy=strategy, seed=seed)
        return [(tuple(ids.tolist()), tuple(starts.tolist())) for ids, starts, _ in plan]

    assert packs(None) != packs(3) and sorted(packs(None)) == sorted(packs(3))


def test_a_seed_shuffles_sequences_of_equal_slots():
    plans = [plan_packs([5] * 30, 10, seed=seed) for seed in (None, 0)]
    assert plans[0].sequence_ids.tolist() != plans[1].sequence_ids.tolist()
    assert sorted(plans[1].sequence_ids.tolist()) == list(range(30))


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("lengths", [[], np.zeros(0, np.int32), [0, 0]])
def test_nothing_to_pack_gives_an_empty_plan(strategy, lengths):
    plan = plan_packs(lengths, 8, strategy=strategy, overflow="split", seed=0)
    assert plan.num_packs == 0 and plan.lower_bound == 0 and plan.gap == 0 and list(plan) == []
    assert plan.ledger.sequences_empty == len(lengths) and plan.ledger.slots == 0


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_every_integer_type_gives_the_same_plan(dtype):
    lengths = [200, 100, 100, 50, 0, 250]
    expected = plan_packs(lengths, 256, multiple_of=8)
    assert plan_packs(np.array(lengths, dtype=dtype), 256, multiple_of=8) == expected
    # Rounding 250 up to a multiple of 8 does not wrap around in a byte.
    assert expected.ledger.slots == 3 * 256


def test_worked_example_of_a_pack_of_ten():
    # 8 + 2 and 7 + 3 fill two packs; dense attention computes 2 · 10² scores, isolated 8² + 2² + 7² + 3².
    plan = plan_packs([8, 2, 7, 3], 10)
    assert sorted(sorted(lengths.tolist()) for _, _, lengths in plan) == [[2, 8], [3, 7]]
    assert plan.fill == 1.0 and plan.num_packs * plan.max_length**2 == 200
    assert int((plan.lengths**2).sum()) == 126


@pytest.mark.parametrize(
    ("lengths", "tail"), [((2048, 512, 256, 128), 1152), ((1024, 768, 512, 256, 96), 1440)], ids=["A", "B"]
)
def test_worked_examples_at_2048_need_two_packs(lengths, tail):
    plan = plan_packs(lengths, 2048)
    assert (plan.num_packs, plan.lower_bound, plan.ledger.tokens_padding) == (2, 2, tail)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, -1], r"lengths\[1\] is -1; a length is at least 0"),
        ([3, 2.5], r"lengths\[1\] is .*2\.5.* \(float64\); a length is a whole number"),
        (np.array([1.0, 2.0]), r"lengths\[0\] is .*1\.0"),
        (np.array([3.0, np.nan]), r"lengths\[1\] is .*nan"),
        ([True, False], r"lengths\[0\] is .*True"),
        ([3, None], r"lengths\[1\] is None"),
        (["a"], r"lengths\[0\] is .*a"),
        ([2**70], r"lengths\[0\] is 1180591620717411303424, above the largest int64"),
        (np.zeros((2, 3), int), r"2 dimensions, shape \(2, 3\)"),
        (7, r"0 dimensions"),
        ([[1, 2], [3]], r"flat list of whole numbers"),
    ],
)
def test_bad_lengths_are_named(lengths, message):
    with pytest.raises(PackingError, match=message):
        plan_packs(lengths, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, r"max_length=0; it is a whole number of at least 1"),
        ({"max_length": 8.0}, r"max_length=8\.0"),
        ({"max_length": 10, "multiple_of": 4}, r"multiple_of=4 does not divide max_length=10.*max_length=8 or 12"),
        ({"max_length": 3, "multiple_of": 4}, r"use max_length=4\."),
        ({"max_length": 8, "multiple_of": 0}, r"multiple_of=0"),
        ({"max_length": 8, "max_sequences": 0}, r"max_sequences=0"),
        ({"max_length": 8, "seed": -1}, r"seed=-1"),
        ({"max_length": 8, "seed": "x"}, r"seed='x'"),
        ({"max_length": 8, "strategy": "best"}, r"strategy='best' is not known; choose one of bfd, optimal, auto"),
        ({"max_length": 8, "overflow": "cut"}, r"overflow='cut' is not known; choose one of error, truncate"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(PackingError, match=message):
        plan_packs([1, 2], **options)


def test_one_sequence_of_a_billion_tokens_costs_no_table():
    plan = plan_packs([10**9, 3, 5], 8, overflow="own_pack")
    assert plan.num_packs == 2 and plan.ledger.slots == 10**9 + 8
    assert plan_packs([10**9, 3], 10**9 + 3).num_packs == 1


@pytest.mark.parametrize("strategy", list(Strategy))
def test_own_packs_stand_alone_in_the_bound_too(strategy):
    plan = plan_packs([30, 4, 4, 4, 25], 8, strategy=strategy, overflow="own_pack")
    if strategy is Strategy.WRAPPED:
        assert plan.num_packs == plan.lower_bound == 9
    else:
        assert plan.lower_bound == 4 and plan.num_packs >= 4
        assert plan.ledger.slots >= 30 + 25 + 2 * 8


def test_sequential_keeps_over_long_sequences_in_their_place():
    plan = plan_packs([3, 30, 4], 8, strategy="sequential", overflow="own_pack")
    assert [ids.tolist() for ids, _, _ in plan] == [[0], [1], [2]]
