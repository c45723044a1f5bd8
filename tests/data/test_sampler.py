"""PackBatchSampler: every unit once, equal steps, balance, other neighbours each epoch, exact resume."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hf_packing.data.sampler import PackBatchSampler
from hf_packing.errors import PackingError
from hf_packing.plan import plan_packs


def schedule(lengths, epoch=0, num_replicas=1, **options):
    """Batches of all ranks: [rank][step] -> list of units."""
    ranks = []
    for rank in range(num_replicas):
        sampler = PackBatchSampler(lengths, num_replicas=num_replicas, rank=rank, **options)
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
        assert len(ranks[-1]) == len(sampler)
    return ranks


def flat(ranks):
    return [unit for rank in ranks for batch in rank for unit in batch]


def long_tailed(count, seed=0):
    return np.clip(np.random.RandomState(seed).lognormal(5, 1.2, count), 1, 20_000).astype(np.int64)


GOLDEN = [[[2, 1], [0, 7], [8]], [[4, 6], [5, 3], []]]

SETTINGS = {
    "batch_size": st.integers(1, 5),
    "num_replicas": st.integers(1, 5),
    "balance": st.sampled_from(["attention", "length", None]),
    "window": st.integers(1, 5),
    "seed": st.integers(0, 2**40),
    "heaviest_first": st.booleans(),
}


@settings(max_examples=150, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), max_size=70), epoch=st.integers(0, 3), **SETTINGS)
def test_every_unit_once_and_equal_steps(lengths, epoch, batch_size, num_replicas, **options):
    ranks = schedule(lengths, epoch, batch_size=batch_size, num_replicas=num_replicas, **options)
    assert sorted(flat(ranks)) == list(range(len(lengths)))
    steps = -(-len(lengths) // (batch_size * num_replicas))
    assert [len(rank) for rank in ranks] == [steps] * num_replicas
    for step in range(steps):
        sizes = [len(rank[step]) for rank in ranks]
        assert max(sizes) - min(sizes) <= 1, "the units of a short step are spread over the ranks"
        if step < steps - 1:
            assert sizes == [batch_size] * num_replicas, "only the last step may be short"


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=70), at=st.floats(0, 1), **SETTINGS)
def test_resume_continues_where_it_stopped(lengths, at, num_replicas, **options):
    sampler = PackBatchSampler(lengths, num_replicas=num_replicas, rank=num_replicas - 1, **options)
    sampler.set_epoch(1)
    whole = list(sampler)
    stop = int(at * len(sampler))
    running = PackBatchSampler(lengths, num_replicas=num_replicas, rank=num_replicas - 1, **options)
    running.set_epoch(1)
    batches = iter(running)
    seen = [next(batches) for _ in range(stop)]
    state = json.loads(json.dumps(running.state_dict()))

    resumed = PackBatchSampler(lengths, num_replicas=num_replicas, rank=num_replicas - 1, **options)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)  # trainers call it before every epoch, the resumed one included
    assert seen + list(resumed) == whole
    resumed.set_epoch(2)
    running.set_epoch(2)
    assert list(resumed) == list(running), "the epoch after a resumed one starts at its beginning"


def test_state_of_all_ranks_is_the_same_and_a_second_resume_works():
    lengths = long_tailed(50)
    whole = list(PackBatchSampler(lengths, batch_size=2, num_replicas=2, rank=1))
    seen, state = [], PackBatchSampler(lengths, batch_size=2, num_replicas=2, rank=0).state_dict()
    for stop in (3, 4, 6):
        sampler = PackBatchSampler(lengths, batch_size=2, num_replicas=2, rank=1)
        sampler.load_state_dict(state)
        for batch in sampler:
            seen.append(batch)
            if len(seen) == stop:
                break
        state = sampler.state_dict()
        assert state["batches"] == stop
    sampler.load_state_dict(state)
    assert seen + list(sampler) == whole


def test_an_abandoned_iteration_does_not_move_the_next_one():
    sampler = PackBatchSampler(long_tailed(20), batch_size=2)
    whole = list(sampler)
    next(iter(sampler))
    assert list(sampler) == whole


def test_epochs_and_seeds_bring_other_neighbours():
    lengths = long_tailed(400)
    steps = {}
    for name, options in {"a": {}, "epoch": {"epoch": 1}, "seed": {"seed": 1}}.items():
        ranks = schedule(lengths, batch_size=2, num_replicas=2, **options)
        steps[name] = {frozenset(a + b) for a, b in zip(*ranks)}
    assert len(steps["a"]) == 100
    assert len(steps["a"] & steps["epoch"]) <= 5 and len(steps["a"] & steps["seed"]) <= 5
    assert schedule(lengths, batch_size=2, num_replicas=2) == schedule(lengths, batch_size=2, num_replicas=2)


def test_the_order_is_the_same_on_every_machine():
    """Golden values: ranks on machines with other versions of NumPy must compute this very schedule."""
    ranks = schedule([9, 1, 5, 7, 3, 8, 2, 6, 4], batch_size=2, num_replicas=2, seed=5, epoch=3)
    assert ranks == GOLDEN


def imbalance(lengths, ranks, power=2):
    """Mean over steps of max ÷ mean over ranks of Σ l^power."""
    costs = np.array([[sum(float(lengths[u]) ** power for u in batch) for batch in rank] for rank in ranks])
    return (costs.max(axis=0) / costs.mean(axis=0)).mean()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_attention_balance_brings_like_costs_together(batch_size):
    lengths = long_tailed(16 * 8 * 3 * 4)
    random = imbalance(lengths, schedule(lengths, batch_size=batch_size, num_replicas=8, balance=None))
    balanced = imbalance(lengths, schedule(lengths, batch_size=batch_size, num_replicas=8))
    assert random > 2
    assert balanced < 1.4 and (balanced - 1) < (random - 1) / 4


def test_cost_coefficients_decide():
    """With the linear term alone, [50, 50] and [100] cost the same; with the square alone, [100] costs twice that."""
    packs = [[50, 50]] * 8 + [[100]] * 8
    linear = schedule(packs, batch_size=1, num_replicas=2, cost=(1.0, 0.0), window=8)
    square = schedule(packs, batch_size=1, num_replicas=2, cost=(0.0, 1.0), window=8)
    same = [[len(packs[a[0]]) == len(packs[b[0]]) for a, b in zip(*ranks)] for ranks in (linear, square)]
    assert all(same[1])
    assert not all(same[0])


def test_length_balance_groups_like_lengths_in_a_batch():
    """The rows a padded batch needs: like lengths together, yet another order each epoch."""
    lengths = long_tailed(16 * 2 * 8 * 4)

    def fill(balance):
        batches = [b for rank in schedule(lengths, batch_size=8, num_replicas=2, balance=balance) for b in rank]
        return lengths.sum() / sum(len(b) * max(lengths[u] for u in b) for b in batches)

    assert fill("length") > 0.8 > 0.5 > fill(None)
    first = [schedule(lengths, epoch, batch_size=8, balance="length")[0][0] for epoch in range(4)]
    assert len({tuple(sorted(batch)) for batch in first}) == 4


@pytest.mark.parametrize("window", [1, 16])
def test_the_order_of_steps_stays_random(window):
    """Like costs meet in a step, but neither the epoch nor a window runs from expensive to cheap."""
    lengths = np.arange(1, 4097)
    ranks = schedule(lengths, batch_size=1, num_replicas=2, window=window)
    costs = np.array([np.mean([lengths[rank[step][0]] for rank in ranks]) for step in range(2048)])
    places = np.arange(costs.size)
    assert abs(np.corrcoef(costs, places)[0, 1]) < 0.1
    assert abs(np.corrcoef(costs, places % 16)[0, 1]) < 0.1
    assert abs(np.corrcoef(costs[1:], costs[:-1])[0, 1]) < 0.15
    windows = costs.reshape(-1, 16).mean(axis=1)
    assert windows.std() > 200, "4096 ÷ √12 ÷ √16 = 296 for a random order"


def test_neighbours_change_inside_the_window():
    """Units of one epoch's step meet others in the next, even where sorting alone would join them for ever."""
    lengths = np.arange(1, 513)
    met = [
        {frozenset((a[0], b[0])) for a, b in zip(*schedule(lengths, epoch, batch_size=1, num_replicas=2))}
        for epoch in range(3)
    ]
    assert all(len(pairs) == 256 for pairs in met)
    assert len(met[0] & met[1]) < 64 and len(met[1] & met[2]) < 64


