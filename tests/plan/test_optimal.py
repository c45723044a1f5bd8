"""The optimal search meets its proven bound, and the proof is verified by code that shares nothing with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.plan import optimal, plan_packs
from hf_packing.plan.bounds import heaviest_pack
from hf_packing.plan.columns import ColumnSearch, dual_proof, solve
from hf_packing.plan.exact import Budget, exact_fill, refill
from hf_packing.plan.histogram import best_fit_decreasing
from hf_packing.plan.lengths import LengthHistogram, histogram
from hf_packing.plan.optimal import AUTO_STEPS, OPTIMAL_STEPS, pack_tightly
from hf_packing.plan.pricing import most_valuable
from tests.plan.checker import check_plan, fewest_packs, proven_packs


def truncated(values, capacity, name):
    if not name.endswith("_hist"):
        return histogram(np.minimum(values, capacity))
    present = np.flatnonzero(values)
    return LengthHistogram(present + 1, values[present].astype(np.int64))


def assert_holds_exactly(table, sizes, capacity, most=None):
    """The table's packs hold every sequence once and are not overfull."""
    held = {}
    for entries, times in table.patterns():
        assert sum(size * count for size, count in entries) <= capacity
        assert most is None or sum(count for _, count in entries) <= most
        for size, count in entries:
            held[size] = held.get(size, 0) + count * times
    assert held == dict(zip(sizes.sizes.tolist(), sizes.counts.tolist()))


@pytest.mark.parametrize(
    ("name", "capacity", "packs"),
    [
        ("gsm8k_train", 512, 2768),
        ("gsm8k_train", 1024, 1383),
        ("gsm8k_train", 2048, 692),
        ("squad11_bert384_hist", 384, 40_195),
        ("mf_math", 2048, 697),
        ("flanlike_100k", 2048, 12_339),
        ("orcamathlike_100k", 2048, 17_304),
        ("pycode_files", 2048, 10_595),
        ("wikipedia_bert512_hist", 512, 8_135_727),
    ],
)
@pytest.mark.parametrize("steps", [AUTO_STEPS, OPTIMAL_STEPS], ids=["auto", "optimal"])
def test_real_lengths_are_packed_at_the_proven_minimum(name, capacity, packs, steps, load_lengths):
    sizes = truncated(load_lengths(name), capacity, name)
    table, proof = pack_tightly(sizes, capacity, None, steps)
    assert_holds_exactly(table, sizes, capacity)
    assert table.num_packs == packs
    assert proven_packs(proof) == packs


def test_packs_of_three_on_wikipedia_beat_non_negative_least_squares(load_lengths):
    sizes = truncated(load_lengths("wikipedia_bert512_hist"), 512, "wikipedia_bert512_hist")
    table, proof = pack_tightly(sizes, 512, 3)
    assert_holds_exactly(table, sizes, 512, 3)
    assert sizes.tokens / (table.num_packs * 512) > 0.9985
    assert proven_packs(proof) == table.num_packs


def test_the_worst_case_of_best_fit_decreasing():
    lengths = np.repeat([1025, 514, 513, 510], [24_000, 24_000, 24_000, 48_000])
    plan = plan_packs(lengths, 2048, strategy="auto")
    assert plan.num_packs == plan.lower_bound == 36_000
    assert check_plan(plan, lengths) == 36_000


