"""Packed data goes both ways: ours into TRL's trainer and collator, TRL's into our collator."""

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from trl import pack_dataset as trl_pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_packing.data import PackingTransform, PaddingFreeCollator, pack_dataset, unpack


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=120,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            bos_token_id=0,
            eos_token_id=1,
        )
    )


@pytest.fixture
def tokenizer():
    vocabulary = {f"t{number}": number for number in range(120)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="t2"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="t0", eos_token="t1", pad_token="t3")


def mean_loss_alone(model, packed):
    """Mean over all targets, every sequence run alone."""
    total, targets = 0.0, 0
    for row in packed:
        at = 0
        for length in row["seq_lengths"]:
            ids = torch.tensor([row["input_ids"][at : at + length]])
            labels = torch.tensor([row["labels"][at : at + length]])
            with torch.no_grad():
                logits = model(input_ids=ids, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum")
            total, targets = total + float(loss), targets + int((labels[0, 1:] != -100).sum())
            at += length
    return total / targets


@pytest.mark.parametrize("how", ["pack_dataset", "PackingTransform"])
def test_our_packs_train_unchanged_in_trl(stored, model, tokenizer, tmp_path, how):
    if how == "pack_dataset":
        packed = pack_dataset(stored, 64, desc=None)
    else:
        transform = PackingTransform(64)
        packed = stored.map(transform, batched=True, batch_size=None, remove_columns=stored.column_names)
    expected = mean_loss_alone(model, packed)
    for collate, padding_free in ((PaddingFreeCollator(), False), (None, True)):
        args = SFTConfig(
            output_dir=str(tmp_path),
            packing=False,
            padding_free=padding_free,
            max_length=None,
            per_device_train_batch_size=len(packed),
            learning_rate=0.0,
            max_steps=1,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
        )
        trainer = SFTTrainer(model, args=args, train_dataset=packed, data_collator=collate, processing_class=tokenizer)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert losses and losses[0] == pytest.approx(expected, rel=1e-3)  # TRL logs four digits


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split"])
def test_trl_packs_collate_like_in_trl(stored, strategy):
    rows = [dict(row) for row in trl_pack_dataset(stored.select_columns(["input_ids", "labels"]), 48, strategy)]
    assert len(rows) > 20
    for start in range(0, len(rows), 8):
        some = rows[start : start + 8]
        ours = PaddingFreeCollator(boundaries="explicit")(some)
        theirs = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(some)
        assert set(ours) == set(theirs)
        for name, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert ours[name].dtype == value.dtype and torch.equal(ours[name], value), name
            else:
                assert ours[name] == value, name
        alone = [ids.tolist() for ids in unpack(ours["input_ids"], ours)]
        assert [len(ids) for ids in alone] == [length for row in some for length in row["seq_lengths"]]


def test_our_packs_collate_in_trl_like_in_ours(stored):
    rows = [dict(row) for row in pack_dataset(stored, 48, desc=None)]
    ours = PaddingFreeCollator()(rows)
    theirs = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    for name in ("input_ids", "position_ids", "labels"):
        assert torch.equal(ours[name], theirs[name]), name


def test_trl_packed_text_columns_and_pads(stored):
    """TRL packs the attention_mask along, zeros included; its pads are taken off inside each sequence."""
    dataset = Dataset.from_dict(
        {"input_ids": [[5, 6, 0], [7, 8], [9, 0, 0]], "attention_mask": [[1, 1, 0], [1, 1], [1, 0, 0]]}
    )
    row = trl_pack_dataset(dataset, 8, "bfd")[0]
    batch = PaddingFreeCollator()([row])
    assert sorted(ids.tolist() for ids in unpack(batch["input_ids"], batch)) == [[5, 6], [7, 8], [9]]
