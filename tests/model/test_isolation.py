"""check_isolation: right verdicts on wrapped, quiet, half-precision and tampered models, and no trace left."""

import random
import time

import numpy as np
import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import OPTConfig, OPTForCausalLM, Phi3Config, Phi3ForCausalLM, PhimoeConfig, PhimoeForCausalLM

from hf_packing.errors import ContaminationError
from hf_packing.model.isolation import check_isolation
from hf_packing.model.quiet import quiet
from hf_packing.model.support import inspect_model
from tests.model.tiny import SMALL, packed_batch, tiny_gpt2, tiny_llama, tiny_mistral


def leaky(model, strength):
    """The model with a little of the first token's hidden state added to every token: a leak of a chosen size."""

    def add(module, args, output):
        hidden = output[0] if isinstance(output, tuple) else output
        changed = hidden + strength * hidden[:, :1]
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    model.model.layers[0].register_forward_hook(add)
    return model


@pytest.mark.parametrize("layout", ["flat", "rows"])
@pytest.mark.parametrize("attention", ["eager", "sdpa", "packed_varlen"])
@pytest.mark.parametrize("build", [tiny_llama, tiny_gpt2, tiny_mistral])
def test_right_models_are_isolated(build, attention, layout):
    report = check_isolation(build(attention), layout=layout)
    assert report.isolated and report.boundaries == "position_ids"
    assert report.leak == 0.0
    assert report.gradient_leak == 0.0
    assert 0 < report.mismatch < 1e-6
    assert "Nothing leaks" in report.advice


@pytest.mark.parametrize("strength", [1.0, 1e-2, 1e-3])
def test_leaks_down_to_small_ones_are_found(strength):
    report = check_isolation(leaky(tiny_llama("packed_varlen"), strength))
    assert not report.isolated and report.boundaries is None
    assert report.leak > report.leak_bound
    assert report.gradient_leak > report.leak_bound
    assert "Sequences leak into each other" in report.advice
    with pytest.raises(ContaminationError, match="Sequences leak into each other"):
        check_isolation(leaky(tiny_llama("packed_varlen"), strength), raise_on_leak=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ["sdpa", "packed_varlen"])
def test_half_precision_passes_and_still_sees_a_real_leak(dtype, attention):
    report = check_isolation(tiny_llama(attention, num_hidden_layers=12).to(dtype))
    assert report.isolated and report.precision == str(dtype).removeprefix("torch.")
    assert report.mismatch > 1e-4
    found = check_isolation(leaky(tiny_llama(attention, num_hidden_layers=12).to(dtype), 0.2))
    assert not found.isolated and found.leak > 2 * found.leak_bound


def test_autocast_is_seen():
    model = tiny_llama("sdpa")
    with torch.autocast("cpu", torch.bfloat16):
        report = check_isolation(model)
    assert report.isolated and report.precision == "bfloat16"


def test_experts_in_half_precision_are_isolated():
    torch.manual_seed(0)
    config = PhimoeConfig(**SMALL, num_local_experts=4, router_jitter_noise=0.1, attn_implementation="sdpa")
    report = check_isolation(PhimoeForCausalLM(config).bfloat16())
    assert report.isolated and report.leak <= report.leak_bound


def noisy_llama():
    model = tiny_llama("packed_varlen", attention_dropout=0.3)
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.5, target_modules=["q_proj"]))


@pytest.mark.parametrize("training", [True, False])
def test_no_trace_is_left(training):
    model = noisy_llama().train(training)
    model(**packed_batch((3, 4))).logits.sum().backward()
    model.base_model.model.model.layers[1].eval()  # a mode of its own
    torch.manual_seed(5)

    def state():
        return {
            "parameters": [(n, p.detach().clone(), p.requires_grad) for n, p in model.named_parameters()],
            "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
            "buffers": [(n, b.clone()) for n, b in model.named_buffers()],
            "modes": [m.training for m in model.modules()],
            "dropouts": [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)],
            "numbers": [getattr(m, "attention_dropout", None) for m in model.modules()],
            "config": model.config.to_dict(),
            "rng": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),
            "hooks": [len(m._forward_hooks) for m in model.modules()],
        }

    before = state()
    report = check_isolation(model)
    after = state()
    assert report.isolated and report.leak == 0.0  # dropout would have moved everything
    assert before["dropouts"] and max(before["dropouts"]) == 0.5
    for key, value in before.items():
        assert torch.equal(after[key][0], value[0]) and after[key][1:] == value[1:] if key == "rng" else True
        if key in ("modes", "dropouts", "numbers", "config", "hooks"):
            assert after[key] == value, key
    assert sum(g is not None for g in before["gradients"]) > 0
    for old, new in zip(before["gradients"], after["gradients"]):
        assert (old is None) == (new is None) and (old is None or torch.equal(old, new))
    for old, new in zip(before["parameters"] + before["buffers"], after["parameters"] + after["buffers"]):
        assert old[0] == new[0] and torch.equal(old[1], new[1]) and old[2:] == new[2:]


