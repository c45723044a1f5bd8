"""DeepSpeed ZeRO-2 on two CPU ranks: the weights after a run are those of the definition."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from tests.distributed import replay, scenarios
from tests.distributed.ranks import call, run_ranks


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]

ZERO2 = {
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 0.0,
}


@pytest.fixture(scope="module", autouse=True)
def shared_memory_op():
    """DeepSpeed compiles this on first use, which takes minutes and would look like a hang."""
    code = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load()"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "DS_ACCELERATOR": "cpu"}, check=True, timeout=550)


def train_with_deepspeed(out, **settings):
    os.environ["DS_ACCELERATOR"] = "cpu"
    return scenarios.train(out, deepspeed=ZERO2, **settings)


def test_weights_after_the_run(tmp_path):
    (ranks,) = run_ranks(
        call(train_with_deepspeed, out=str(tmp_path), count=15, num_train_epochs=2, gradient_accumulation_steps=2)
    )
    steps = replay.steps_of(ranks)
    replay.check_epochs(steps, 15, 2)
    expected = replay.replay(steps, scenarios.rows(15))
    assert ranks[0]["losses"] == ranks[1]["losses"] == pytest.approx(expected["losses"], abs=2e-6)
    start = torch.cat([p.detach().reshape(-1) for p in scenarios.build_model().parameters()])
    for rank in ranks:
        moved, right = rank["weights"] - start, expected["weights"] - start
        assert ((moved - right).norm() / right.norm()).item() <= 1e-5  # of float32 weights about 100 times their step
