"""restart_state: recurrent layers start anew at each sequence; forward and gradient as if each ran alone."""

import pytest
import torch

from benchmarks.families import build
from hf_packing.errors import PackingError
from hf_packing.model.isolation import check_isolation
from hf_packing.model.segments import Segments
from hf_packing.model.state import _groups, restart_state
from hf_packing.model.support import inspect_model
from tests.model.tiny import alone_logits, packed_batch, tiny_llama


LENGTHS = (1, 6, 3, 6, 1, 17, 3)

FAST = ("mamba", "lfm2", "jamba")
ALL = (
    "mamba2 falcon_mamba bamba granitemoehybrid falcon_h1 qwen3_next lfm2_moe recurrent_gemma minimax nemotron_h "
    "olmo_hybrid qwen3_5_text bailing_hybrid"
)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in ALL.split())])
def test_packed_equals_alone_forward_and_backward(name):
    model, plain = build(name, "packed_varlen").eval(), build(name, "eager").eval()
    restart = restart_state(model)
    batch = packed_batch(LENGTHS, explicit=True)
    packed = model(**batch).logits[0]
    alone = alone_logits(plain, batch["input_ids"], LENGTHS)
    torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-4)
    weights = torch.randn_like(packed)
    (packed * weights).sum().backward()
    (alone * weights).sum().backward()
    compared = 0
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        if theirs.grad is not None:
            assert (ours.grad - theirs.grad).norm() <= 1e-4 * theirs.grad.norm().clamp_min(1e-4)
            compared += 1
    assert compared > 5 and restart.layers > 0


def test_sequences_of_one_length_run_as_one_batch():
    segments = Segments(torch.tensor([0, 2, 5, 7], dtype=torch.int32), 3)
    assert [tokens.tolist() for tokens in _groups(segments)] == [[[0, 1], [5, 6]], [[2, 3, 4]]]


def test_the_proof_and_the_advice_know_it():
    model = build("lfm2", "packed_varlen")
    before = check_isolation(model)
    assert not before.isolated and "restart_state(model)" in before.advice
    restart = restart_state(model)
    assert inspect_model(model).restarts_state and check_isolation(model).isolated
    with pytest.raises(PackingError, match="restarts already"):
        restart_state(model)
    restart.remove()
    assert not inspect_model(model).restarts_state and not check_isolation(model).isolated


def test_batches_that_are_not_packed_run_as_before():
    ids = torch.randint(3, 100, (2, 9), generator=torch.Generator().manual_seed(0))
    model, plain = build("lfm2", "packed_varlen").eval(), build("lfm2", "packed_varlen").eval()
    restart_state(model)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, plain(ids).logits)
        generate = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        assert torch.equal(model.generate(ids, **generate), plain.generate(ids, **generate))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["lfm2", "mamba"])
def test_gradient_checkpointing_is_exact_and_remembers_its_batch(name, reentrant):
    plain, checkpointed = build(name, "packed_varlen").train(), build(name, "packed_varlen").train()
    restarts = [restart_state(model) for model in (plain, checkpointed)]
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for model in (plain, checkpointed):
        # The second forward runs before the first backward: the recomputed layers must use their own boundaries.
        losses = [model(**packed_batch(lengths)).logits.square().mean() for lengths in ((4, 3, 5), (2, 10))]
        sum(losses).backward()
    pairs = [(a.grad, b.grad) for a, b in zip(plain.parameters(), checkpointed.parameters()) if a.grad is not None]
    assert len(pairs) > 5
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    restarts[1].remove()
    functions = [getattr(module, "_gradient_checkpointing_func", None) for module in checkpointed.modules()]
    assert any(functions) and not any(type(function).__name__ == "_Remembering" for function in functions)


def test_models_without_a_state_are_refused():
    with pytest.raises(PackingError, match="LlamaForCausalLM has no layer that carries a state"):
        restart_state(tiny_llama())
