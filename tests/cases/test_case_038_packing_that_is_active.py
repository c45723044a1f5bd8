"""Cases 038, 103, 104, 106: packing that was asked for takes place, or the run says why not."""

from __future__ import annotations

import pytest
from datasets import Dataset
from trl import SFTConfig

from hf_packing import PackingSFTTrainer
from hf_packing.errors import PackingError
from tests.equivalence import trajectory
from tests.train import tiny


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_case_038_a_padding_collator_beside_packing(tmp_path, kind):
    def pads(rows):
        raise AssertionError("never called")

    with pytest.raises(PackingError, match="data_collator=function was given although the batches are packed"):
        tiny.make(kind, tmp_path, data_collator=pads)


def test_case_038_a_collator_put_in_later_does_not_reach_the_batches(tmp_path):
    made = tiny.make("plain", tmp_path)
    made.data_collator = None
    batch = next(iter(made.get_train_dataloader()))
    assert batch["input_ids"].shape[0] == 1 and "attention_mask" not in batch


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_case_103_rows_after_packing_are_said_and_trained(tmp_path, capsys, kind):
    rows = tiny.words(*[20 + 7 * row % 25 for row in range(256)])
    made = tiny.make(kind, tmp_path, rows, max_length=512, max_steps=1)
    packs = -(-sum(len(row["input_ids"]) for row in rows) // 512)
    assert f"256 sequences -> {packs} packs of 512" in capsys.readouterr().out
    assert len(made.get_train_dataloader()) == packs < 20
    made.train()
    assert tiny.logs(made, "sequences_per_step")[0] > 10


def trained(tmp_path, **settings):
    config = SFTConfig(**trajectory.settings(str(tmp_path), max_steps=1, learning_rate=0.0, **settings))
    made = PackingSFTTrainer(
        trajectory.build(), config, train_dataset=Dataset.from_list(trajectory.sequences()),
        processing_class=trajectory.tokenizer(),
    )  # fmt: skip
    made.train()
    return made


@pytest.mark.parametrize("packing", [True, False])
def test_case_104_padding_free_with_the_defaults_of_trl(tmp_path, packing):
    """A length limit is no contradiction: sequences are cut to it before they are flattened."""
    made = trained(tmp_path, padding_free=True, packing=packing, per_device_train_batch_size=4)
    assert made.args.max_length == 1024
    batch = next(iter(made.get_train_dataloader()))
    assert batch["input_ids"].shape[0] == 1 and (batch["position_ids"] == 0).sum() > 1


def test_case_104_the_limit_is_kept(tmp_path):
    made = trained(tmp_path, padding_free=True, packing=False, max_length=9)
    assert max(len(made.train_dataset[i]["input_ids"]) for i in range(len(made.train_dataset))) == 9


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_case_106_packing_without_a_varlen_backend(tmp_path, attention):
    """On a CPU with sdpa or eager, packed or not: one loss."""
    total, targets = tiny.nll(trajectory.build(), trajectory.sequences())
    for keep in ("keep", "auto"):
        model = trajectory.build()
        model.set_attn_implementation(attention)
        made = tiny.make(
            "sft", tmp_path, model=model, attention=keep, gradient_accumulation_steps=50, learning_rate=0.0
        )
        made.train()
        assert tiny.logs(made, "loss")[0] == pytest.approx(total / targets, rel=1e-6)
        assert (model.config._attn_implementation == attention) == (keep == "keep")
