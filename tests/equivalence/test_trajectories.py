"""Same sequences, same trajectory: whatever the trainer, strategy, micro-batch, accumulation, precision or feature."""

from __future__ import annotations

import math

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import Trainer

from hf_packing import (
    PackedDataset,
    PackedStream,
    PackingSFTConfig,
    PackingSFTTrainer,
    PackingTrainer,
    PackingTrainingArguments,
    pack_dataset,
)
from hf_packing.data import plan_dataset
from tests.equivalence import trajectory as t


STEPS = 3
SLOW_SFT = pytest.param("sft", marks=pytest.mark.slow)
"""Where the other trainer goes through the same code of this package, it is left to the longer suite."""


def run(tmp_path, trainer="plain", model=None, rows=None, micro=2, trainer_class=None, trainer_kwargs=None, **extra):
    """The trajectory of a real trainer over the whole set a step."""
    rows = t.sequences() if rows is None else rows
    model = t.build() if model is None else model
    extra.setdefault("max_length", 48)
    record = t.Record()
    if trainer == "plain":
        config, cls, kwargs = PackingTrainingArguments, trainer_class or PackingTrainer, {}
    else:
        config, cls = PackingSFTConfig, trainer_class or PackingSFTTrainer
        kwargs = {"processing_class": t.tokenizer()}
        extra.setdefault("packing", True)
    args = config(**t.settings(str(tmp_path), num_train_epochs=STEPS, per_device_train_batch_size=micro, **extra))
    rows = Dataset.from_list(rows) if isinstance(rows, list) else rows
    built = cls(model, args, train_dataset=rows, callbacks=[record], **kwargs, **(trainer_kwargs or {}))
    if "gradient_accumulation_steps" not in extra:
        built.args.gradient_accumulation_steps = len(built.get_train_dataloader())
    built.train()
    assert built.state.global_step == STEPS
    return record.trajectory


def check(trajectory, expected, gradient=1e-6, loss=2e-6):
    found = t.distance(trajectory, expected)
    assert found["gradient"] <= gradient, found
    assert found["loss"] <= loss, found
    assert abs(found["residual"]) <= loss, found


@pytest.mark.parametrize("trainer", ["plain", "sft"])
@pytest.mark.parametrize("micro", [1, 2, 5])
def test_micro_batches_and_accumulation(tmp_path, trainer, micro):
    model = t.build()
    check(run(tmp_path, trainer, model, micro=micro), t.reference(t.build(), t.sequences(), STEPS))


@pytest.mark.parametrize("trainer", ["plain", SLOW_SFT])
@pytest.mark.parametrize("strategy", ["bfd", "optimal", "stream", "sequential"])
def test_strategies(tmp_path, trainer, strategy):
    expected = t.reference(t.build(), t.sequences(), STEPS)
    check(run(tmp_path, trainer, packing_strategy=strategy), expected)


@pytest.mark.parametrize("trainer", ["plain", SLOW_SFT])
@pytest.mark.parametrize("form", ["packed", "lazy", "stream", "stream of packs", "workers", "few a pack"])
def test_forms_of_data(tmp_path, trainer, form):
    rows = Dataset.from_list(t.sequences())
    forms = {
        "packed": lambda: pack_dataset(rows, max_length=48),
        "lazy": lambda: PackedDataset(rows, plan_dataset(rows, 48, strategy="optimal")),
        "stream": lambda: rows.to_iterable_dataset(),
        "stream of packs": lambda: PackedStream(rows, 48, buffer_size=4),
    }
    given = {"workers": {"dataloader_num_workers": 1}, "few a pack": {"max_sequences_per_pack": 2}}.get(form, {})
    if "stream" in form:
        # More micro-batches than a pass holds: the rest of the window is filler, and a step is a pass.
        given = {"max_steps": STEPS, "gradient_accumulation_steps": 12}
    data = forms[form]() if form in forms else t.sequences()
    check(run(tmp_path, trainer, rows=data, **given), t.reference(t.build(), t.sequences(), STEPS))


