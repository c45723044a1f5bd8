"""eval_loss is one number, and compute_metrics sees sequences, whatever the batches look like."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset

from hf_packing import PackedDataset, pack_dataset
from hf_packing.data import plan_dataset
from hf_packing.errors import PackingError
from tests.equivalence import trajectory
from tests.train import tiny


EVALUATED = trajectory.sequences()[:7]


@pytest.fixture(scope="module")
def expected():
    total, targets = tiny.nll(trajectory.build(), EVALUATED)
    return total / targets


def evaluate(out, kind="plain", rows=None, **settings):
    settings.setdefault("eval_dataset", Dataset.from_list(EVALUATED if rows is None else rows))
    return tiny.make(kind, out, **settings).evaluate()


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("size", [1, 3, 8])
def test_one_value_for_every_batch_size(tmp_path, kind, size, expected):
    assert evaluate(tmp_path, kind, per_device_eval_batch_size=size)["eval_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("packing, eval_packing", [(True, False), (False, True), (False, False)])
def test_one_value_packed_or_not(tmp_path, kind, packing, eval_packing, expected):
    found = evaluate(tmp_path, kind, packing=packing, eval_packing=eval_packing, per_device_eval_batch_size=2)
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_one_value_padding_free(tmp_path, expected):
    found = evaluate(tmp_path, packing=False, padding_free=True, per_device_eval_batch_size=2)
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", ["packed", "lazy", "stream", "list"])
def test_one_value_for_every_form_of_dataset(tmp_path, form, expected):
    rows = Dataset.from_list(EVALUATED)
    forms = {
        "packed": lambda: pack_dataset(rows, max_length=48),
        "lazy": lambda: PackedDataset(rows, plan_dataset(rows, 32)),
        "stream": lambda: rows.to_iterable_dataset(),
        "list": lambda: EVALUATED,
    }
    trainer = tiny.make("plain", tmp_path, eval_dataset=forms[form](), per_device_eval_batch_size=2)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_each_of_several_sets_has_its_own(tmp_path, kind, expected):
    sets = {"first": Dataset.from_list(EVALUATED), "short": Dataset.from_list(EVALUATED[:2])}
    found = evaluate(tmp_path, kind, eval_dataset=sets)
    total, targets = tiny.nll(trajectory.build(), EVALUATED[:2])
    assert found["eval_first_loss"] == pytest.approx(expected, rel=1e-6)
    assert found["eval_short_loss"] == pytest.approx(total / targets, rel=1e-6)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_set_given_to_evaluate(tmp_path, kind, expected):
    trainer = tiny.make(kind, tmp_path)
    kept = len(trainer._arranged)
    found = trainer.evaluate(Dataset.from_list(EVALUATED))
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert len(trainer._arranged) == kept  # nothing is kept of a set that came for one evaluation


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_the_weighting_of_training_does_not_reach_evaluation(tmp_path, kind, expected):
    found = evaluate(tmp_path, kind, loss_normalization="sequence", gradient_accumulation_steps=3)
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_accuracy_and_entropy_are_weighted_by_tokens(tmp_path):
    model = trajectory.build().eval()
    correct = entropy = count = 0.0
    for row in EVALUATED:
        with torch.no_grad():
            log_p = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1].log_softmax(-1)
        labels = torch.tensor(row["labels"][1:])
        here = labels != -100
        correct += (log_p.argmax(-1) == labels)[here].sum().item()
        entropy += -(log_p.exp() * log_p).sum(-1)[here].sum().item()
        count += here.sum().item()
    for size, packing in itertools.product((1, 3), (True, False)):
        found = evaluate(tmp_path, "sft", eval_packing=packing, per_device_eval_batch_size=size)
        assert found["eval_mean_token_accuracy"] == pytest.approx(correct / count)
        assert found["eval_entropy"] == pytest.approx(entropy / count, rel=1e-5)


class Metrics:
    """compute_metrics that keeps what it is shown."""

    def __init__(self):
        self.seen, self.results = [], []

    def __call__(self, prediction, compute_result=None):
        self.seen.append(prediction)
        self.results.append(compute_result)
        return {"sequences": len(prediction.label_ids)}


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("eval_packing", [True, False, None])
def test_compute_metrics_sees_sequences_in_dataset_order(tmp_path, kind, eval_packing):
    metrics = Metrics()
    found = evaluate(
        tmp_path,
        kind,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        eval_packing=eval_packing,
        packing=eval_packing is not None,  # without either, rows come from TRL's collator
        per_device_eval_batch_size=2,
        include_for_metrics=["inputs", "loss"],
    )
    assert found["eval_sequences"] == len(EVALUATED)
    (prediction,) = metrics.seen
    model = trajectory.build().eval()
    alone = [tiny.nll(model, [row])[0] / trajectory.targets(row) for row in EVALUATED]
    assert prediction.losses.tolist() == pytest.approx(alone, rel=1e-5)
    for row, labels, ids, predicted in zip(EVALUATED, prediction.label_ids, prediction.inputs, prediction.predictions):
        length = len(row["input_ids"])
        assert ids[:length].tolist() == row["input_ids"]
        assert labels[1:length].tolist() == row["labels"][1:]
        assert (labels[length:] == -100).all() and (predicted[length:] == -100).all()
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([row["input_ids"]])).logits[0].argmax(-1)
        assert predicted[:length].tolist() == alone.tolist()


@pytest.mark.parametrize("eval_packing", [True, False])
def test_batch_eval_metrics_sees_each_sequence_once_and_knows_the_end(tmp_path, eval_packing):
    metrics = Metrics()
    evaluate(
        tmp_path,
        compute_metrics=metrics,
        batch_eval_metrics=True,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        eval_packing=eval_packing,
        per_device_eval_batch_size=2,
    )
    assert sum(len(seen.label_ids) for seen in metrics.seen) == len(EVALUATED)
    assert metrics.results == [False] * (len(metrics.results) - 1) + [True]
    assert len(metrics.results) > 1


@pytest.mark.parametrize("by_batch", [True, False])
def test_predict(tmp_path, by_batch):
    metrics = Metrics()
    trainer = tiny.make("plain", tmp_path, compute_metrics=metrics, batch_eval_metrics=by_batch)
    found = trainer.predict(Dataset.from_list(EVALUATED))
    assert found.predictions.shape == (len(EVALUATED), 31, trajectory.VOCABULARY)
    assert found.label_ids.shape == (len(EVALUATED), 31)
    assert "test_loss" in found.metrics and "test_sequences" in found.metrics
    order = np.argsort([len(row["input_ids"]) for row in EVALUATED])
    assert (found.label_ids[order[-1]] != -100).sum() == trajectory.targets(EVALUATED[order[-1]])


def test_predictions_with_another_shape_are_refused(tmp_path):
    with pytest.raises(PackingError, match=r"preprocess_logits_for_metrics returned \(1, .*one entry a token"):
        evaluate(
            tmp_path,
            compute_metrics=Metrics(),
            preprocess_logits_for_metrics=lambda logits, labels: logits.mean(1),
        )


@pytest.mark.parametrize("packing, eval_packing", list(itertools.product((True, False), (True, False, None))))
def test_best_model_by_eval_loss(tmp_path, packing, eval_packing, expected):
    trainer = tiny.make(
        "sft",
        tmp_path,
        eval_dataset=Dataset.from_list(EVALUATED),
        packing=packing,
        eval_packing=eval_packing,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="best",
        metric_for_best_model="eval_loss",
        max_steps=1,
        learning_rate=0.0,
    )
    trainer.train()
    assert trainer.state.best_metric == pytest.approx(expected, rel=1e-6)
    assert (tmp_path / "checkpoint-1").is_dir()


def test_a_loss_function_of_the_user_is_given_a_count(tmp_path, expected):
    counts = []

    def by_count(outputs, labels, num_items_in_batch=None):
        counts.append(int(num_items_in_batch))
        logits = outputs["logits"][:, :-1].float().flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch

    found = evaluate(tmp_path, compute_loss_func=by_count, per_device_eval_batch_size=1)
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert sum(counts) == sum(map(trajectory.targets, EVALUATED))


def test_a_set_without_targets_has_no_loss(tmp_path):
    silent = [{"input_ids": [5, 6, 7], "labels": [-100, -100, -100]}]
    rows = IterableDataset.from_generator(lambda: iter(EVALUATED[:1]))
    assert "eval_loss" in evaluate(tmp_path, eval_dataset=rows)
    with pytest.raises(PackingError, match="No sequence of the eval dataset has a target"):
        evaluate(tmp_path, rows=silent)
