"""What one optimizer step adds up to: heads of every kind, user losses, balancing terms, silence."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import RobertaConfig, RobertaForMaskedLM, Trainer
from transformers.trainer_pt_utils import LabelSmoother

from hf_packing import PackingSFTTrainer, PackingTrainer, pack_dataset
from hf_packing.errors import PackingError
from tests.equivalence import trajectory
from tests.train import tiny


def first_gradient(trainer):
    """Gradient of the first optimizer step."""
    record = trajectory.Record()
    trainer.add_callback(record)
    trainer.train()
    return record.trajectory.gradients[0]


def check_gradient(found, expected, bound=1e-6):
    assert ((found - expected).norm() / expected.norm()).item() <= bound


# --- heads that drop the count -------------------------------------------------------------------------------------


def roberta():
    torch.manual_seed(3)
    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
        )
    )  # fmt: skip


MASKED = [
    {"input_ids": [4, 5, 6, 7], "labels": [4, -100, 6, 7]},  # the first token is a target too
    {"input_ids": [8, 9, 10], "labels": [-100, 9, -100]},
]


@pytest.mark.parametrize("collator", ["ours", "theirs"])
def test_masked_language_model_over_accumulation(tmp_path, collator):
    model = roberta()
    total = 0.0
    for row in MASKED:
        logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(row["labels"]), reduction="sum")
    (total / 4).backward()
    expected = trajectory.flat_gradient(model)

    def pad(rows):
        width = max(len(row["input_ids"]) for row in rows)
        fills = {"input_ids": 1, "labels": -100}
        batch = {k: torch.tensor([r[k] + [f] * (width - len(r[k])) for r in rows]) for k, f in fills.items()}
        return batch | {"attention_mask": (batch["input_ids"] != 1).long()}

    given = {"data_collator": pad} if collator == "theirs" else {}
    for batch, accumulation in ((1, 2), (2, 1)):
        trainer = tiny.make(
            "plain", tmp_path, [row | {"note": "x"} for row in MASKED], model=roberta(), packing=False,
            per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, **given,
        )  # fmt: skip
        check_gradient(first_gradient(trainer), expected)
        assert tiny.logs(trainer, "loss")[0] == pytest.approx(total.item() / 4, rel=1e-6)


def test_long_rows_of_a_masked_language_model_are_named(tmp_path):
    with pytest.raises(PackingError, match=r"Row 0 of the train dataset has 4 tokens, more than max_length=3"):
        tiny.make("plain", tmp_path, MASKED, model=roberta(), packing=False, max_length=3)


# --- the balancing term of mixtures of experts ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("batch, accumulation", [(1, 4), (2, 2), (4, 1)])
def test_balancing_term_counts_once_a_step(tmp_path, kind, batch, accumulation):
    """Equal packs, so that the nonlinear term is the same for every split of the step."""

    def build():
        return trajectory.build("mixtral", router_aux_loss_coef=0.3, output_router_logits=True)

    rows = tiny.words(9) * 4
    model = build()
    ids = torch.tensor([rows[0]["input_ids"]])
    outputs = model(input_ids=ids, labels=ids, use_cache=False)
    outputs.loss.backward()
    trainer = tiny.make(
        kind, tmp_path, rows, model=build(), max_sequences_per_pack=1, max_length=9,
        per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
    )  # fmt: skip
    check_gradient(first_gradient(trainer), trajectory.flat_gradient(model), 2e-6)
    assert tiny.logs(trainer, "aux_loss")[0] == pytest.approx(outputs.aux_loss.item(), rel=1e-6)
    plain = (outputs.loss - 0.3 * outputs.aux_loss).item()
    assert tiny.logs(trainer, "loss")[0] == pytest.approx(plain, rel=1e-5)


def test_balancing_term_is_weighted_by_tokens(tmp_path):
    """Packs of 12 and 4 tokens: three quarters of the first one's term and a quarter of the second's."""

    def build():
        return trajectory.build("mixtral", router_aux_loss_coef=0.3, output_router_logits=True)

    rows, model = tiny.words(12, 4), build()
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        outputs = model(input_ids=ids, labels=ids, use_cache=False)
        (outputs.logits.sum() * 0 + 0.3 * outputs.aux_loss * len(row["input_ids"]) / 16).backward()
        (trajectory.nll_sum(model, row) / 14).backward()
    trainer = tiny.make("plain", tmp_path, rows, model=build(), max_length=12, gradient_accumulation_steps=2)
    check_gradient(first_gradient(trainer), trajectory.flat_gradient(model), 2e-6)


# --- losses of the user --------------------------------------------------------------------------------------------


def smoothed_reference(epsilon):
    return trajectory.reference(trajectory.build(), trajectory.sequences(), 1, smoothing=epsilon)


class OldSmoother(LabelSmoother):
    """One written before the count came along, and with another formula for its epsilon."""

    def __call__(self, model_output, labels, shift_labels=False):
        return LabelSmoother(epsilon=2 * self.epsilon)(model_output, labels, shift_labels)


class NewSmoother(LabelSmoother):
    def __call__(self, model_output, labels, shift_labels=False, num_items_in_batch=None):
        return LabelSmoother(epsilon=2 * self.epsilon)(model_output, labels, shift_labels, num_items_in_batch)


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("smoother", [OldSmoother, NewSmoother])
def test_label_smoother_of_a_subclass(tmp_path, kind, smoother):
    trainer = tiny.make(kind, tmp_path, gradient_accumulation_steps=50)
    trainer.label_smoother = smoother(epsilon=0.1)
    expected = smoothed_reference(0.2)
    check_gradient(first_gradient(trainer), expected.gradients[0])
    assert tiny.logs(trainer, "loss")[0] == pytest.approx(expected.losses[0], rel=1e-6)


class Mean(PackingTrainer):
    """As Trainer's documentation shows it: the model's mean, without any count."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class MeanSFT(Mean, PackingSFTTrainer):
    pass