@settings(max_examples=150, deadline=None)
@given(
    drawn=st.integers(4, 40).flatmap(
        lambda capacity: st.tuples(st.lists(st.integers(1, capacity), min_size=1, max_size=11), st.just(capacity))
    ),
    most=st.sampled_from([None, None, 2, 3]),
    multiple_of=st.sampled_from([1, 4]),
)
def test_small_plans_are_optimal_and_their_bounds_sound(drawn, most, multiple_of):
    lengths, units = drawn
    capacity = units * multiple_of
    plan = plan_packs(lengths, capacity, strategy="optimal", max_sequences=most, multiple_of=multiple_of)
    check_plan(plan, lengths, max_sequences=most, multiple_of=multiple_of)
    occupied = [-(-length // multiple_of) for length in lengths]
    fewest = fewest_packs(occupied, units, most or len(lengths))
    assert plan.lower_bound <= fewest == plan.num_packs
    assert proven_packs(plan.certificate) == plan.lower_bound


@pytest.mark.parametrize(
    "options", [{"max_sequences": 4}, {"multiple_of": 16}, {"max_sequences": 5, "multiple_of": 8}]
)
def test_limits_are_kept_and_the_bound_follows_them(options, load_lengths):
    lengths = load_lengths("gsm8k_train")[:2000]
    best = plan_packs(lengths, 1024, strategy="optimal", **options)
    check_plan(best, lengths, **options)
    assert proven_packs(best.certificate) == best.lower_bound
    assert best.gap <= 1
    assert best.num_packs <= plan_packs(lengths, 1024, **options).num_packs


def test_duals_prove_more_than_simple_bounds():
    # Of 6 and 3 and 5, packs of 10 waste a slot or more in most combinations.
    sizes = LengthHistogram(np.array([3, 5, 6]), np.array([30, 10, 30]))
    table, proof = pack_tightly(sizes, 10)
    assert table.num_packs == proof.bound == proven_packs(proof)


@pytest.mark.parametrize("steps", [0, 10_000, 1_000_000, 30_000_000])
def test_a_small_budget_ends_with_best_fit_and_a_sound_bound(steps, load_lengths):
    sizes = truncated(load_lengths("squad11_bert384_hist"), 384, "squad11_bert384_hist")
    table, proof = pack_tightly(sizes, 384, None, steps)
    assert_holds_exactly(table, sizes, 384)
    assert proven_packs(proof) == proof.bound <= 40_195 <= table.num_packs
    assert table.num_packs <= best_fit_decreasing(sizes, 384).num_packs


def test_exact_fill_and_refill_hold_every_sequence(load_lengths):
    sizes = truncated(load_lengths("gsm8k_train"), 512, "gsm8k_train")
    for most in (None, 3):
        first = best_fit_decreasing(sizes, 512, most)
        assert_holds_exactly(exact_fill(sizes, 512, most, Budget(10**9)), sizes, 512, most)
        assert_holds_exactly(refill(first, 512, most, Budget(10**9)), sizes, 512, most)
        assert_holds_exactly(exact_fill(sizes, 512, most, Budget(10**5)), sizes, 512, most)


def test_the_rounded_prices_lose_nothing_worth_a_pack(load_lengths):
    sizes = truncated(load_lengths("squad11_bert384_hist"), 384, "squad11_bert384_hist")
    search = ColumnSearch(sizes, 384, None, Budget(10**10))
    solution = search.run([], enough=0)
    proof = dual_proof(sizes, search.prices, 384, None)
    assert proof.bound == int(np.ceil(solution.packs - 1e-6)) == proven_packs(proof)


def test_a_solver_without_an_optimum_is_reported(monkeypatch, caplog):
    class Failed:
        status, message, nit = 4, "numerical difficulties", 0

    monkeypatch.setattr("hf_packing.plan.columns.linprog", lambda *args, **kwargs: Failed)
    assert solve([((0, 1),)], np.array([1]), Budget(10**6)) is None
    assert "numerical difficulties" in caplog.text
    sizes = LengthHistogram(np.array([3, 5, 6]), np.array([30, 10, 30]))
    table, proof = optimal.pack_tightly(sizes, 10)
    assert_holds_exactly(table, sizes, 10)
    assert proof.bound <= table.num_packs


@settings(max_examples=100, deadline=None)
@given(
    priced=st.dictionaries(st.integers(1, 12), st.integers(0, 9), min_size=1, max_size=4),
    most=st.sampled_from([None, 1, 2, 3]),
)
def test_the_most_valuable_patterns_fit_and_are_worth_what_is_said(priced, most):
    sizes = np.array(sorted(priced))
    prices = np.array([priced[size] for size in sizes.tolist()], dtype=float)
    columns, best = most_valuable(sizes, prices, 12, most)
    for column in columns:
        assert sum(int(sizes[index]) * count for index, count in column) <= 12
        assert most is None or sum(count for _, count in column) <= most
    worths = [sum(prices[index] * count for index, count in column) for column in columns]
    assert max(worths, default=0.0) == pytest.approx(best)
    assert best == heaviest_pack(sizes, prices.astype(np.int64), 12, most)


@pytest.mark.parametrize(
    "name",
    [
        "alpaca_en_demo",
        "c4_demo",
        "dolly_hhrlhf_small",
        "glaive_toolcall_demo",
        "gsm8k_test",
        "gsm8k_train",
        "mf_math",
    ],
)
@pytest.mark.parametrize("capacity", [512, 2048, 4096])
def test_auto_fills_99_percent_wherever_that_is_possible(name, capacity, load_lengths):
    plan = plan_packs(load_lengths(name), capacity, strategy="auto", overflow="truncate")
    assert plan.gap == 0
    assert plan.fill >= 0.99 or plan.ledger.tokens_packed < 0.99 * plan.lower_bound * capacity
