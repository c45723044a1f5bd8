"""Masks are packed with their tokens, and the end is the one the template writes (061, 064)."""

import pytest
from datasets import Dataset

from hf_packing.data import PackedStream, PaddingFreeCollator, pack_dataset


@pytest.mark.parametrize("name", ["assistant_masks", "completion_mask"])
def test_case_061_targets_are_where_the_mask_is_one(name):
    columns = {"input_ids": [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10]], name: [[0, 0, 1, 1, 0, 1], [0, 1, 1, 1]]}
    dataset = Dataset.from_dict(columns)
    row = pack_dataset(dataset, 16, desc=None)[0]
    assert row["labels"] == [-100, -100, 3, 4, -100, 6, -100, 8, 9, 10]
    assert sum(label != -100 for label in row["labels"]) == 6
    assert next(iter(PackedStream(list(dataset), 16)))["labels"].tolist() == row["labels"]
    for rows in ([row], list(dataset)):
        assert PaddingFreeCollator()(rows)["labels"].tolist() == [row["labels"]]


def test_case_061_the_first_token_is_never_a_target():
    dataset = Dataset.from_dict({"input_ids": [[1, 2], [3, 4]], "assistant_masks": [[1, 1], [1, 0]]})
    packed, plan = pack_dataset(dataset, 8, return_plan=True, desc=None)
    assert packed["labels"][:] == [[-100, 2]] and plan.ledger.sequences_dropped == 1


def test_case_064_the_end_the_template_writes_is_named_and_not_doubled(caplog):
    dataset = Dataset.from_dict({"input_ids": [[5, 6, 7], [8, 9, 4, 7], [4, 5]]})
    packed = pack_dataset(dataset, 16, ensure_eos=True, eos_token_id=(2, 7), desc=None)
    assert "67 % of the sequences end in token 7, not in the end token 2" in caplog.text
    sequences, at = [], 0
    for length in packed[0]["seq_lengths"]:
        sequences.append(packed[0]["input_ids"][at : at + length])
        at += length
    assert sorted(sequences) == [[4, 5, 2], [5, 6, 7], [8, 9, 4, 7]]
    caplog.clear()
    pack_dataset(dataset.select([0, 1]), 16, eos_token_id=(7, 2), desc=None)
    assert caplog.text == ""