@pytest.mark.parametrize("balance", ["attention", "length", None])
def test_heaviest_first(balance):
    lengths = long_tailed(300)
    ranks = schedule(lengths, batch_size=3, num_replicas=4, balance=balance, heaviest_first=True)
    first = sorted(lengths[unit] for rank in ranks for unit in rank[0])
    assert first == sorted(lengths)[-12:]
    assert sorted(flat(ranks)) == list(range(300))
    later = schedule(lengths, 1, batch_size=3, num_replicas=4, balance=balance, heaviest_first=True)
    assert sorted(lengths[unit] for rank in later for unit in rank[0]) != first


def test_drop_last_leaves_out_other_units_each_epoch(caplog):
    left_out = []
    for epoch in range(4):
        ranks = schedule(range(1, 24), epoch, batch_size=2, num_replicas=2, drop_last=True)
        assert all(len(batch) == 2 for rank in ranks for batch in rank)
        left_out.append(tuple(sorted(set(range(23)) - set(flat(ranks)))))
        assert len(left_out[-1]) == 3
    assert len(set(left_out)) > 1
    assert "drop_last leaves out 3 of 23" in caplog.text


def test_no_units():
    assert schedule([], batch_size=2, num_replicas=2) == [[], []]


def test_fewer_units_than_ranks():
    ranks = schedule([5, 3, 4], batch_size=2, num_replicas=5)
    assert sorted(len(rank[0]) for rank in ranks) == [0, 0, 1, 1, 1]


