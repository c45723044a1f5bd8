"""Rows into batches: packed rows keep their inner starts, forms do not matter, pads go (029, 031, 034, 037, 039)."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import RemoveColumnsCollator

from hf_packing.data import PackedDataset, PackedStream, PaddingFreeCollator, plan_dataset


def test_case_029_packed_rows_keep_their_inner_starts():
    rows = [
        {"input_ids": [1, 2, 3, 4, 5], "position_ids": [0, 1, 2, 0, 1]},
        {"input_ids": [6, 7, 8, 9], "seq_lengths": [2, 2]},
    ]
    batch = PaddingFreeCollator(boundaries="explicit")(rows)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 0, 1]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 7, 9]
    assert [at for at, label in enumerate(batch["labels"][0].tolist()) if label == -100] == [0, 3, 5, 7]


def test_case_031_tensors_and_arrays():
    lists = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6]}]
    expected = PaddingFreeCollator()(lists)
    forms = {
        "tensors": [{"input_ids": torch.tensor(row["input_ids"])} for row in lists],
        "tensors [1, T]": [{"input_ids": torch.tensor([row["input_ids"]])} for row in lists],
        "numpy int32": [{"input_ids": np.array(row["input_ids"], dtype=np.int32)} for row in lists],
        "torch format": list(Dataset.from_list(lists).with_format("torch")),
        "numpy format": list(Dataset.from_list(lists).with_format("numpy")),
    }
    for form, rows in forms.items():
        batch = PaddingFreeCollator()(rows)
        for name in expected:
            assert torch.equal(batch[name], expected[name]) and batch[name].dtype == torch.int64, (form, name)


def test_case_034_the_last_token_of_a_document_predicts_nothing():
    rows = [{"input_ids": [7, 8, 9, 10]}, {"input_ids": [4, 5, 6]}, {"input_ids": [11]}]
    labels = PaddingFreeCollator()(rows)["labels"]
    assert labels.tolist() == [[-100, 8, 9, 10, -100, 5, 6, -100]]
    assert int((labels[:, 1:] != -100).sum()) == 5


@pytest.mark.parametrize("side", ["right", "left"])
def test_case_037_pads_of_the_tokenizer_are_taken_off(side):
    rows = [
        {"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0]},
        {"input_ids": [7, 8, 9, 0], "attention_mask": [1, 1, 1, 0]},
    ]
    if side == "left":
        rows = [
            {"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1]},
            {"input_ids": [0, 7, 8, 9], "attention_mask": [0, 1, 1, 1]},
        ]
    batch = PaddingFreeCollator(boundaries="explicit")(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 2, 5]
    assert batch["labels"].tolist() == [[-100, 6, -100, 8, 9]]


def test_case_039_wrapped_by_the_trainers_column_remover():
    wrapped = RemoveColumnsCollator(
        data_collator=PaddingFreeCollator(), signature_columns=["input_ids", "labels", "position_ids"]
    )
    rows = [{"input_ids": [1, 2, 3], "source": "web"}, {"input_ids": [4, 5], "source": "books"}]
    batch = wrapped(rows)
    assert sorted(batch) == ["input_ids", "labels", "position_ids"]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1]]


@pytest.mark.parametrize("kind", ["plain stream", "PackedStream", "PackedDataset"])
def test_case_039_in_a_plain_trainer_that_removes_columns(kind, tmp_path):
    """Rows of packs come through with their seq_lengths, which Trainer's remover would take from a dict."""
    rows = Dataset.from_list([{"input_ids": list(range(1, 3 + n % 5)), "source": "web"} for n in range(24)])
    datasets = {
        "plain stream": rows.to_iterable_dataset(),
        "PackedStream": PackedStream(rows.to_iterable_dataset(), 12, buffer_size=4),
        "PackedDataset": PackedDataset(rows, plan_dataset(rows, 12)),
    }
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    args = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[]
    )
    assert args.remove_unused_columns
    trainer = Trainer(model, args=args, train_dataset=datasets[kind], data_collator=PaddingFreeCollator())
    batch = next(iter(trainer.get_train_dataloader()))
    assert sorted(batch) == ["input_ids", "labels", "position_ids"]
    # Every sequence counts up from 1, so its positions are its ids less 1 wherever the boundaries are right.
    assert batch["position_ids"].tolist() == (batch["input_ids"] - 1).tolist()
    assert int((batch["position_ids"] == 0).sum()) >= (2 if kind == "plain stream" else 4)
