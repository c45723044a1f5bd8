"""A stream by epochs, without max_steps: every sequence once a pass, and a schedule that ends where the run does."""

from __future__ import annotations

import pytest
from datasets import Dataset

from hf_packing import PackingError, PackingSFTConfig, PackingSFTTrainer, PackingTrainer, PackingTrainingArguments
from tests.equivalence import trajectory as t


def make(kind, tmp_path, dataset, **extra):
    """A trainer over `dataset` of either kind."""
    common = t.settings(str(tmp_path), max_length=32, per_device_train_batch_size=1, **extra)
    if kind == "plain":
        return PackingTrainer(t.build(), PackingTrainingArguments(**common), train_dataset=dataset)
    args = PackingSFTConfig(**common, packing=True)
    return PackingSFTTrainer(t.build(), args, train_dataset=dataset, processing_class=t.tokenizer())


@pytest.mark.parametrize("kind", ["plain", "sft"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_every_sequence_once_a_pass(kind, accumulation, tmp_path):
    rows = t.sequences()
    stream = Dataset.from_list(rows).to_iterable_dataset(num_shards=2)
    trainer = make(kind, tmp_path, stream, num_train_epochs=2, gradient_accumulation_steps=accumulation)
    planned = trainer.args.max_steps
    trainer.train()
    assert trainer.state.global_step == planned > 2
    assert trainer.meter.num_sequences == 2 * len(rows)
    assert trainer.meter.num_tokens == 2 * sum(t.LENGTHS)


def test_a_generator_is_refused(tmp_path):
    with pytest.raises(PackingError, match=r"train_dataset is a generator.*only once.*Set max_steps"):
        make("plain", tmp_path, (row for row in t.sequences()))


def test_a_plain_iterable_counts_too(tmp_path):
    class Rows:
        def __iter__(self):
            return iter(t.sequences())

    trainer = make("plain", tmp_path, Rows(), num_train_epochs=1)
    trainer.train()
    assert trainer.meter.num_sequences == len(t.LENGTHS)


def test_max_steps_still_decides(tmp_path):
    stream = Dataset.from_list(t.sequences()).to_iterable_dataset()
    trainer = make("plain", tmp_path, stream, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == trainer.args.max_steps == 2
