"""Rows into batches: packed rows keep their inner starts, forms do not matter, pads go (029, 031, 034, 037, 039)."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers.trainer_utils import RemoveColumnsCollator

from hf_packing.data import PaddingFreeCollator


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
