"""What people see of a run besides its logs: the progress bar and the model card."""

from __future__ import annotations

import pytest
from datasets import Dataset
from transformers import ProgressCallback

from hf_packing import PackingSFTConfig, PackingSFTTrainer, PackingTrainer, PackingTrainingArguments
from tests.equivalence import trajectory as t


@pytest.fixture(params=["plain", "sft"])
def trainer(request, tmp_path):
    """A trainer with its progress bar on, of either kind."""
    rows = Dataset.from_list(t.sequences())
    common = t.settings(str(tmp_path), max_steps=2, max_length=32, disable_tqdm=False, per_device_train_batch_size=2)
    if request.param == "plain":
        return PackingTrainer(t.build(), PackingTrainingArguments(**common), train_dataset=rows)
    args = PackingSFTConfig(**common, packing=True)
    return PackingSFTTrainer(t.build(), args, train_dataset=rows, processing_class=t.tokenizer())


def test_progress_bar_shows_fill_and_speed(trainer, monkeypatch):
    (shown,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, ProgressCallback)]
    texts = []
    begin = shown.on_train_begin

    def keep_what_is_set(*args, **kwargs):
        begin(*args, **kwargs)
        monkeypatch.setattr(shown.training_bar, "set_postfix_str", texts.append)

    monkeypatch.setattr(shown, "on_train_begin", keep_what_is_set)
    trainer.train()
    assert len(texts) == 2
    assert all(text.startswith("fill ") and text.endswith("tokens/s") for text in texts)


def test_model_card_says_how_the_data_were_packed(trainer, tmp_path):
    trainer.train()
    trainer.create_model_card(model_name="tiny")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    plan = trainer.train_dataset.plan
    assert "## Packing" in card and "isolation proven" in card
    assert f"{plan.ledger.sequences_packed:,} sequences in {plan.num_packs:,} packs" in card
    assert f"{trainer.meter.num_tokens:,} real tokens" in card and "per_sequence_sdpa" in card
