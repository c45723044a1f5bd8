"""A trainer of either kind over a few short sequences, in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset

from hf_packing import PackingSFTConfig, PackingSFTTrainer, PackingTrainer, PackingTrainingArguments
from tests.equivalence import trajectory


KINDS = ("plain", "sft")


def make(kind: str, out: Any, train: Any = None, cls: Any = None, model: Any = None, **given: Any) -> Any:
    """A trainer; `given` are settings, or arguments of the trainer where they are known to be."""
    names = ("eval_dataset", "compute_metrics", "preprocess_logits_for_metrics", "compute_loss_func", "callbacks")
    names += ("data_collator", "processing_class", "peft_config", "formatting_func")
    arguments = {name: given.pop(name) for name in names if name in given}
    settings = {"per_device_train_batch_size": 1, "max_length": 48, "packing": True, "num_train_epochs": 1, **given}
    config = PackingTrainingArguments if kind == "plain" else PackingSFTConfig
    if kind == "sft":
        arguments.setdefault("processing_class", trajectory.tokenizer())
    cls = cls or (PackingTrainer if kind == "plain" else PackingSFTTrainer)
    train = trajectory.sequences() if train is None else train
    train = Dataset.from_list(train) if isinstance(train, list) else train
    model = trajectory.build() if model is None else model
    return cls(model, config(**trajectory.settings(str(out), **settings)), train_dataset=train, **arguments)


def logs(trainer: Any, name: str) -> list[Any]:
    """What a key was logged as, in order."""
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def nll(model: Any, rows: list[dict[str, list[int]]]) -> tuple[float, int]:
    """Sum of the losses of all targets, each sequence run alone, and the number of targets."""
    import torch

    with torch.no_grad():
        total = sum(trajectory.nll_sum(model.eval(), row).item() for row in rows)
    return total, sum(map(trajectory.targets, rows))


def words(*lengths: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Sequences of these lengths, all tokens targets but the first."""
    rng = np.random.default_rng(seed)
    ids = [rng.integers(3, trajectory.VOCABULARY - 2, length).tolist() for length in lengths]
    return [{"input_ids": row, "labels": list(row)} for row in ids]
