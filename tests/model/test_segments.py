"""Segments and the promise that layers share."""

import pytest
import torch

from hf_packing.errors import PackingError
from hf_packing.model import segments as module
from hf_packing.model.segments import Segments, explicit_segments, segments_from_positions, segments_from_starts


def test_rows_start_segments_and_inner_starts_cut_them():
    starts = torch.tensor([[False, False, True, False], [False, True, False, False]])
    found = segments_from_starts(starts)
    assert found.cu_seqlens.tolist() == [0, 2, 4, 5, 8]
    assert found.cu_seqlens.dtype == torch.int32
    assert found.longest == 3
    assert found.lengths == (2, 2, 1, 3)
    assert found.index.tolist() == [0, 0, 1, 1, 2, 3, 3, 3]
    assert not found.row_starts_only
    assert segments_from_starts(torch.zeros(2, 4, dtype=torch.bool)).row_starts_only


def test_repeated_offsets_at_the_end_are_no_segments():
    found = Segments(torch.tensor([0, 3, 5, 5, 5], dtype=torch.int32), 5)
    assert found.lengths == (3, 2)
    assert found.index.tolist() == [0, 0, 0, 1, 1]


def test_positions_are_read_once_and_again_after_a_write():
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    first = segments_from_positions(positions, (1, 5))
    assert first is not None and first.lengths == (3, 2)
    assert segments_from_positions(positions, (1, 5)) is first
    positions[0, 2] = 0
    again = segments_from_positions(positions, (1, 5))
    assert again is not None and again.lengths == (2, 1, 2)


def test_positions_with_several_axes_say_nothing():
    assert segments_from_positions(torch.zeros(3, 1, 5, dtype=torch.long), (1, 5)) is None
    assert segments_from_positions(None, (1, 5)) is None


def test_offsets_must_cover_the_batch():
    with pytest.raises(PackingError, match="runs from 1 to 5, but the batch has 5 tokens"):
        explicit_segments({"cu_seq_lens_q": torch.tensor([1, 5], dtype=torch.int32), "max_length_q": 4}, 5)


def test_the_memo_lets_go_of_dead_tensors():
    memo = module._Memo()
    tensor = torch.zeros(3)
    assert memo.get(tensor, None, lambda: 1) == 1
    assert memo.get(tensor, None, lambda: 2) == 1
    assert memo.get(tensor, "other", lambda: 3) == 3
    del tensor
    other = torch.zeros(3)
    assert memo.get(other, None, lambda: 4) == 4
    assert len(memo._entries) == 1
