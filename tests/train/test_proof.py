"""The form of batches and the proof, by what the model says of itself and the setting asks for."""

from __future__ import annotations

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

from hf_packing.errors import ContaminationError, PackingError
from hf_packing.train.config import PackingSettings, PackingTrainingArguments
from hf_packing.train.proof import choose_batch_form
from tests.equivalence import trajectory
from tests.train import tiny


def settings(**given):
    return PackingSettings.from_args(PackingTrainingArguments("out", use_cpu=True, report_to="none", **given))


def dynamic():
    """Positions are stretched by the length of the whole row once it passes 32."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=32,
            rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
        )
    )  # fmt: skip


def test_a_dense_attention_is_replaced_or_kept():
    model = trajectory.build()
    form = choose_batch_form(model, settings())
    assert model.config._attn_implementation == "packed_varlen"
    assert form.layout == "flat" and "builds dense masks" in form.why
    model = trajectory.build()
    form = choose_batch_form(model, settings(attention="keep"))
    assert model.config._attn_implementation != "packed_varlen" and form.why == ""


def test_a_model_that_changes_with_the_length_of_the_row():
    assert choose_batch_form(dynamic(), settings(max_length=32)).layout != "group"
    with pytest.raises(ContaminationError, match=r"max_length=64 lets packs grow beyond 32 tokens.*at most 32"):
        choose_batch_form(dynamic(), settings(max_length=64))
    assert choose_batch_form(dynamic(), settings(max_length=64, isolation_check="group")).layout == "group"
    warned = choose_batch_form(dynamic(), settings(max_length=64, isolation_check="warn"))
    assert warned.layout != "group" and "lets packs grow beyond 32" in warned.why


def test_encoder_decoders_are_refused():
    model = T5ForConditionalGeneration(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2))
    with pytest.raises(PackingError, match=r"encoder-decoder model.*packing=False"):
        choose_batch_form(model, settings())


@pytest.mark.parametrize("check", ["warn", "off"])
def test_training_goes_on_when_that_is_asked_for(tmp_path, capsys, check):
    class Swallowing(LlamaForCausalLM):
        def forward(self, input_ids=None, labels=None, **kwargs):
            return super().forward(input_ids=input_ids, labels=labels, use_cache=False)

    model = trajectory.build()
    model.__class__ = Swallowing
    tiny.make("plain", tmp_path, model=model, isolation_check=check).train()
    assert ("WARNING: isolation NOT proven" in capsys.readouterr().out) == (check == "warn")
