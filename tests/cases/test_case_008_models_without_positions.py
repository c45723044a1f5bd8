"""Cases 008, 010, 017, 022, 025: models that lose the boundaries on the way are named, never trained on silently."""

import pytest
import torch
from peft import PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from benchmarks.families import build
from hf_packing.errors import ContaminationError
from hf_packing.model.isolation import check_isolation
from hf_packing.model.support import inspect_model
from tests.model.tiny import SMALL, alone_logits, packed_batch, tiny_llama


@pytest.mark.parametrize("name", ["opt", "xglm", "biogpt", "bloom", "mpt"])
def test_case_008_models_that_never_look_at_positions_are_refused_by_name(name):
    report = check_isolation(build(name, "eager"))
    assert not report.isolated and report.leak > 1e-3
    with pytest.raises(ContaminationError, match="builds its mask without position_ids"):
        check_isolation(build(name, "eager"), raise_on_leak=True)


@pytest.mark.parametrize("name", ["opt", "biogpt"])
def test_case_008_packed_varlen_rescues_those_whose_attention_can_be_replaced(name):
    lengths = (4, 3)
    batch = packed_batch(lengths, explicit=True)
    with torch.no_grad():
        packed = build(name, "packed_varlen").eval()(**batch).logits[0]
        alone = alone_logits(build(name, "eager").eval(), batch["input_ids"], lengths)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-4)
    assert check_isolation(build(name, "packed_varlen")).isolated


STATEFUL = (
    "mamba",
    "mamba2",
    "bamba",
    "granitemoehybrid",
    "falcon_h1",
    "qwen3_next",
    "lfm2",
    "recurrent_gemma",
    "jamba",
)


@pytest.mark.parametrize("name", STATEFUL)
def test_case_010_state_across_documents_is_refused_with_what_is_missing(name):
    model = build(name, "eager")
    assert inspect_model(model).carries_state
    with pytest.raises(ContaminationError, match=r"(?s)carries a state.*Install the kernels.*group"):
        check_isolation(model, raise_on_leak=True)


def test_case_017_three_axis_positions_need_explicit_boundaries():
    vision = {"embed_dim": 16, "depth": 1, "num_heads": 2, "hidden_size": 32, "mlp_ratio": 2}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    config = Qwen2VLConfig(text_config={**SMALL, "rope_parameters": rope}, vision_config=vision)
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config).eval()
    model.set_attn_implementation({"text_config": "packed_varlen"})
    assert inspect_model(model).multi_axis_positions
    # Two samples of 4 patches and 6 text tokens; the patches' axes repeat and jump, as those of a 2 x 2 image do.
    time_axis = [0, 0, 0, 0, 2, 3, 4, 5, 6, 7]
    rows = [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]
    columns = [0, 1, 0, 1, 2, 3, 4, 5, 6, 7]
    one = torch.tensor([time_axis, rows, columns]).unsqueeze(1)
    batch = packed_batch((10, 10), explicit=True)
    assert batch["cu_seq_lens_q"].tolist() == [0, 10, 20]
    batch["position_ids"] = torch.cat([one, one], dim=2)
    with torch.no_grad():
        packed = model(**batch).logits[0]
        alone = [
            model(input_ids=ids, position_ids=one, use_cache=False).logits[0]
            for ids in batch["input_ids"].split(10, dim=1)
        ]
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-4)


class Forgetful(torch.nn.Module):
    """Takes everything and hands on only what a plain language model needs."""

    def __init__(self, attention):
        super().__init__()
        self.inner = tiny_llama(attention)

    def forward(self, input_ids, labels=None, **ignored):
        return self.inner(input_ids=input_ids, labels=labels, use_cache=False)


@pytest.mark.parametrize("attention", ["sdpa", "packed_varlen"])
def test_case_022_arguments_swallowed_by_a_wrapper_are_noticed(attention):
    for boundaries in ("auto", "explicit"):
        report = check_isolation(Forgetful(attention), boundaries=boundaries)
        assert not report.isolated and report.leak > 1e-3
    with pytest.raises(ContaminationError, match="Sequences leak into each other"):
        check_isolation(Forgetful(attention), raise_on_leak=True)


@pytest.mark.parametrize("config", [PromptTuningConfig, PrefixTuningConfig])
def test_case_025_virtual_tokens_throw_the_positions_away(config):
    model = get_peft_model(tiny_llama("packed_varlen"), config(task_type="CAUSAL_LM", num_virtual_tokens=3))
    assert inspect_model(model).drops_positions is not None
    with pytest.raises(ContaminationError, match="virtual tokens before each row and drops position_ids: use LoRA"):
        check_isolation(model, raise_on_leak=True)
