"""Cases 004, 005, 023: a mask of ones beside restarted positions, and decisions made on the attention that runs."""

import logging

import pytest
import torch

from hf_packing.model.isolation import check_isolation
from hf_packing.model.support import inspect_model
from tests.model.flash_reference import flash_reference
from tests.model.tiny import alone_logits, packed_batch, tiny_llama


LENGTHS = (3, 2)


def with_mask(mask):
    return {**packed_batch(LENGTHS), "attention_mask": torch.tensor([mask])}


def test_case_004_packed_varlen_is_not_switched_off_by_a_mask_of_ones():
    model = tiny_llama("packed_varlen")
    batch = with_mask([1] * 5)
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][0, :3] += 1
    with torch.no_grad():
        assert torch.equal(model(**batch).logits[0, 3:], model(**changed).logits[0, 3:])
        assert not torch.equal(model(**batch).logits[0, :3], model(**changed).logits[0, :3])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_case_004_elsewhere_the_check_reports_it(attention):
    report = check_isolation(tiny_llama(attention), batch=with_mask([1] * 5))
    assert not report.isolated and report.leak > 0.01
    assert "packed_varlen" in report.advice
    last = check_isolation(tiny_llama("packed_varlen"), batch=with_mask([1] * 5))
    assert last.isolated


def test_case_005_a_mask_on_flash_attention_is_reported_and_our_batch_has_none():
    with flash_reference() as recorder:
        model = tiny_llama("flash_attention_2")
        assert check_isolation(model).isolated
        # The installed library drops a mask of ones here; one with pads in it sends the row to the unpadding branch,
        # which knows nothing of positions.
        assert check_isolation(model, batch=with_mask([1] * 5)).isolated
        padded = {**packed_batch((3, 4)), "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0, 0]])}
        assert not check_isolation(model, batch=padded).isolated
        recorder.cu_seqlens.clear()
        batch = packed_batch(LENGTHS)
        with torch.no_grad():
            packed = model(**batch).logits[0]
            offsets = [given.tolist() for given in recorder.cu_seqlens]
            alone = alone_logits(model, batch["input_ids"], LENGTHS)
    assert offsets == [[0, 3, 5]] * 2  # one call a layer
    torch.testing.assert_close(packed, alone, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flash_attention_2", "packed_varlen"])
def test_case_023_the_decision_follows_the_loaded_models_attention(attention, caplog):
    with flash_reference(), caplog.at_level(logging.WARNING, logger="hf_packing"):
        model = tiny_llama(attention)
        support = inspect_model(model)
        assert support.attention == attention
        assert support.dense_mask is (attention in ("eager", "sdpa"))
        assert check_isolation(model).isolated
    assert not caplog.records


def test_case_023_names_of_hub_kernels_are_no_dense_masks():
    model = tiny_llama("sdpa")
    for name in ("flash_attention_3", "kernels-community/flash-attn2", "flex_attention"):
        model.config._attn_implementation_internal = name
        support = inspect_model(model)
        assert support.attention == name and not support.dense_mask and support.layout == "flat"


def test_case_023_a_fallback_at_load_time_is_seen():
    model = tiny_llama("packed_varlen")
    assert inspect_model(model).kernel == "per_sequence_sdpa"
    model.set_attn_implementation("eager")
    assert inspect_model(model).attention == "eager" and inspect_model(model).dense_mask
