"""Streams on two ranks: nothing dropped, nothing repeated, passes that end together, whatever the shards."""

import pytest

from tests.distributed import replay, scenarios
from tests.distributed.ranks import call, once, run_ranks


pytestmark = pytest.mark.slow

COUNT, STEPS, EVALUATED = 30, 14, 7
RUNS = {
    "uneven shards": {"shards": [7, 23]},
    "a window cut by the end of the pass": {"shards": [9, 21], "gradient_accumulation_steps": 3},
    "fewer shards than ranks": {"shards": [30], "gradient_accumulation_steps": 2},
    "three shards": {"shards": [4, 20, 6], "per_device_train_batch_size": 2},
    "an empty shard": {"shards": [30, 0], "gradient_accumulation_steps": 2},
    "a shuffle buffer": {"kind": "shuffled", "shards": [12, 18]},
    "rows without anything else": {"kind": "iterable", "gradient_accumulation_steps": 2},
    "packed already": {"kind": "packed stream", "shards": [11, 19]},
    "fallback to one sequence a row": {
        "family": "mamba", "isolation_check": "group", "attention": "keep",
        "shards": [13, 17], "per_device_train_batch_size": 3,
    },
    "every sequence alike": {"loss_normalization": "sequence", "shards": [7, 23], "gradient_accumulation_steps": 2},
    "TRL's trainer": {"trainer_class": "sft", "shards": [7, 23], "gradient_accumulation_steps": 2},
    "TRL's trainer, padded rows": {
        "trainer_class": "sft", "packing": False, "eval_packing": False, "shards": [7, 23],
        "per_device_train_batch_size": 2,
    },
    "padded rows": {"packing": False, "eval_packing": False, "shards": [7, 23], "per_device_train_batch_size": 2},
    "evaluated on a stream": {"shards": [15, 15], "evaluate_kind": "stream"},
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    base = {"kind": "stream", "count": COUNT, "max_steps": STEPS, "evaluate": EVALUATED}
    base |= {"eval_strategy": "steps", "eval_steps": STEPS}

    def make(folder):
        calls = [call(scenarios.train, out=str(folder / name), **(base | run)) for name, run in RUNS.items()]
        return dict(zip(RUNS, run_ranks(*calls)))

    return once(tmp_path_factory, "streams", make)


@pytest.mark.parametrize("name", RUNS)
def test_streams_train_what_the_definition_says(results, name):
    ranks, run = results[name], RUNS[name]
    replay.check_ranks_agree(ranks)
    assert ranks[0]["steps"] == ranks[0]["scheduler"] == STEPS
    steps = replay.steps_of(ranks)
    assert replay.check_passes(steps, COUNT) >= 1, "no pass was completed, so nothing was shown"
    expected = replay.replay(
        steps,
        scenarios.rows(COUNT),
        run.get("family", "llama"),
        run.get("loss_normalization", "token"),
        evaluate=scenarios.rows(EVALUATED, seed=8),
        evaluate_after=(STEPS,),
    )
    replay.check_against(ranks, expected)


def test_passes_in_place_of_steps(tmp_path):
    """Without max_steps, the ranks agree on how many steps two passes over uneven shards are, and make just those."""
    run = {"kind": "stream", "shards": [7, 23], "max_steps": -1, "num_train_epochs": 2}
    (ranks,) = run_ranks(call(scenarios.train, out=str(tmp_path), count=COUNT, gradient_accumulation_steps=2, **run))
    replay.check_ranks_agree(ranks)
    assert replay.check_passes(replay.steps_of(ranks), COUNT) == 2
    assert ranks[0]["steps"] == ranks[0]["scheduler"] == ranks[0]["max_steps"] > 2