class ByCount(PackingTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_is_scaled_for_ga = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


@pytest.mark.parametrize("cls", [Mean, MeanSFT, ByCount])
def test_overridden_compute_loss(tmp_path, cls):
    kind = "sft" if issubclass(cls, PackingSFTTrainer) else "plain"
    trainer = tiny.make(kind, tmp_path, cls=cls, gradient_accumulation_steps=50)
    expected = trajectory.reference(trajectory.build(), trajectory.sequences(), 1)
    check_gradient(first_gradient(trainer), expected.gradients[0])
    assert tiny.logs(trainer, "loss")[0] == pytest.approx(expected.losses[0], rel=1e-6)


@pytest.mark.parametrize("how", ["function", "override", "smoother"])
def test_sequence_normalization_needs_a_loss_of_tokens(tmp_path, how):
    given = {"compute_loss_func": lambda outputs, labels, num_items_in_batch: outputs["logits"].sum()}
    trainer = tiny.make(
        "plain", tmp_path, loss_normalization="sequence", cls=Mean if how == "override" else None,
        **given if how == "function" else {},
    )  # fmt: skip
    if how == "smoother":
        trainer.label_smoother = NewSmoother(epsilon=0.1)
    with pytest.raises(PackingError, match="loss_normalization='sequence' weighs every token"):
        trainer.train()


@pytest.mark.parametrize("loss_type", ["nll", "dft"])
def test_loss_types_of_trl(tmp_path, loss_type):
    model = trajectory.build()
    total, count = 0.0, 0
    for row in trajectory.sequences():
        log_p = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1].log_softmax(-1)
        labels = torch.tensor(row["labels"][1:])
        here = labels != -100
        picked = log_p[here].gather(1, labels[here, None])[:, 0]
        total = total - (picked * (picked.exp().detach() if loss_type == "dft" else 1.0)).sum()
        count += int(here.sum())
    (total / count).backward()
    trainer = tiny.make("sft", tmp_path, loss_type=loss_type, gradient_accumulation_steps=50)
    check_gradient(first_gradient(trainer), trajectory.flat_gradient(model), 2e-6)


