"""Facts beside a batch, and collators that add them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.data import FACTS_KEY, PaddingFreeCollator, unpack
from hf_packing.errors import PackingError
from hf_packing.train.batches import SLOTS_KEY, BatchFacts, PaddedCollator, TrainerCollator, filler_batch


PACKS = [
    {"input_ids": [1, 2, 3, 4, 5], "labels": [-100, 2, 3, -100, 5], "seq_lengths": [3, 2], "sequence_ids": [7, 9]},
    {"input_ids": [6, 7], "labels": [-100, 7], "seq_lengths": [2], "sequence_ids": [4]},
]


def collator(**given):
    settings = {"layout": "flat", "pad_to_multiple_of": None, **given}
    return TrainerCollator(PaddingFreeCollator(facts=True, **settings), capacity=8)


@pytest.mark.parametrize("layout", ["flat", "rows"])
@pytest.mark.parametrize("multiple", [None, 4])
def test_facts_of_packs(layout, multiple):
    batch = collator(layout=layout, pad_to_multiple_of=multiple)(PACKS)
    inputs, facts = BatchFacts.take_from(batch)
    assert FACTS_KEY not in inputs and SLOTS_KEY not in inputs
    assert facts.lengths.tolist() == [3, 2, 2]
    assert facts.sequence_ids.tolist() == [7, 9, 4]
    flat = inputs["input_ids"].reshape(-1)
    pieces = [flat[a : a + n].tolist() for a, n in zip(facts.starts.tolist(), facts.lengths.tolist())]
    assert pieces == [[1, 2, 3], [4, 5], [6, 7]]
    counts = facts.count(inputs["labels"], "token", True)
    assert (counts.targets, counts.tokens, counts.slots, counts.sequences, counts.packs) == (4, 7, 16, 3, 2)
    assert facts.count(inputs["labels"], "sequence", True).weight == 3


def test_a_pack_longer_than_the_capacity_stands_for_its_own_length():
    batch = collator()([{"input_ids": list(range(11))}])
    assert batch[SLOTS_KEY].tolist() == [1, 11]


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), multiple=st.sampled_from([None, 4]))
@settings(max_examples=40, deadline=None)
def test_padded_rows_are_taken_apart_again(lengths, multiple):
    rows = [{"input_ids": list(range(1, length + 1)), "sequence_ids": [n]} for n, length in enumerate(lengths)]
    batch = PaddedCollator(0, multiple)(rows)
    assert [ids.tolist() for ids in unpack(batch["input_ids"], batch)] == [row["input_ids"] for row in rows]
    inputs, facts = BatchFacts.take_from(batch)
    assert facts.sequence_ids.tolist() == list(range(len(rows)))
    assert inputs["attention_mask"].sum(1).tolist() == lengths
    assert facts.count(inputs["labels"], "token", True).targets == sum(lengths) - len(lengths)


def test_padded_rows_with_masks_pads_and_tensors():
    rows = [
        {"input_ids": torch.tensor([5, 6, 7, 0]), "attention_mask": torch.tensor([1, 1, 1, 0])},
        {"input_ids": [8, 9, 4], "completion_mask": [0, 0, 1]},
    ]
    batch = PaddedCollator(0)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 4]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [-100, -100, 4]]
    assert PaddedCollator(0, shifts=False)(rows)["labels"][0].tolist() == [5, 6, 7]


@pytest.mark.parametrize("side", ["left", "right"])
def test_facts_of_a_foreign_batch_are_read_off_its_mask(side):
    rows = torch.tensor([[5, 6, 7, 8], [1, 2, 0, 0]])
    rows = rows if side == "right" else rows.flip(1)
    mask = (rows != 0).long()
    _, facts = BatchFacts.take_from({"input_ids": rows, "attention_mask": mask})
    assert facts.lengths.tolist() == [4, 2]
    assert facts.starts.tolist() == ([0, 4] if side == "right" else [0, 6])
    assert (facts.packs, facts.slots) == (2, 8)
    _, facts = BatchFacts.take_from({"input_ids": rows})
    assert facts.lengths.tolist() == [4, 4]


def test_columns_the_model_does_not_take_are_left_out():
    seen = []

    def foreign(rows):
        seen.append([sorted(row) for row in rows])
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]} | {"extra": 1}

    rows = [{"input_ids": [1, 2], "labels": [1, 2], "note": "x", "token_type_ids": [0, 0]}]
    keep = frozenset({"input_ids", "labels", "token_type_ids"})
    batch = TrainerCollator(foreign, keep=keep, foreign=True)(rows)
    assert seen == [[["input_ids", "labels", "token_type_ids"]]]
    assert sorted(batch) == ["input_ids", "labels", "token_type_ids"]
    rows[0].pop("note")
    assert "extra" in TrainerCollator(foreign, foreign=True)(rows)


def test_a_collator_without_labels_is_named():
    with pytest.raises(PackingError, match="The data collator gave input_ids, but no 'labels'"):
        TrainerCollator(lambda rows: {"input_ids": torch.tensor([[1]])})([{"input_ids": [1]}])


def test_filler_counts_for_nothing():
    inputs, facts = BatchFacts.take_from(filler_batch(pad_token_id=3, position_ids_start=2))
    counts = facts.count(inputs["labels"], "sequence", True)
    assert (counts.targets, counts.weight, counts.tokens, counts.slots, counts.sequences) == (0, 0, 0, 0, 0)
    assert inputs["position_ids"].tolist() == [[2, 3]]