def test_reads_plans_and_seq_lengths_alike():
    plan = plan_packs(long_tailed(200), 4096, overflow="own_pack", seed=0)
    rows = [lengths.tolist() for _, _, lengths in plan]
    assert schedule(plan, batch_size=1, num_replicas=2) == schedule(rows, batch_size=1, num_replicas=2)


def test_works_in_a_dataloader_with_workers():
    lengths = long_tailed(41)
    sampler = PackBatchSampler(lengths, batch_size=4)
    loader = DataLoader(list(range(41)), batch_sampler=sampler, collate_fn=list, num_workers=2)
    assert len(loader) == 11
    first = list(loader)
    assert sorted(unit for batch in first for unit in batch) == list(range(41))
    sampler.load_state_dict(sampler.state_dict(batches=3))
    assert list(loader) == first[3:], "batches counts what was trained on, not what workers fetched ahead"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either batch_size .* or max_tokens"),
        ({"batch_size": 1, "max_tokens": 5}, "either batch_size .* or max_tokens"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 1, "window": 0}, "window must be at least 1"),
        ({"batch_size": 1, "num_replicas": 2, "rank": 2}, r"rank must lie in 0\.\.1 .* got 2"),
        ({"batch_size": 1, "balance": "tokens"}, "'attention', 'length' or None, got 'tokens'"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(PackingError, match=message):
        PackBatchSampler([1, 2], **options)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 0, 2], r"Sequence 1 \(counting from 0\) has length 0"),
        ([[3], [2, -1]], r"Sequence 2 \(counting from 0\) has length -1"),
        ([1.5, 2.0], "integers"),
        (np.ones((2, 2, 2), int), "2 dimensions|3 dimensions"),
    ],
)
def test_lengths_that_cannot_be(lengths, message):
    with pytest.raises(PackingError, match=message):
        PackBatchSampler(lengths, batch_size=1)


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"batch_size": 3}, {"num_replicas": 3}, {"window": 4}, {"balance": None}]
)
def test_a_state_of_another_schedule_is_refused(change):
    options = {"batch_size": 2, "num_replicas": 2}
    state = PackBatchSampler(long_tailed(30), **options).state_dict(batches=2)
    with pytest.raises(PackingError, match=next(iter(change))):
        PackBatchSampler(long_tailed(30), **(options | change)).load_state_dict(state)
    with pytest.raises(PackingError, match="lengths"):
        PackBatchSampler(long_tailed(30, seed=1), **options).load_state_dict(state)
    with pytest.raises(PackingError, match="batch 99 of an epoch of 8"):
        PackBatchSampler(long_tailed(30), **options).load_state_dict(state | {"batches": 99})