@pytest.mark.parametrize("trainer", ["plain", "sft"])
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_families(tmp_path, trainer, family):
    expected = t.reference(t.build(family), t.sequences(), STEPS)
    check(run(tmp_path, trainer, t.build(family)), expected)


@pytest.mark.parametrize("trainer", ["plain", "sft"])
def test_sequence_normalization(tmp_path, trainer):
    expected = t.reference(t.build(), t.sequences(), STEPS, normalization="sequence")
    check(run(tmp_path, trainer, loss_normalization="sequence"), expected)


@pytest.mark.parametrize("trainer", ["plain", "sft"])
def test_sequence_normalization_is_the_mean_of_means(tmp_path, trainer):
    model, rows = t.build(), t.sequences()
    with torch.no_grad():
        means = [t.nll_sum(model, row).item() / t.targets(row) for row in rows]
    found = run(tmp_path, trainer, model, rows, loss_normalization="sequence").losses[0]
    assert found == pytest.approx(sum(means) / len(means), rel=1e-6)


@pytest.mark.parametrize("normalization", ["token", "sequence"])
def test_pieces_of_a_split_sequence_weigh_one_together(tmp_path, normalization):
    """A split changes what a token can see, so the reference trains the pieces; only their weights are the whole's."""
    rows = t.sequences(masked=False)
    pieces, weights = [], []
    for row in rows:
        cut = [row["input_ids"][at : at + 16] for at in range(0, len(row["input_ids"]), 16)]
        kept = [{"input_ids": ids, "labels": list(ids)} for ids in cut if len(ids) > 1]
        pieces += kept
        weights += [1 / sum(map(t.targets, kept)) if normalization == "sequence" else 1.0] * len(kept)
    assert len(pieces) > len(rows)
    model = t.build()
    denominator = sum(weight * t.targets(piece) for weight, piece in zip(weights, pieces))
    total = sum(t.nll_sum(model, piece) * weight for weight, piece in zip(weights, pieces)) / denominator
    total.backward()
    found = run(
        tmp_path, model=t.build(), rows=rows, max_length=16, overflow="split", loss_normalization=normalization
    )
    assert found.losses[0] == pytest.approx(total.item(), rel=1e-6)
    expected = t.flat_gradient(model)
    assert ((found.gradients[0] - expected).norm() / expected.norm()).item() <= 1e-6


@pytest.mark.parametrize("trainer", ["plain", "sft"])
def test_label_smoothing(tmp_path, trainer):
    expected = t.reference(t.build(), t.sequences(), STEPS, smoothing=0.1)
    check(run(tmp_path, trainer, label_smoothing_factor=0.1), expected)


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("strategy", ["bfd", "sequential"])
def test_double_precision_is_exact_to_rounding(tmp_path, micro, strategy):
    expected = t.reference(t.build("gpt2", torch.float64), t.sequences(), STEPS)
    found = run(tmp_path, model=t.build("gpt2", torch.float64), micro=micro, packing_strategy=strategy)
    check(found, expected, gradient=1e-12, loss=1e-12)


@pytest.mark.parametrize("trainer", ["plain", SLOW_SFT])
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(tmp_path, trainer, reentrant):
    expected = t.reference(t.build(), t.sequences(), STEPS)
    found = run(
        tmp_path, trainer, gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": reentrant}
    )
    check(found, expected)


@pytest.mark.parametrize("trainer", ["plain", "sft"])
def test_lora(tmp_path, trainer):
    def adapted():
        torch.manual_seed(5)
        return get_peft_model(
            t.build(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        )

    check(run(tmp_path, trainer, adapted()), t.reference(adapted(), t.sequences(), STEPS))


@pytest.mark.parametrize("trainer", ["plain", "sft"])
def test_experts_without_balancing_term(tmp_path, trainer):
    def build():
        return t.build("mixtral", router_aux_loss_coef=0.0)

    check(run(tmp_path, trainer, build()), t.reference(build(), t.sequences(), STEPS))


@pytest.mark.parametrize("trainer", ["plain", "sft"])
@pytest.mark.parametrize("padding_free", [True, False])
def test_without_packing(tmp_path, trainer, padding_free):
    expected = t.reference(t.build(), t.sequences(), STEPS)
    check(run(tmp_path, trainer, packing=False, padding_free=padding_free, micro=3), expected)


def test_padding_free_up_to_a_token_budget(tmp_path):
    expected = t.reference(t.build(), t.sequences(), STEPS)
    check(run(tmp_path, "sft", packing=False, padding_free=True, max_tokens_per_batch=40), expected)


@pytest.mark.parametrize("trainer", ["plain", "sft"])
def test_one_sequence_a_row(tmp_path, trainer):
    """The fallback for models that cannot be packed, forced on one that can."""
    from hf_packing.train import trainer as module

    expected = t.reference(t.build(), t.sequences(), STEPS)
    original = module.choose_batch_form

    def grouped(model, packing):
        from dataclasses import replace

        return replace(original(model, packing), layout="group")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "choose_batch_form", grouped)
        check(run(tmp_path, trainer, micro=1, isolation_check="group"), expected)


