"""Cases 001, 007, 014, 015 (offsets): boundaries read off position_ids, as every attention must read them."""

import pytest
import torch

from hf_packing.data.boundaries import cu_seqlens_from_position_ids
from hf_packing.model.attention import packed_varlen_attention
from hf_packing.model.segments import segments_from_positions
from tests.model.tiny import alone_logits, packed_batch, tiny_llama


@pytest.mark.parametrize(
    ("positions", "offsets"),
    [
        ([[5, 6, 7, 0, 1, 2]], [0, 3, 6]),
        ([[3, 4, 5, 7, 8]], [0, 3, 5]),
        ([[0, 1, 2, 5, 6, 0, 1]], [0, 3, 5, 7]),
    ],
)
def test_case_001_leading_tokens_are_in_a_segment(positions, offsets):
    given = torch.tensor(positions)
    assert cu_seqlens_from_position_ids(given)[0].tolist() == offsets
    segments = segments_from_positions(given, tuple(given.shape))
    assert segments is not None and segments.cu_seqlens.tolist() == offsets


@pytest.mark.parametrize("positions", [[[5, 6, 7, 0, 1, 2]], [[3, 4, 5, 7, 8]], [[0, 1, 2, 5, 6, 0, 1]]])
def test_case_001_packed_varlen_agrees_with_sdpa(positions):
    given = torch.tensor(positions)
    ids = torch.randint(3, 100, given.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours = tiny_llama("packed_varlen")(input_ids=ids, position_ids=given, use_cache=False).logits
        sdpa = tiny_llama("sdpa")(input_ids=ids, position_ids=given, use_cache=False).logits
    torch.testing.assert_close(ours, sdpa, atol=2e-6, rtol=1e-5)


def test_case_007_stacked_packed_rows_are_isolated():
    lengths = (3, 2, 2, 3)
    batch = packed_batch(lengths, rows=2)
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]]
    assert cu_seqlens_from_position_ids(batch["position_ids"])[0].tolist() == [0, 3, 5, 7, 10]
    with torch.no_grad():
        packed = tiny_llama("packed_varlen")(**batch).logits.flatten(0, 1)
        alone = alone_logits(tiny_llama("sdpa"), batch["input_ids"], lengths)
    torch.testing.assert_close(packed, alone, atol=2e-6, rtol=1e-5)


def test_case_014_the_longest_segment_is_a_python_int():
    positions = torch.tensor([[0, 1, 2, 0, 1]])
    assert type(cu_seqlens_from_position_ids(positions)[1]) is int
    segments = segments_from_positions(positions, (1, 5))
    assert segments is not None and type(segments.longest) is int and segments.longest == 3


def test_case_014_a_tensor_for_the_longest_segment_is_taken_too():
    heads = torch.randn(1, 2, 5, 8)
    module = torch.nn.Module()
    offsets = torch.tensor([0, 3, 5], dtype=torch.int32)
    given = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
    as_tensor, _ = packed_varlen_attention(module, heads, heads, heads, None, **given, max_length_q=torch.tensor(3))
    as_int, _ = packed_varlen_attention(module, heads, heads, heads, None, **given, max_length_q=3)
    assert torch.equal(as_tensor, as_int)
