"""kill -9 of both ranks, in the middle of epochs and of saving: every step is trained as if nothing happened."""

import json
import random
from pathlib import Path

import pytest
import torch

from tests.distributed import replay, scenarios
from tests.distributed.ranks import call, once, run_ranks


pytestmark = pytest.mark.slow

COUNT, EPOCHS = 90, 2
KILLS = sorted(random.Random(5).sample(range(1, 11), 5))
"""Steps after which both ranks die, during the next one: in both epochs, before and after their borders."""
HALF_SAVED = max(KILLS) + 2
RUNS = {
    "packs": {"max_length": 48},
    "packs, workers, two a batch": {"dataloader_num_workers": 1, "per_device_train_batch_size": 2, "max_length": 32},
    "token budget": {"packing": False, "padding_free": True, "max_tokens_per_batch": 60},
    "fallback to one sequence a row": {"family": "mamba", "isolation_check": "group", "attention": "keep"},
    "stream, uneven shards": {"kind": "stream", "shards": [30, 60], "max_steps": 15},
    "stream, one shard, shuffle buffer": {"kind": "shuffled", "shards": [90], "max_steps": 15},
    "stream of rows without anything else": {"kind": "iterable", "max_steps": 15},
    "TRL's trainer, padded rows of a shuffled stream": {
        "trainer_class": "sft", "packing": False, "eval_packing": False, "kind": "shuffled", "shards": [30, 60],
        "max_steps": 26, "per_device_train_batch_size": 2,
    },
}  # fmt: skip
ALL = {
    "count": COUNT, "num_train_epochs": EPOCHS, "gradient_accumulation_steps": 2,
    "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "logging_steps": 3,
}  # fmt: skip


def written_steps(folder: Path, rank: int) -> dict[int, list[list[int]]]:
    """Sequences of every optimizer step, each time it was trained."""
    steps: dict[int, list[list[int]]] = {}
    for line in (folder / f"steps-{rank}.jsonl").read_text().splitlines():
        number, names = json.loads(line)
        steps.setdefault(number, []).append(sorted(names))
    return steps


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """For every run: its folder, the uninterrupted ranks, and those of the last resume."""
    return once(tmp_path_factory, "resume", run_and_kill)


def run_and_kill(folder):
    calls, folders = [], []
    for number, run in enumerate(RUNS.values()):
        folders.append(folder / str(number))
        arguments = {**ALL, **run, "out": str(folders[-1] / "broken")}
        calls.append(call(scenarios.train, **(arguments | {"out": str(folders[-1] / "whole")})))
        calls += [
            call(scenarios.train, kill_after=step, resume=step != KILLS[0], killed=True, **arguments) for step in KILLS
        ]
        # And once more while a checkpoint is written, which is then only half there.
        calls.append(call(scenarios.train, kill_at_save=HALF_SAVED, resume=True, killed=True, **arguments))
        calls.append(call(scenarios.train, resume=True, **arguments))
    found, each = run_ranks(*calls), len(KILLS) + 3
    return {
        name: (folders[number], found[number * each], found[number * each + each - 1])
        for number, name in enumerate(RUNS)
    }


@pytest.mark.parametrize("name", RUNS)
def test_killed_six_times(results, name):
    folder, whole, resumed = results[name]
    replay.check_ranks_agree(whole)
    replay.check_ranks_agree(resumed)
    if "max_steps" in RUNS[name]:
        assert replay.check_passes(replay.steps_of(whole), COUNT) >= 1
    else:
        replay.check_epochs(replay.steps_of(whole), COUNT, EPOCHS)
    assert whole[0]["steps"] > HALF_SAVED
    for rank in (0, 1):
        expected, found = written_steps(folder / "whole", rank), written_steps(folder / "broken", rank)
        assert sorted(found) == sorted(expected) == list(range(1, whole[0]["steps"] + 1))
        for step, times in found.items():
            assert all(names == expected[step][0] for names in times), f"step {step}"
        assert len(found[HALF_SAVED]) >= 2, "the half-written checkpoint was not used, its step was trained again"
        assert torch.equal(resumed[rank]["weights"], whole[rank]["weights"])
    for value in ("epoch", "max_steps", "steps", "scheduler"):
        assert resumed[0][value] == whole[0][value]
    assert resumed[0]["losses"] == pytest.approx(whole[0]["losses"][-len(resumed[0]["losses"]) :], rel=1e-6)
    assert resumed[0]["train_loss"] == pytest.approx(whole[0]["train_loss"], rel=1e-6), "of the whole run"