def longrope(attention="sdpa"):
    torch.manual_seed(0)
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24, **factors}
    config = {**SMALL, "original_max_position_embeddings": 24, "rope_parameters": rope, "sliding_window": None}
    return Phi3ForCausalLM(Phi3Config(**config, attn_implementation=attention))


def test_buffers_that_a_forward_replaces_are_put_back():
    model = longrope()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with quiet(model, freeze=True):
        model(torch.randint(3, 100, (1, 40)))
        assert any(not torch.equal(before[n], b) for n, b in model.named_buffers())
    assert before and all(torch.equal(before[n], b) for n, b in model.named_buffers())


def test_an_error_inside_leaves_no_trace_either():
    model = tiny_llama("sdpa").eval()
    with pytest.raises(ZeroDivisionError), quiet(model, freeze=True):
        raise ZeroDivisionError
    assert not model.training and all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    "config",
    [
        PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
        PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    ],
)
def test_virtual_tokens_are_caught(config):
    report = check_isolation(get_peft_model(tiny_llama("sdpa"), config))
    assert not report.isolated
    assert "drops position_ids: use LoRA" in report.advice


def test_lora_and_other_wrappers_pass():
    lora = get_peft_model(tiny_llama("packed_varlen"), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"]))
    assert check_isolation(lora).isolated

    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_llama("packed_varlen")

        def forward(self, **batch):
            return self.inner(**batch)

    assert check_isolation(Wrapper()).isolated


def test_compiled_models_pass_and_data_parallel_ones_are_looked_into(tmp_path):
    assert check_isolation(torch.compile(tiny_llama("packed_varlen"), backend="eager")).isolated
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(tiny_llama("packed_varlen"))
        assert check_isolation(model).isolated
        batch = packed_batch((3, 4))
        for _ in range(2):  # the reducer was not left waiting for a backward pass
            model(**batch).logits.sum().backward()
    finally:
        torch.distributed.destroy_process_group()


def test_a_batch_of_the_user_is_probed_as_it_is():
    model = tiny_llama("sdpa")
    good = packed_batch((5, 3, 4))
    assert check_isolation(model, batch=good).isolated
    assert check_isolation(model, batch=packed_batch((5, 3, 4, 6), rows=2)).isolated
    ones = {**good, "attention_mask": torch.ones_like(good["input_ids"])}
    assert not check_isolation(model, batch=ones).isolated
    assert not check_isolation(model, batch={**good, "use_cache": True}).isolated


def test_models_that_need_explicit_boundaries_are_told_so():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2, "vocab_size": 128}
    model = OPTForCausalLM(OPTConfig(**sizes, num_attention_heads=4, attn_implementation="packed_varlen"))
    report = check_isolation(model)
    assert report.isolated and report.boundaries == "explicit"
    # Its layers hand position_ids to the attention function, its masks do not: sdpa never sees them.
    assert check_isolation(model, boundaries="position_ids").isolated
    model.set_attn_implementation("sdpa")
    assert not check_isolation(model, boundaries="position_ids").isolated


def test_a_long_neighbour_that_changes_the_rope_is_a_limit_and_is_measured():
    model = longrope()
    support = inspect_model(model)
    assert support.max_pack_length == 24
    assert "longrope RoPE" in " ".join(support.reasons)
    assert check_isolation(model).isolated  # short sequences never get there
    long = packed_batch((5, 40, 4))
    report = check_isolation(model, batch=long)
    assert not report.isolated and report.mismatch > 1e-3
    assert "comes out" in report.advice


def test_forward_only_and_a_small_model_take_no_time():
    model = tiny_llama("packed_varlen", num_hidden_layers=4, hidden_size=256)
    began = time.process_time()
    report = check_isolation(model)
    assert time.process_time() - began < 3
    assert report.isolated and report.seconds < 60
    forward = check_isolation(model, forward_only=True)
    assert forward.isolated and forward.gradient_leak != forward.gradient_leak  # not measured: NaN


def test_the_probe_is_smaller_than_two_micro_steps():
    model = tiny_mistral("packed_varlen", window=500)
    seen = []
    model.get_input_embeddings().register_forward_hook(lambda module, args, output: seen.append(args[0].numel()))
    check_isolation(model, forward_only=True)
    assert 0 < sum(seen) < 2 * 2048