BUDGET = {"max_tokens": st.integers(60, 200)} | {k: v for k, v in SETTINGS.items() if k != "batch_size"}


@settings(max_examples=12, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), max_size=70), **BUDGET)
def test_token_budget_every_sequence_once_and_equal_steps_in_all_epochs(lengths, max_tokens, num_replicas, **options):
    steps = set()
    for epoch in range(3):
        ranks = schedule(lengths, epoch, max_tokens=max_tokens, num_replicas=num_replicas, **options)
        assert sorted(flat(ranks)) == list(range(len(lengths)))
        steps |= {len(rank) for rank in ranks}
        for batch in (batch for rank in ranks for batch in rank):
            assert sum(lengths[unit] for unit in batch) <= max_tokens
            if options["balance"] == "length" and batch:
                assert len(batch) * max(lengths[unit] for unit in batch) <= max_tokens
    assert len(steps) == 1


def test_token_budget_fills_batches():
    lengths = long_tailed(2000)
    batches = [batch for rank in schedule(lengths, max_tokens=20_000, num_replicas=2) for batch in rank]
    assert len(batches) <= -(-lengths.sum() // 20_000) + 2
    padded = [batch for rank in schedule(lengths, max_tokens=20_000, balance="length") for batch in rank]
    assert lengths.sum() / sum(len(b) * max(lengths[u] for u in b) for b in padded) > 0.9


def test_token_budget_splits_batches_for_the_last_step():
    """Three full batches for two ranks: the third is split, so that no rank runs a filler batch."""
    ranks = schedule([4] * 6, max_tokens=8, num_replicas=2)
    assert [[len(batch) for batch in rank] for rank in ranks] == [[2, 1], [2, 1]]


@pytest.mark.parametrize(
    ("lengths", "balance"),
    [
        (np.random.RandomState(0).permutation(np.arange(1, 400)), "attention"),  # no two are equal
        (np.random.RandomState(0).poisson(200, 3000) + 1, "attention"),
        (np.random.RandomState(0).poisson(200, 3000) + 1, "length"),
    ],
)
def test_token_budget_brings_other_neighbours(lengths, balance):
    epochs = [schedule(lengths, epoch, max_tokens=2000, balance=balance)[0] for epoch in range(3)]
    pairs = [{(a, b) for batch in epoch for a in batch for b in batch if a < b} for epoch in epochs]
    assert all(len(epoch) >= 40 for epoch in epochs)
    assert len(pairs[0] & pairs[1]) < 0.7 * len(pairs[0]) and len(pairs[1] & pairs[2]) < 0.7 * len(pairs[1])


def test_token_budget_below_the_longest_sequence():
    with pytest.raises(PackingError, match=r"Sequence 1 .* has 9 tokens, .* max_tokens=8, 2 such sequences"):
        PackBatchSampler([3, 9, 9], max_tokens=8)
