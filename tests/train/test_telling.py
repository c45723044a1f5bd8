"""What a run tells: lines at the start, alarms, numbers each logging step."""

from __future__ import annotations

import re

import pytest
from datasets import Dataset

from hf_packing.train import telling
from tests.equivalence import trajectory
from tests.train import tiny


EACH_STEP = {
    "fill", "tokens_per_second", "tokens_per_second_per_device", "sequences_per_step", "packs_per_step", "num_tokens",
    "num_sequences", "tokens_cut", "attention", "loss",
}  # fmt: skip


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_numbers_of_every_logging_step(tmp_path, kind):
    rows = tiny.words(10, 6, 9, 7, 20)
    made = tiny.make(kind, tmp_path, rows, max_length=16, per_device_train_batch_size=2, num_train_epochs=2)
    made.train()
    steps = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(steps) == 4
    for entry in steps:
        assert entry.keys() >= EACH_STEP | ({"mean_token_accuracy", "entropy"} if kind == "sft" else set())
        assert entry["tokens_cut"] == 4
        assert entry["attention"] == made.batch_form.kernel
        assert entry["tokens_per_second"] > 0
    full = next(entry for entry in steps if entry["packs_per_step"] == 2)
    assert full["fill"] == 1.0
    assert {entry["packs_per_step"] for entry in steps} == {2, 1}


def test_fill_is_real_tokens_over_nominal(tmp_path):
    """Two packs of 16 slots hold 12 and 9 tokens; trailing pads are not counted as tokens."""
    made = tiny.make(
        "plain", tmp_path, tiny.words(12, 9), max_length=16, per_device_train_batch_size=2, pad_to_multiple_of=8
    )
    made.train()
    assert tiny.logs(made, "fill") == [round(21 / 32, 4)]


def test_text_is_kept_from_a_tracker_of_numbers(tmp_path):
    made = tiny.make("plain", tmp_path)
    made.args.report_to = ["tensorboard"]
    made.train()
    assert tiny.logs(made, "attention") == [] and tiny.logs(made, "fill")


def test_tokens_cut_of_a_stream(tmp_path):
    stream = Dataset.from_list(tiny.words(20, 10, 30, 16)).to_iterable_dataset()
    made = tiny.make("plain", tmp_path, stream, max_length=16, max_steps=4, overflow="truncate")
    made.train()
    assert tiny.logs(made, "tokens_cut")[-1] == 4 + 14


@pytest.mark.parametrize("match", [False, True])
def test_meaning_of_a_step_is_said_and_can_be_kept(tmp_path, capsys, match):
    """Packs of four sequences: 8 packs a step would be 32 sequences, 2 packs are 8 again."""
    rows = tiny.words(*[4] * 64)
    made = tiny.make(
        "plain", tmp_path, rows, max_length=16, gradient_accumulation_steps=8, match_sequences_per_step=match
    )
    said = capsys.readouterr().out
    packs = 2 if match else 8
    assert f"an optimizer step sees {packs} packs = about {packs * 4} sequences, {packs * 16} tokens" in said
    assert "unpacked it would see 8 sequences, 32 tokens" in said
    assert ("match_sequences_per_step=True keeps them alike" in said) == (not match)
    assert made.args.gradient_accumulation_steps == packs
    made.train()
    assert set(tiny.logs(made, "sequences_per_step")) == {packs * 4}


def test_what_cannot_be_matched_is_said(tmp_path, capsys):
    tiny.make(
        "plain",
        tmp_path,
        tiny.words(*[4] * 32),
        max_length=16,
        per_device_train_batch_size=4,
        match_sequences_per_step=True,
    )
    assert "lower per_device_train_batch_size to come closer" in capsys.readouterr().out
    tiny.make(
        "plain", tmp_path, Dataset.from_list(tiny.words(4)).to_iterable_dataset(), max_steps=1,
        match_sequences_per_step=True,
    )  # fmt: skip
    assert "match_sequences_per_step has no effect" in capsys.readouterr().out


def test_alarm_when_packs_are_planned_empty(tmp_path, capsys):
    tiny.make("plain", tmp_path, tiny.words(9, 9, 9), max_length=16)
    assert re.search(
        r"WARNING: 56\.\d% of the planned slots hold real tokens, below min_fill=97%", capsys.readouterr().out
    )
    tiny.make("plain", tmp_path, tiny.words(9, 9, 9), max_length=16, min_fill=0.5)
    assert "WARNING" not in capsys.readouterr().out


def test_alarm_while_a_stream_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(telling, "_PACKS_BEFORE_ALARM", 3)
    stream = Dataset.from_list(tiny.words(9, 9, 9, 9)).to_iterable_dataset()
    tiny.make("plain", tmp_path, stream, max_length=16, max_steps=4).train()
    said = capsys.readouterr().out
    assert said.count("of the slots held real tokens so far, below min_fill=97%") == 1


def test_rows_before_and_after_packing_are_said(tmp_path, capsys):
    tiny.make("plain", tmp_path, tiny.words(10, 6, 9, 7, 20), max_length=16)
    said = capsys.readouterr().out
    assert "train: 5 sequences -> 3 packs of 16 (fill 100.00%" in said
    assert "4 tokens cut from 1 sequences" in said


def test_the_proof_is_said(tmp_path, capsys):
    tiny.make("plain", tmp_path).train()
    assert re.search(r"isolation proven: largest leak \S+, attention \S+", capsys.readouterr().out)


def test_logged_losses_are_means_over_their_window(tmp_path):
    """Weighted by targets over two steps each; train_loss over the run, its odd last step too."""
    rows = tiny.words(16, 5, 11, 4, 8)
    made = tiny.make(
        "plain", tmp_path, rows, max_length=16, max_sequences_per_pack=1, logging_steps=2, learning_rate=0.0
    )
    order = [index for batch in made.get_train_dataloader().batch_sampler for index in batch]
    output = made.train()
    packs = [{k: v.tolist() for k, v in made.train_dataset[index].items()} for index in order]
    for window, logged in zip((packs[:2], packs[2:4]), tiny.logs(made, "loss")):
        total, targets = tiny.nll(trajectory.build(), window)
        assert logged == pytest.approx(total / targets, rel=1e-6)
    total, targets = tiny.nll(trajectory.build(), packs)
    assert output.training_loss == pytest.approx(total / targets, rel=1e-6)
    assert output.metrics["train_loss"] == output.training_loss
