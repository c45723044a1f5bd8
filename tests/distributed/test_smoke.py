"""The two-rank claims in one quick launch: packs and a stream train what one process would. More are marked slow."""

import pytest
import torch

from tests.distributed import replay, scenarios
from tests.distributed.ranks import call, once, run_ranks


COUNT, EPOCHS, EVALUATED = 15, 2, 7
PACKS = {"gradient_accumulation_steps": 2, "num_train_epochs": EPOCHS, "evaluate": EVALUATED, "eval_strategy": "epoch"}
STREAM = {"kind": "stream", "shards": [4, 11], "gradient_accumulation_steps": 2, "max_steps": 6}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def make(folder):
        return run_ranks(
            call(scenarios.train, out=str(folder / "packs"), count=COUNT, **PACKS),
            call(scenarios.train, out=str(folder / "stream"), count=COUNT, **STREAM),
            call(scenarios.refused, out=str(folder / "apart"), use_cpu=False),
        )

    return once(tmp_path_factory, "smoke", make)


def test_packs(results):
    ranks, steps = results[0], replay.steps_of(results[0])
    replay.check_ranks_agree(ranks)
    replay.check_epochs(steps, COUNT, EPOCHS)
    ends = tuple(range(len(steps) // EPOCHS, len(steps) + 1, len(steps) // EPOCHS))
    data, held_out = scenarios.rows(COUNT), scenarios.rows(EVALUATED, seed=8)
    replay.check_against(ranks, replay.replay(steps, data, evaluate=held_out, evaluate_after=ends))


def test_stream(results):
    ranks, steps = results[1], replay.steps_of(results[1])
    replay.check_ranks_agree(ranks)
    assert replay.check_passes(steps, COUNT) >= 1
    replay.check_against(ranks, replay.replay(steps, scenarios.rows(COUNT)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the processes are joined")
def test_processes_that_are_not_joined_are_refused(results):
    assert all("2 processes were launched" in message and "use_cpu=True" in message for message in results[2])
