"""Cases 012, 015, 026: explicit boundaries reach the kernel, under compile and checkpointing too."""

import copy
from itertools import pairwise

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from hf_packing.data.collator import PaddingFreeCollator
from hf_packing.model.isolation import check_isolation
from tests.model.flash_reference import flash_reference
from tests.model.tiny import packed_batch, tiny_llama


def test_case_012_offsets_arrive_where_positions_would_no_longer_be_read():
    batch = PaddingFreeCollator(boundaries="explicit")([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5] and batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == 3 and type(batch["max_length_k"]) is int
    with flash_reference() as recorder:
        model = tiny_llama("flash_attention_2")
        batch.pop("labels")
        model(**batch, use_cache=False)
    assert [offsets.tolist() for offsets in recorder.cu_seqlens] == [[0, 3, 5]] * 2
    assert recorder.max_lengths == [3, 3]


@pytest.mark.parametrize("attention", ["sdpa", "packed_varlen", "flash_attention_2"])
@pytest.mark.parametrize("boundaries", ["position_ids", "explicit"])
def test_case_012_guard_both_forms_isolate_with_the_installed_transformers(attention, boundaries):
    # Fails on the day a Transformers release stops reading one of them.
    with flash_reference():
        report = check_isolation(tiny_llama(attention), boundaries=boundaries)
    assert report.isolated and report.boundaries == boundaries


def batches(count, **options):
    """T in 96 .. 128, three to nine documents."""
    generator = torch.Generator().manual_seed(0)
    collate = PaddingFreeCollator(**options)
    for _ in range(count):
        total = int(torch.randint(96, 129, (), generator=generator))
        cuts = torch.randperm(total - 1, generator=generator)[: int(torch.randint(2, 9, (), generator=generator))] + 1
        edges = [0, *sorted(cuts.tolist()), total]
        rows = [{"input_ids": torch.arange(3, 3 + b - a)} for a, b in pairwise(edges)]
        batch = dict(collate(rows))
        del batch["labels"]
        yield {**batch, "use_cache": False}


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"boundaries": "explicit", "pad_to_multiple_of": 128, "max_sequences": 12}, 1),
        ({"boundaries": "position_ids"}, 2),
    ],
)
def test_case_015_a_bounded_number_of_compiles(options, most):
    torch._dynamo.reset()
    model = tiny_llama("packed_varlen")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(copy.deepcopy(model), backend=counter, fullgraph=True)
    checked = 0
    with torch.no_grad():
        for batch in batches(12, **options):
            torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits, atol=1e-6, rtol=1e-5)
            checked += 1
    assert checked == 12
    assert counter.frame_count <= most


@pytest.mark.parametrize("reentrant", [True, False])
def test_case_026_offsets_survive_gradient_checkpointing(reentrant):
    plain, checkpointed = tiny_llama("packed_varlen").train(), tiny_llama("packed_varlen").train()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    batch = packed_batch((4, 3), explicit=True)
    del batch["position_ids"]
    batch["position_ids"] = torch.arange(7).unsqueeze(0)  # only the offsets know where the second document starts
    for model in (plain, checkpointed):
        model(**batch).logits.square().mean().backward()
    pairs = list(zip(plain.parameters(), checkpointed.parameters()))
    assert len(pairs) > 10
    for ours, theirs in pairs:
        assert (ours.grad - theirs.grad).abs().max() <= 1e-6 * ours.grad.abs().max()
