"""inspect_model: what is read off a model before anything runs."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    RobertaConfig,
    RobertaForCausalLM,
)

from benchmarks.families import build
from hf_packing.model.support import inspect_model
from tests.model.flash_reference import flash_reference
from tests.model.tiny import SMALL, tiny_gpt2, tiny_llama, tiny_mistral


@pytest.mark.parametrize("model", [tiny_llama, tiny_gpt2, tiny_mistral])
def test_ordinary_models_read_positions(model):
    support = inspect_model(model("packed_varlen"))
    assert (support.boundaries, support.layout, support.kernel) == ("position_ids", "flat", "per_sequence_sdpa")
    assert not support.dense_mask and support.can_switch_attention and support.reasons == ()
    dense = inspect_model(model("sdpa"))
    assert (dense.layout, dense.kernel, dense.dense_mask) == ("rows", "sdpa", True)


@pytest.mark.parametrize("name", ["mamba", "jamba", "qwen3_next", "recurrent_gemma", "lfm2", "rwkv", "minimax"])
def test_state_is_found_in_the_modules(name):
    support = inspect_model(build(name, "eager"))
    assert support.carries_state and support.boundaries == "explicit"
    assert "carries a state" in support.reasons[0]


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gemma2", "bloom", "opt", "gpt_oss"])
def test_state_is_found_nowhere_else(name):
    assert not inspect_model(build(name, "eager")).carries_state


@pytest.mark.parametrize("name", ["opt", "biogpt", "xglm"])
def test_masks_without_positions_need_explicit_boundaries(name):
    support = inspect_model(build(name, "eager"))
    assert support.boundaries == "explicit"
    assert "builds its mask without position_ids" in support.reasons[0]


@pytest.mark.parametrize(
    ("name", "switchable"), [("llama", True), ("bloom", False), ("mpt", False), ("falcon", False)]
)
def test_only_models_with_an_exchangeable_attention_can_switch(name, switchable):
    assert inspect_model(build(name, "eager")).can_switch_attention is switchable


def test_positions_start_after_the_padding_index():
    config = RobertaConfig(**{**SMALL, "pad_token_id": 5}, is_decoder=True)
    assert inspect_model(RobertaForCausalLM(config)).position_ids_start == 6
    assert inspect_model(tiny_gpt2()).position_ids_start == 0


def test_positions_with_three_axes_are_named():
    vision = {"embed_dim": 16, "depth": 1, "num_heads": 2, "hidden_size": 32, "mlp_ratio": 2}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    config = Qwen2VLConfig(text_config={**SMALL, "rope_parameters": rope}, vision_config=vision)
    support = inspect_model(Qwen2VLForConditionalGeneration(config))
    assert support.multi_axis_positions and support.boundaries == "explicit"
    assert "several axes" in " ".join(support.reasons)


def test_dynamic_rope_and_chunks_under_flash_attention_limit_the_pack():
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    assert inspect_model(tiny_llama("sdpa", rope_parameters=dynamic)).max_pack_length == 512
    assert inspect_model(tiny_llama("sdpa")).max_pack_length is None
    with flash_reference():
        chunked = build("llama4_text", "flash_attention_2")
        chunked.config.attention_chunk_size = 64
        assert inspect_model(chunked).max_pack_length == 64
    assert inspect_model(build("llama4_text", "packed_varlen")).max_pack_length is None


def test_other_modules_get_the_most_careful_answer():
    support = inspect_model(torch.nn.Linear(2, 2))
    assert (support.boundaries, support.layout) == ("explicit", "rows")
    assert "holds no Transformers model" in support.reasons[0]


def test_inspecting_runs_nothing():
    model = AutoModelForCausalLM.from_config(tiny_llama().config)
    model.forward = None  # a call would fail; the signature of the class is not needed either
    model.register_forward_pre_hook(lambda *args: pytest.fail("the model was run"))
    del model.forward
    assert inspect_model(model).boundaries == "position_ids"
