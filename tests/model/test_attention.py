"""packed_varlen inside real models: packed equals alone, unpacked equals sdpa, work done once a forward."""

import copy
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
)

import hf_packing.model.attention as attention
from hf_packing.errors import PackingError
from hf_packing.model.segments import PackedMask
from tests.model.tiny import SMALL, alone_logits, packed_batch, tiny_gpt2, tiny_llama, tiny_mistral


LENGTHS = (3, 1, 9, 5, 1, 20, 2, 41)


def gemma2(attention):
    torch.manual_seed(0)
    config = {**SMALL, "head_dim": 8, "sliding_window": 7, "attn_logit_softcapping": 2.0}
    return Gemma2ForCausalLM(Gemma2Config(**config, attn_implementation=attention))


def gpt_oss(attention):
    torch.manual_seed(0)
    config = {**SMALL, "head_dim": 8, "sliding_window": 7, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = GptOssForCausalLM(GptOssConfig(**config, attn_implementation=attention))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(1.0)  # of the size of a score, so that leaving them out shows
    return model


def llama4(attention):
    torch.manual_seed(0)
    config = {**SMALL, "head_dim": 8, "attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 64}
    return Llama4ForCausalLM(Llama4TextConfig(**config, attn_implementation=attention))


MODELS = {
    "grouped heads": tiny_llama,
    "sliding window": tiny_mistral,
    "scaled scores": tiny_gpt2,
    "soft caps": gemma2,
    "sinks": gpt_oss,
    "chunks": llama4,
}


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_packed_equals_alone_forward_and_backward(name, explicit):
    packed_model, plain_model = MODELS[name]("packed_varlen"), MODELS[name]("eager")
    batch = packed_batch(LENGTHS, explicit=explicit)
    packed = packed_model(**batch).logits[0]
    alone = alone_logits(plain_model, batch["input_ids"], LENGTHS)
    torch.testing.assert_close(packed, alone, atol=2e-6, rtol=1e-5)
    weights = torch.randn_like(packed)
    (packed * weights).sum().backward()
    (alone * weights).sum().backward()
    compared = 0
    for ours, theirs in zip(packed_model.parameters(), plain_model.parameters()):
        if theirs.grad is not None:
            scale = theirs.grad.abs().max().clamp_min(1e-3)
            assert (ours.grad - theirs.grad).abs().max() <= 2e-5 * scale
            compared += 1
    assert compared > 10


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), window=st.sampled_from([None, 1, 2, 5, 64]))
def test_any_lengths_and_window(lengths, window):
    model = tiny_llama("packed_varlen") if window is None else tiny_mistral("packed_varlen", window=window)
    plain = tiny_llama("eager") if window is None else tiny_mistral("eager", window=window)
    batch = packed_batch(lengths)
    with torch.no_grad():
        packed = model(**batch).logits[0]
        alone = alone_logits(plain, batch["input_ids"], lengths)
    torch.testing.assert_close(packed, alone, atol=2e-6, rtol=1e-5)


def test_rows_of_several_sequences():
    lengths = (3, 2, 4, 1, 2, 6)  # two rows of nine slots: 3 + 2 + 4 and 1 + 2 + 6
    for explicit in (False, True):
        batch = packed_batch(lengths, rows=2, explicit=explicit)
        with torch.no_grad():
            packed = tiny_llama("packed_varlen")(**batch).logits.flatten(0, 1)
            alone = alone_logits(tiny_llama("eager"), batch["input_ids"], lengths)
        torch.testing.assert_close(packed, alone, atol=2e-6, rtol=1e-5)