@pytest.mark.parametrize("trainer", ["plain", "sft"])
def test_loss_function_of_the_user(tmp_path, trainer):
    def by_count(outputs, labels, num_items_in_batch=None):
        logits = outputs["logits"][:, :-1].float().flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch

    def mean(outputs, labels, num_items_in_batch=None):
        logits = outputs["logits"][:, :-1].float().flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())

    expected = t.reference(t.build(), t.sequences(), STEPS)
    for function in (by_count, mean):
        check(run(tmp_path, trainer, trainer_kwargs={"compute_loss_func": function}), expected)


def test_override_that_returns_a_mean(tmp_path):
    """A subclass that computes the loss itself, as Trainer's documentation shows it, without any count."""

    class Mine(PackingTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    expected = t.reference(t.build(), t.sequences(), STEPS)
    check(run(tmp_path, trainer_class=Mine, micro=1), expected)


def test_override_that_builds_on_ours(tmp_path):
    class Mine(PackingTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch) * 1.0

    check(run(tmp_path, trainer_class=Mine, micro=1), t.reference(t.build(), t.sequences(), STEPS))


def test_override_that_says_it_is_scaled(tmp_path):
    class Mine(PackingTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    built = []

    class Declared(Mine):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.loss_is_scaled_for_ga = True
            built.append(self)

    found = run(tmp_path, trainer_class=Declared, micro=1)
    expected = t.reference(t.build(), t.sequences(), STEPS)
    assert t.distance(t.Trajectory(expected.losses, found.gradients), expected)["gradient"] <= 1e-6
    assert built and isinstance(built[0], Trainer)


@pytest.mark.parametrize("trainer", ["plain", "sft"])
def test_incomplete_last_window(tmp_path, trainer):
    """Five packs, two a step: the third step is the fifth pack alone, at full weight."""
    rows = [{"input_ids": list(range(3, 3 + length))} for length in (11, 12, 13, 14, 15)]
    rows = [{**row, "labels": row["input_ids"]} for row in rows]
    record = t.Record()
    config, cls = (
        (PackingTrainingArguments, PackingTrainer) if trainer == "plain" else (PackingSFTConfig, PackingSFTTrainer)
    )
    kwargs = {} if trainer == "plain" else {"processing_class": t.tokenizer()}
    extra = {"learning_rate": 0.0, "max_length": 15, "packing": True, "gradient_accumulation_steps": 2}
    args = config(**t.settings(str(tmp_path), num_train_epochs=1, per_device_train_batch_size=1, **extra))
    built = cls(t.build(), args, train_dataset=Dataset.from_list(rows), callbacks=[record], **kwargs)
    order = [index for batch in built.get_train_dataloader().batch_sampler for index in batch]
    built.train()
    assert built.state.global_step == math.ceil(5 / 2) == 3
    last = built.train_dataset[order[-1]]
    alone = {"input_ids": last["input_ids"].tolist(), "labels": last["labels"].tolist()}
    expected = t.reference(t.build(), [alone], 1)
    assert record.trajectory.losses[-1] == pytest.approx(expected.losses[0], abs=2e-6)
    error = (record.trajectory.gradients[-1] - expected.gradients[0]).norm() / expected.gradients[0].norm()
    assert error.item() <= 1e-6