# --- silence -------------------------------------------------------------------------------------------------------


def silent_and_not():
    """Three packs, the second without a target: it can only come packed already."""
    rows = pack_dataset(Dataset.from_list(tiny.words(8, 8, 8)), max_length=8).to_list()
    rows[1]["labels"] = [-100] * 8
    return Dataset.from_list(rows)


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("cls", ["ours", "override", "function", "smoother"])
def test_a_step_without_targets(tmp_path, kind, cls):
    given = {}
    if cls == "override":
        given["cls"] = Mean if kind == "plain" else MeanSFT
    if cls == "function":
        given["compute_loss_func"] = lambda outputs, labels, num_items_in_batch: torch.nn.functional.cross_entropy(
            outputs["logits"][0, :-1], labels[0, 1:]
        )
    record = trajectory.Record()
    trainer = tiny.make(
        kind,
        tmp_path,
        silent_and_not(),
        max_length=8,
        balance_ranks=False,
        callbacks=[record],
        learning_rate=0.0,
        **given,
    )
    if cls == "smoother":
        trainer.label_smoother = OldSmoother(epsilon=0.1)
    trainer.train()
    norms = [gradient.norm().item() for gradient in record.trajectory.gradients]
    assert all(map(math.isfinite, norms))
    assert sorted(norm == 0 for norm in norms) == [False, False, True]
    losses = tiny.logs(trainer, "loss")
    assert len(losses) == 2 and all(loss > 1 for loss in losses)
    assert tiny.logs(trainer, "train_loss") == [pytest.approx(sum(losses) / 2, rel=1e-6)]  # 7 targets each
    assert trainer.state.global_step == 3


def test_a_silent_micro_batch_in_a_step(tmp_path):
    trainer = tiny.make("plain", tmp_path, silent_and_not(), max_length=8, gradient_accumulation_steps=3)
    spoken = [row for row in silent_and_not().to_list() if max(row["labels"]) > 0]
    expected = trajectory.reference(trajectory.build(), spoken, 1)
    check_gradient(first_gradient(trainer), expected.gradients[0])


def test_a_stream_without_targets_ends_with_a_message(tmp_path):
    silent = [{"input_ids": [5, 6, 7], "labels": [-100, -100, -100]}]
    stream = IterableDataset.from_generator(lambda: iter(silent))
    with pytest.raises(PackingError, match="gave no sequence with a target on any rank"):
        tiny.make("plain", tmp_path, stream, max_steps=2).train()


# --- memory --------------------------------------------------------------------------------------------------------


def test_one_micro_batch_at_a_time_is_on_the_device(tmp_path):
    """All micro-batches of a step are counted first; they wait on the CPU and are moved one by one."""
    alive, most = weakref.WeakSet(), []

    class Watched(PackingTrainer):
        def _prepare_inputs(self, inputs):
            assert all(value.device.type == "cpu" for value in inputs.values() if torch.is_tensor(value))
            moved = {
                name: v.clone() if torch.is_tensor(v) else v for name, v in super()._prepare_inputs(inputs).items()
            }
            alive.add(moved["input_ids"])
            most.append(len(alive))
            return moved

    trainer = tiny.make(
        "plain", tmp_path, tiny.words(*[16] * 8), cls=Watched, max_length=16, gradient_accumulation_steps=8
    )
    trainer.train()
    assert len(most) == 8 and max(most) == 1


def test_trainers_do_not_replace_what_they_wrap(tmp_path):
    trainer = tiny.make("plain", tmp_path)
    trainer.train()
    assert "compute_loss" not in vars(trainer)
    assert trainer.loss_is_scaled_for_ga is None
    assert isinstance(trainer, Trainer)