def padded_batch():
    ids = torch.randint(3, 128, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0  # padded on the left, as for generation
    return ids, mask


@pytest.mark.parametrize("build", [tiny_llama, tiny_mistral, tiny_gpt2])
def test_batches_that_are_not_packed_give_what_sdpa_gives(build):
    ours, sdpa = build("packed_varlen").eval(), build("sdpa").eval()
    ids, mask = padded_batch()
    checked = 0
    with torch.no_grad():
        for arguments in (
            {"input_ids": ids},
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
            {"input_ids": ids, "attention_mask": mask},
            {"input_ids": ids[:1, :1]},
        ):
            ours_out, sdpa_out = ours(**arguments).logits, sdpa(**arguments).logits
            real = arguments.get("attention_mask", torch.ones_like(arguments["input_ids"])).bool()
            assert torch.equal(ours_out[real], sdpa_out[real])
            checked += 1
        generate = {"max_new_tokens": 12, "do_sample": False, "attention_mask": mask}
        assert torch.equal(ours.generate(ids, **generate), sdpa.generate(ids, **generate))
        static = {**generate, "cache_implementation": "static"}
        assert torch.equal(ours.generate(ids, **static), sdpa.generate(ids, **static))
    assert checked == 4


def test_soft_caps_and_sinks_hold_in_batches_that_are_not_packed():
    ids, mask = padded_batch()
    for build in (gemma2, gpt_oss):
        ours, eager = build("packed_varlen").eval(), build("eager").eval()
        with torch.no_grad():
            for arguments in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": mask}):
                real = arguments.get("attention_mask", torch.ones_like(ids)).bool()
                ours_out, eager_out = ours(**arguments).logits, eager(**arguments).logits
                torch.testing.assert_close(ours_out[real], eager_out[real], atol=2e-6, rtol=1e-5)


def test_a_mask_of_ones_and_a_cache_do_not_switch_isolation_off():
    lengths = (3, 2, 6)
    model, plain = tiny_llama("packed_varlen"), tiny_llama("eager")
    batch = packed_batch(lengths)
    alone = alone_logits(plain, batch["input_ids"], lengths)
    for extra in ({"attention_mask": torch.ones_like(batch["input_ids"])}, {"use_cache": True}):
        torch.testing.assert_close(model(**{**batch, **extra}).logits[0], alone, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("build", [tiny_llama, tiny_mistral])
def test_no_dense_mask_and_boundaries_found_once_a_forward(build):
    model = build("packed_varlen", num_hidden_layers=4)
    found, finds = [], attention.PackedMask._all_starts
    with (
        mock.patch.object(attention, "sdpa_mask", side_effect=AssertionError("a dense mask was built")),
        mock.patch.object(PackedMask, "_all_starts", lambda self, *args: found.append(1) or finds(self, *args)),
    ):
        model(**packed_batch(LENGTHS)).logits.sum().backward()
    assert len(found) == 1


def test_a_single_windowed_sequence_builds_no_dense_mask_in_training():
    model, plain = tiny_mistral("packed_varlen"), tiny_mistral("eager")
    batch = packed_batch((50,))
    with mock.patch.object(attention, "sdpa_mask", side_effect=AssertionError("a dense mask was built")):
        out = model(**batch).logits
    torch.testing.assert_close(out, plain(**batch).logits, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("explicit", [True, False])
def test_gradient_checkpointing_changes_nothing(reentrant, explicit):
    plain, checkpointed = tiny_mistral("packed_varlen").train(), tiny_mistral("packed_varlen").train()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    batch = packed_batch((4, 3, 12), explicit=explicit)
    for model in (plain, checkpointed):
        model(**batch).logits.square().mean().backward()
    pairs = list(zip(plain.parameters(), checkpointed.parameters()))
    assert len(pairs) > 10
    for ours, theirs in pairs:
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-7, rtol=1e-6)


def test_half_precision_stays_close():
    lengths = (4, 9, 30)
    model, plain = tiny_llama("packed_varlen").bfloat16(), tiny_llama("eager")
    batch = packed_batch(lengths)
    with torch.no_grad():
        packed, alone = model(**batch).logits[0].float(), alone_logits(plain, batch["input_ids"], lengths)
    assert (packed - alone).norm() / alone.norm() < 2e-2


def test_autocast_runs_and_stays_close():
    lengths = (4, 9, 30)
    model = tiny_llama("packed_varlen")
    batch = packed_batch(lengths)
    with torch.no_grad():
        alone = alone_logits(model, batch["input_ids"], lengths)
        with torch.autocast("cpu", torch.bfloat16):
            packed = model(**batch).logits[0].float()
    assert (packed - alone).norm() / alone.norm() < 2e-2


def test_attention_dropout_drops_and_keeps_the_mean():
    heads = torch.randn(1, 2, 400, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(400).reshape(1, -1) % 200
    module = torch.nn.Module()
    ones = torch.ones_like(heads)
    torch.manual_seed(0)
    out, _ = attention.packed_varlen_attention(module, heads, heads, ones, None, dropout=0.5, position_ids=positions)
    assert out.std() > 0.01
    assert abs(float(out.mean()) - 1) < 0.02


def test_what_no_kernel_has_is_refused_by_name():
    heads = torch.randn(1, 2, 6, 8)
    module = torch.nn.Module()
    with pytest.raises(PackingError, match="packed_varlen has no 'position_bias'"):
        attention.packed_varlen_attention(module, heads, heads, heads, None, position_bias=torch.zeros(1, 2, 6, 6))
    offsets = torch.tensor([0, 2, 6], dtype=torch.int32)
    with pytest.raises(PackingError, match="cu_seq_lens_q and cu_seq_lens_k must be equal"):
        attention.packed_varlen_attention(
            module, heads, heads, heads, None, cu_seq_lens_q=offsets, cu_seq_lens_k=offsets - offsets, max_length_q=4
        )
    with pytest.raises(PackingError, match="runs from 0 to 5, but the batch has 6 tokens"):
        short = torch.tensor([0, 2, 5], dtype=torch.int32)
        attention.packed_varlen_attention(module, heads, heads, heads, None, cu_seq_lens_q=short, max_length_q=4)


def test_offsets_padded_to_a_fixed_count_give_the_same():
    lengths = (3, 2, 6)
    batch = packed_batch(lengths, explicit=True)
    fixed = torch.tensor([0, 3, 5, 11, 11, 11], dtype=torch.int32)
    model = tiny_llama("packed_varlen")
    padded = {**batch, "cu_seq_lens_q": fixed, "cu_seq_lens_k": fixed, "max_length_q": 11, "max_length_k": 11}
    torch.testing.assert_close(model(**padded).logits, model(**batch).logits)
    chunked = llama4("packed_varlen")
    torch.testing.assert_close(chunked(**padded).logits, chunked(**batch).logits)


@pytest.mark.parametrize(
    "build",
    [tiny_mistral, *(pytest.param(b, marks=pytest.mark.slow) for b in (tiny_llama, gemma2, gpt_oss))],
)
def test_compiled_in_few_graphs_and_equal(build):
    torch._dynamo.reset()
    model = build("packed_varlen").train()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(copy.deepcopy(model), backend=counter, fullgraph=build is not gpt_oss)
    generator = torch.Generator().manual_seed(0)
    for step in range(6):
        count = int(torch.randint(3, 9, (), generator=generator))
        lengths = [int(n) for n in torch.randint(2, 20, (count,), generator=generator)]
        batch = packed_batch(lengths, seed=step)
        for candidate in (model, compiled):
            candidate.zero_grad()
            candidate(**batch).logits.square().mean().backward()
        for ours, theirs in zip(model.parameters(), compiled.parameters()):
            torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)
    if build is not gpt_oss:  # its experts break graphs by themselves
        assert counter.frame_count <= 3
