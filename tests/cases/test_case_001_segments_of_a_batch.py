"""Boundaries: no head token without a segment, no pads as documents, no repeated offset (001, 007, 012, 014-019)."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_packing.data import PaddingFreeCollator
from hf_packing.data.boundaries import cu_seqlens_from_position_ids


@pytest.mark.parametrize(
    ("position_ids", "offsets"),
    [([5, 6, 7, 0, 1, 2], [0, 3, 6]), ([3, 4, 5, 7, 8], [0, 3, 5]), ([0, 1, 2, 5, 6, 0, 1], [0, 3, 5, 7])],
)
def test_case_001_a_row_that_begins_inside_a_document_keeps_its_head(position_ids, offsets):
    assert cu_seqlens_from_position_ids(torch.tensor([position_ids]))[0].tolist() == offsets
    row = {"input_ids": list(range(1, len(position_ids) + 1)), "position_ids": position_ids}
    batch = PaddingFreeCollator(boundaries="explicit")([row])
    assert batch["cu_seq_lens_q"].tolist() == offsets
    lengths = np.diff(offsets)
    assert batch["position_ids"].tolist() == [[place for length in lengths for place in range(length)]]


def test_case_007_rows_side_by_side_are_flattened_to_one():
    rows = [
        {"input_ids": [1, 2, 3, 4, 5], "position_ids": [0, 1, 2, 0, 1]},
        {"input_ids": [6, 7, 8, 9, 10], "position_ids": [0, 1, 0, 1, 2]},
    ]
    batch = PaddingFreeCollator(boundaries="explicit")(rows)
    assert batch["input_ids"].shape == (1, 10)
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 7, 10]


def test_case_012_offsets_go_out_together_with_positions():
    rows = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]
    batch = PaddingFreeCollator(boundaries="explicit")(rows)
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        assert batch[name].tolist() == [0, 3, 5] and batch[name].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 3
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1]]


def test_case_014_the_longest_segment_is_a_python_int():
    batch = PaddingFreeCollator(boundaries="explicit")([{"input_ids": [1] * 5, "seq_lengths": [3, 2]}])
    assert type(batch["max_length_q"]) is int and type(batch["max_length_k"]) is int
    assert type(cu_seqlens_from_position_ids(torch.tensor([[0, 1, 2, 0, 1]]))[1]) is int


def test_case_016_pads_are_one_segment():
    batch = PaddingFreeCollator(boundaries="explicit", pad_to_multiple_of=7)([{"input_ids": [1, 2, 3]}])
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 7]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, -100, -100, -100]]
    assert cu_seqlens_from_position_ids(batch["position_ids"])[0].tolist() == [0, 3, 7]


def test_case_019_no_repeated_offset_and_finite_gradients():
    collate = PaddingFreeCollator(boundaries="explicit")
    empty_between = [{"input_ids": [1, 2, 3]}, {"input_ids": []}, {"input_ids": [4, 5]}]
    assert collate(empty_between)["cu_seq_lens_q"].tolist() == [0, 3, 5]
    packed = [{"input_ids": [1, 2, 3, 4, 5], "seq_lengths": [3, 0, 2]}]
    assert collate(packed)["cu_seq_lens_q"].tolist() == [0, 3, 5]
    singles = collate([{"input_ids": [1]}, {"input_ids": [2]}, {"input_ids": [3]}])
    assert singles["cu_seq_lens_q"].tolist() == [0, 1, 2, 3] and singles["max_length_q"] == 1
    assert singles["labels"].tolist() == [[-100, -100, -100]]
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    )
    logits = model(input_ids=singles["input_ids"], position_ids=singles["position_ids"], use_cache=False).logits
    logits.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


def test_case_036_a_row_of_exactly_one_document():
    row = {"input_ids": [1, 2, 3, 4, 5]}
    for form in (row, {**row, "seq_lengths": [5]}, {**row, "position_ids": [0, 1, 2, 3, 4]}):
        batch = PaddingFreeCollator(boundaries="explicit")([form])
        assert batch["cu_seq_lens_q"].tolist() == [0, 5]
        assert batch["labels"].tolist() == [[-100, 2, 3, 4, 5]]
