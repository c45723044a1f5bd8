"""Two ranks train what one process would train: same gradients, same losses, every sequence once, equal steps."""

import math

import pytest

from tests.distributed import replay, scenarios
from tests.distributed.ranks import call, once, run_ranks


pytestmark = pytest.mark.slow

EPOCHS, COUNT, EVALUATED = 2, 15, 7
EVERY = {"num_train_epochs": EPOCHS, "evaluate": EVALUATED, "eval_strategy": "epoch"}
RUNS = {
    "packs, the last window incomplete": {"gradient_accumulation_steps": 2},
    "packs already, an odd number": {"kind": "packed"},
    "two packs a batch": {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2},
    "one step an epoch": {"gradient_accumulation_steps": 50},
    "one sequence a pack": {"kind": "single", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    "every sequence alike": {"loss_normalization": "sequence", "gradient_accumulation_steps": 2},
    "padded rows": {"packing": False, "eval_packing": False, "per_device_train_batch_size": 2},
    "padding-free with a token budget": {"packing": False, "padding_free": True, "max_tokens_per_batch": 60},
    "rows in another layout, workers": {"dataloader_num_workers": 1, "gradient_accumulation_steps": 3},
    "random order": {"balance_ranks": False},
    "TRL's trainer": {"trainer_class": "sft", "gradient_accumulation_steps": 2},
    "TRL's trainer, padded rows": {
        "trainer_class": "sft", "packing": False, "eval_packing": False, "per_device_train_batch_size": 2,
    },
    "fallback to one sequence a row": {"family": "mamba", "isolation_check": "group", "attention": "keep"},
}  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    def make(folder):
        calls = {
            name: call(scenarios.train, out=str(folder / str(number)), count=COUNT, **(EVERY | run))
            for number, (name, run) in enumerate(RUNS.items())
        }
        whole = {"count": COUNT, **EVERY, "gradient_accumulation_steps": 50}
        calls["alone"] = call(scenarios.train, alone=True, out=str(folder / "alone"), **whole)
        return dict(zip(calls, run_ranks(*calls.values())))

    return once(tmp_path_factory, "exactness", make)


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_train_what_the_definition_says(results, name):
    ranks, run = results[name], RUNS[name]
    replay.check_ranks_agree(ranks)
    steps = replay.steps_of(ranks)
    replay.check_epochs(steps, COUNT, EPOCHS)
    per_epoch = len(steps) // EPOCHS
    expected = replay.replay(
        steps,
        scenarios.rows(COUNT),
        run.get("family", "llama"),
        run.get("loss_normalization", "token"),
        evaluate=scenarios.rows(EVALUATED, seed=8),
        evaluate_after=tuple(range(per_epoch, len(steps) + 1, per_epoch)),
    )
    replay.check_against(ranks, expected)


@pytest.mark.parametrize("name", RUNS)
def test_step_counts_are_what_ran(results, name):
    first = results[name][0]
    accumulation = RUNS[name].get("gradient_accumulation_steps", 1)
    assert first["steps"] == first["max_steps"] == first["scheduler"] == len(first["losses"])
    assert first["steps"] == EPOCHS * math.ceil(first["loader"] / accumulation)
    assert first["epoch"] == EPOCHS


def test_one_process_sees_the_same(results):
    """A step over the whole set: the split into ranks changes nothing."""
    ranks, alone = results["one step an epoch"], results["alone"]
    assert alone["steps"] == ranks[0]["steps"] == EPOCHS
    for ours, theirs in zip(ranks[0]["gradients"], alone["gradients"]):
        assert ((ours - theirs).norm() / theirs.norm()).item() <= 1e-6
    for name in ("losses", "evaluations"):
        assert ranks[0][name] == pytest.approx(alone[name], rel=1e-6)


def test_ranks_hold_different_sequences(results):
    for name, ranks in results.items():
        if name != "alone":
            epoch = len(ranks[0]["sequences"]) // EPOCHS
            mine, others = ({n for step in rank["sequences"][:epoch] for n in step} for rank in ranks)
            assert mine and others and not mine & others, name
