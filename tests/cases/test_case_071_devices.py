"""Cases 071, 078, 087: several devices in one process, ranks that share their data, one micro-batch on the device."""

from __future__ import annotations

import types
import weakref

import pytest
import torch
from transformers import TrainingArguments

from hf_packing import PackingTrainer
from hf_packing.errors import PackingError
from hf_packing.train.ranks import Ranks
from hf_packing.train.window import BatchCounts
from tests.train import tiny


def test_case_071_data_parallel_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 2))
    with pytest.raises(PackingError, match="accelerate launch"):
        tiny.make("plain", tmp_path)


def test_case_078_ranks_with_the_same_data_count_once():
    """Four ranks, 2 of data times 2 of tensor parallelism, hold 10, 10, 6 and 6 targets: 16."""
    targets = [10, 10, 6, 6]
    accelerator = types.SimpleNamespace(num_processes=4, device="cpu")
    accelerator.reduce = lambda values, reduction: torch.tensor([float(sum(targets)), 0, 0, 0, 0, 0])
    found = []
    for process, count in enumerate(targets):
        accelerator.process_index = process
        ranks = Ranks.of(types.SimpleNamespace(accelerator=accelerator, get_tp_size=lambda: 2))
        assert (ranks.count, ranks.rank) == (2, process // 2)
        found.append(BatchCounts(targets=count).over_ranks(accelerator, copies=ranks.copies).targets)
    assert found == [16] * 4


def test_case_087_a_window_waits_on_the_cpu(tmp_path):
    alive, most, waiting = weakref.WeakSet(), [], []

    class Watched(PackingTrainer):
        def get_batch_samples(self, *args):
            batches, count = super().get_batch_samples(*args)
            waiting.extend(
                value.device.type for batch in batches for value in batch.values() if torch.is_tensor(value)
            )
            return batches, count

        def _prepare_inputs(self, inputs):
            moved = {name: value.clone() for name, value in super()._prepare_inputs(inputs).items()}
            alive.add(moved["input_ids"])
            most.append(len(alive))
            return moved

    rows = tiny.words(*[16] * 32)
    tiny.make("plain", tmp_path, rows, cls=Watched, max_length=16, gradient_accumulation_steps=32).train()
    assert set(waiting) == {"cpu"} and len(most) == 32 and max(most) == 1
