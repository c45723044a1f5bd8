"""Cases 067, 068, 069, 073, 074, 080, 081, 089: one loss for one set of sequences, however a step is put together."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import RobertaConfig, RobertaForMaskedLM

from hf_packing import PackingTrainer, pack_dataset
from hf_packing.train.loss import count_targets
from hf_packing.train.window import BatchCounts
from tests.equivalence import trajectory
from tests.train import tiny


def one_step(trainer):
    """(loss, gradient) of the first step."""
    record = trajectory.Record()
    trainer.add_callback(record)
    trainer.train()
    return record.trajectory.losses[0], record.trajectory.gradients[0]


def same(found, expected, bound=1e-5):
    assert found[0] == pytest.approx(expected[0], rel=bound)
    assert ((found[1] - expected[1]).norm() / expected[1].norm()).item() <= bound


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_case_067_packed_as_unpacked(tmp_path, kind):
    rows = tiny.words(5, 9, 3, 12, 7, 4)
    unpacked = tiny.make(kind, tmp_path, rows, packing=False, per_device_train_batch_size=6, learning_rate=0.0)
    packed = tiny.make(kind, tmp_path, rows, max_length=40, learning_rate=0.0)
    assert len(packed.train_dataset) == 1
    same(one_step(packed), one_step(unpacked))


class Mean(PackingTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


@pytest.mark.parametrize("packing", [True, False])
def test_case_068_a_returned_mean_is_not_multiplied_by_accumulation(tmp_path, packing):
    rows = tiny.words(6, 11)
    settings = {"cls": Mean, "max_sequences_per_pack": 1, "packing": packing}
    split = tiny.make("plain", tmp_path, rows, gradient_accumulation_steps=2, **settings)
    whole = tiny.make("plain", tmp_path, rows, packing=False, per_device_train_batch_size=2)
    same(one_step(split), one_step(whole))


def test_case_069_a_head_that_drops_the_count(tmp_path):
    def build():
        torch.manual_seed(0)
        small = dict(vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
        return RobertaForMaskedLM(RobertaConfig(**small, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))

    rows = [
        {"input_ids": [4, 5, 6, 7], "labels": [-100, 5, 6, 7]},
        {"input_ids": [8, 9, 10, 11], "labels": [-100, 9, -100, -100]},
    ]
    batch = tiny.make("plain", tmp_path, rows, model=build(), packing=False, per_device_train_batch_size=2)
    split = tiny.make("plain", tmp_path, rows, model=build(), packing=False, gradient_accumulation_steps=2)
    same(one_step(split), one_step(batch), 1e-6)


def test_case_073_the_first_token_of_a_row_is_not_counted():
    assert count_targets(torch.arange(8).reshape(2, 4)) == 6


@pytest.mark.parametrize("packing", [True, False])
def test_case_074_the_last_window_is_not_divided_by_the_full_accumulation(tmp_path, packing):
    rows = tiny.words(*[9] * 5)
    made = tiny.make(
        "plain", tmp_path, rows, max_length=9, packing=packing, gradient_accumulation_steps=2, learning_rate=0.0
    )
    order = [index for batch in made.get_train_dataloader().batch_sampler for index in batch]
    made.train()
    last = {name: list(map(int, made.train_dataset[order[-1]][name])) for name in ("input_ids", "labels")}
    total, targets = tiny.nll(trajectory.build(), [last])
    assert len(tiny.logs(made, "loss")) == 3
    assert tiny.logs(made, "loss")[-1] == pytest.approx(total / targets, rel=1e-6)


def test_case_080_no_mean_of_means_over_ranks():
    """6 targets of sum 12 and 2 of sum 10: every rank divides by 8 and the ranks are added up."""
    ranks = [(6, 12.0), (2, 10.0)]
    step = sum((BatchCounts(targets=n, weight=n) for n, _ in ranks), BatchCounts())
    assert sum(total / step.weight for _, total in ranks) == 2.75


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_case_081_one_loss_for_every_split(tmp_path, kind):
    """Sixteen rows with 1 to 16 targets."""
    rows = tiny.words(*range(2, 18))
    found = [
        one_step(
            tiny.make(
                kind, tmp_path, rows, packing=False, per_device_train_batch_size=batch,
                gradient_accumulation_steps=accumulation,
            )
        )
        for batch, accumulation in ((16, 1), (4, 4), (1, 16))
    ]  # fmt: skip
    same(found[1], found[0])
    same(found[2], found[0])


def test_case_089_tokens_weigh_the_same_in_any_plan(tmp_path):
    """Four sequences in packs of three and one, of one and three, of two and two: one training and one eval loss."""
    rows = Dataset.from_list(tiny.words(4, 6, 5, 3))
    total, targets = tiny.nll(trajectory.build(), rows.to_list())
    for order, size in (([0, 1, 2, 3], 1), ([3, 2, 1, 0], 2), ([1, 3, 0, 2], 1)):
        packs = pack_dataset(rows.select(order), max_length=15, strategy="sequential")
        made = tiny.make(
            "plain", tmp_path, packs, max_length=15, per_device_train_batch_size=size, eval_dataset=packs,
            gradient_accumulation_steps=2, per_device_eval_batch_size=size, learning_rate=0.0,
        )  # fmt: skip
        made.train()
        assert tiny.logs(made, "loss") == [pytest.approx(total / targets, rel=1e-6)]
        assert made.evaluate()["eval_loss"] == pytest.approx(total / targets, rel=1e-6)
