"""Cases 083, 084, 091, 093, 094: evaluation and counters see sequences and tokens, not batches."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset

from tests.equivalence import trajectory
from tests.train import tiny


FIVE = tiny.words(4, 12, 7, 9, 17)


def test_case_083_a_loss_function_that_divides_by_the_count(tmp_path):
    def by_count(outputs, labels, num_items_in_batch=None):
        logits = outputs["logits"][:, :-1].flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch

    total, targets = tiny.nll(trajectory.build(), FIVE)
    losses = []
    for batch, accumulation in ((1, 5), (5, 1)):
        made = tiny.make(
            "plain", tmp_path, FIVE, packing=False, per_device_train_batch_size=batch, compute_loss_func=by_count,
            gradient_accumulation_steps=accumulation, eval_dataset=Dataset.from_list(FIVE), learning_rate=0.0,
        )  # fmt: skip
        made.train()
        losses += [tiny.logs(made, "loss")[0], made.evaluate()["eval_loss"]]
    assert losses == pytest.approx([total / targets] * 4, rel=1e-6)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_case_084_tokens_seen_where_pad_is_eos(tmp_path, kind):
    rows = [{"input_ids": [*row["input_ids"][:-1], 60]} for row in FIVE]
    tokenizer = trajectory.tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    made = tiny.make(kind, tmp_path, rows, include_num_input_tokens_seen="non_padding", processing_class=tokenizer)
    made.train()
    assert sum(60 in row["input_ids"] for row in rows) == 5
    assert made.state.num_input_tokens_seen == tiny.logs(made, "num_tokens")[-1] == 49


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_case_091_one_evaluation_loss(tmp_path, kind):
    total, targets = tiny.nll(trajectory.build(), FIVE)
    found = [
        tiny.make(
            kind, tmp_path, eval_dataset=Dataset.from_list(FIVE), per_device_eval_batch_size=size,
            eval_packing=packing,
        ).evaluate()["eval_loss"]
        for size in (1, 2, 5)
        for packing in (True, False)
    ]  # fmt: skip
    assert found == pytest.approx([total / targets] * 6, rel=1e-6)


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("packing", [True, False])
def test_case_093_metrics_count_sequences(tmp_path, kind, packing):
    made = tiny.make(
        kind, tmp_path, eval_dataset=Dataset.from_list(FIVE), per_device_eval_batch_size=2, eval_packing=packing,
        compute_metrics=lambda prediction: {"rows": len(prediction.label_ids)},
    )  # fmt: skip
    found = made.evaluate()
    assert found["eval_rows"] == 5
    assert found["eval_samples_per_second"] == pytest.approx(5 / found["eval_runtime"], rel=0.01)


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("eval_packing", [True, False])
def test_case_094_eval_loss_in_all_combinations(tmp_path, kind, packing, eval_packing):
    made = tiny.make(
        kind, tmp_path, FIVE, packing=packing, eval_packing=eval_packing, eval_dataset=Dataset.from_list(FIVE),
        eval_strategy="epoch", save_strategy="best", metric_for_best_model="eval_loss", gradient_accumulation_steps=50,
        learning_rate=0.0,
    )  # fmt: skip
    made.train()
    total, targets = tiny.nll(trajectory.build(), FIVE)
    assert made.state.best_metric == pytest.approx(total / targets, rel=1e-6)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_case_094_batch_eval_metrics(tmp_path, kind):
    seen = []

    def count(prediction, compute_result):
        seen.append(len(prediction.label_ids))
        return {"rows": sum(seen)} if compute_result else {}

    made = tiny.make(
        kind, tmp_path, eval_dataset=Dataset.from_list(FIVE), per_device_eval_batch_size=1, batch_eval_metrics=True,
        compute_metrics=count, max_length=20,
    )  # fmt: skip
    found = made.evaluate()
    assert found["eval_rows"] == 5 and len(seen) > 1 and found["eval_loss"] > 0
