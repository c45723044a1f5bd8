"""The loss arithmetic under fully_shard (FSDP2): gradients are averaged over ranks that hold parts of each weight."""

import pytest
import torch

from tests.distributed import replay, scenarios
from tests.distributed.ranks import call, run_ranks


pytestmark = pytest.mark.slow


def train_sharded(out):
    """A trainer whose model `fully_shard` has cut over the ranks before it sees it; gradients gathered a step."""
    import torch.distributed as dist
    from accelerate import PartialState
    from datasets import Dataset
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import TrainerCallback

    PartialState(cpu=True)
    model = scenarios.build_model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    gradients = []

    class Gather(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            gradients.append(torch.cat([p.grad.full_tensor().reshape(-1).double() for p in model.parameters()]))

    args = scenarios.arguments(out, gradient_accumulation_steps=2, num_train_epochs=1, isolation_check="off")
    trainer = scenarios.Watched(model, args, train_dataset=Dataset.from_list(scenarios.rows(15)), callbacks=[Gather()])
    record = scenarios.Record()
    record.trainer = trainer
    trainer.add_callback(record)
    # DDP cannot wrap sharded parameters; fully_shard averages their gradients itself, as under accelerate's FSDP2.
    trainer.accelerator.prepare_model = lambda model, **kwargs: model
    trainer.train()
    return {"gradients": gradients, "sequences": trainer.steps[:-1], "losses": record.losses}


def test_gradients_are_those_of_the_definition(tmp_path):
    (ranks,) = run_ranks(call(train_sharded, out=str(tmp_path)))
    steps = replay.steps_of(ranks)
    replay.check_epochs(steps, 15, 1)
    expected = replay.replay(steps, scenarios.rows(15))
    assert len(ranks[0]["gradients"]) == len(steps) > 1
    for found, right in zip(ranks[0]["gradients"], expected["gradients"]):
        assert ((found - right).norm() / right.norm()).item() <= 1e-6
    assert ranks[0]["losses"] == ranks[1]["losses"] == pytest.approx(expected["losses"], abs=2e-6)
