"""Cases 065, 076, 095, 097, 098, 100 on two ranks: planning, step counts, streams, uneven packs, resume."""

import pytest

from tests.distributed import replay, scenarios
from tests.distributed.ranks import call, once, run_ranks


TIMEOUT = 3
"""Seconds a rank waits for the others in the case of slow planning."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return once(tmp_path_factory, "many_ranks", run)


def run(folder):
    def train(name, function=scenarios.train, alone=False, out=None, **settings):
        return name, call(function, alone=alone, out=str(folder / (out or name)), **settings)

    ten = {"kind": "single", "count": 10, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    twelve = {"kind": "single", "count": 12, "save_strategy": "steps", "save_steps": 1}
    stopped = {"num_train_epochs": 1, "out": "098 stopped", "resume": True, **twelve}
    calls = dict(
        [
            train(
                "065", scenarios.train_with_slow_planning, seconds=TIMEOUT + 2, ddp_timeout=TIMEOUT, num_train_epochs=1
            ),
            train("065 different", scenarios.train_with_different_plans, count=30, num_train_epochs=1),
            train("076 alone", alone=True, num_train_epochs=1, **ten),
            train("076", num_train_epochs=1, **ten),
            train("095", kind="stream", count=12, shards=[12], per_device_train_batch_size=2, max_steps=3),
            train("097", kind="single", count=7, per_device_train_batch_size=2, num_train_epochs=1),
            train("098", num_train_epochs=1, **twelve),
            train("098 stopped", num_train_epochs=1, stop_after=2, **twelve),
            train("098 resumed", **stopped),
            train("098 other seed", scenarios.refused, seed=4, **stopped),
            train("098 one rank", scenarios.refused, alone=True, **stopped),
            train("100", kind="single", count=17, gradient_accumulation_steps=4, num_train_epochs=2),
        ]
    )
    return dict(zip(calls, run_ranks(*calls.values(), timeout=60)))


def test_case_065_planning_longer_than_the_timeout_stops_nobody(results):
    """Every rank plans by itself and no collective is pending meanwhile."""
    replay.check_ranks_agree(results["065"])
    replay.check_epochs(replay.steps_of(results["065"]), 14, 1)


def test_case_065_ranks_that_planned_differently_take_the_plan_of_rank_0(results):
    replay.check_ranks_agree(results["065 different"])
    replay.check_epochs(replay.steps_of(results["065 different"]), 30, 1)


def test_case_076_the_last_window_is_a_step(results):
    assert results["076 alone"]["steps"] == results["076 alone"]["max_steps"] == 3
    assert [len(step) for step in results["076 alone"]["sequences"]] == [4, 4, 2]
    assert [rank["steps"] for rank in results["076"]] == [2, 2]
    assert [len(step) for step in replay.steps_of(results["076"])] == [8, 2]


def test_case_095_streams_of_flattened_batches_are_not_cut_between_ranks(results):
    """With default settings: nothing is dispatched from rank 0, each rank reads its own share."""
    replay.check_ranks_agree(results["095"])
    assert replay.check_passes(replay.steps_of(results["095"]), 12) >= 1


def test_case_097_uneven_packs_end_together(results):
    """Seven packs, two a batch on two ranks: the last batch of one rank is smaller, and both take two steps."""
    assert [rank["steps"] for rank in results["097"]] == [2, 2]
    replay.check_ranks_agree(results["097"])
    replay.check_epochs(replay.steps_of(results["097"]), 7, 1)


def test_case_098_resume_trains_what_was_left(results):
    whole, stopped, resumed = (replay.steps_of(results[name]) for name in ("098", "098 stopped", "098 resumed"))
    assert len(whole) == 6
    assert stopped == whole[:2]
    assert resumed == whole[2:]


def test_case_098_a_schedule_that_is_built_differently_is_refused(results):
    assert all("saved with seed 3 (now 4)" in message for message in results["098 other seed"])
    assert "saved with num_replicas 2 (now 1)" in results["098 one rank"]


def test_case_100_counts_are_what_ran(results):
    for rank in results["100"]:
        assert rank["loader"] == 9
        assert rank["steps"] == rank["max_steps"] == rank["scheduler"] == 6
        assert rank["micro_batches"] == 2 * 9
    replay.check_epochs(replay.steps_of(results["100"]), 17, 2)
