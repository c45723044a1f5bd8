"""Guards: every private name of transformers, trl and accelerate that the trainers rely on still is what it was.

A failure here names what an upgrade changed; the place to adapt is hf_packing/train/upstream.py, or the override.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import accelerate
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainerCallback,
)
from transformers.trainer_pt_utils import LabelSmoother
from trl import SFTTrainer
from trl.trainer.utils import FusedCausalLMOutput, add_fused_lm_head

from hf_packing import PackingSFTTrainer, PackingTrainer
from hf_packing.train.upstream import attention_name, forward_names, loss_shifts_labels
from tests.train import talk, tiny


def parameters(function):
    return list(inspect.signature(function).parameters)


OVERRIDDEN = {
    "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
    "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "prediction_step": ["self", "model", "inputs", "prediction_loss_only", "ignore_keys"],
    "evaluation_loop": [
        *("self", "dataloader", "description", "prediction_loss_only", "ignore_keys", "metric_key_prefix"),
    ],
    "get_train_dataloader": ["self"],
    "get_eval_dataloader": ["self", "eval_dataset"],
    "get_test_dataloader": ["self", "test_dataset"],
    "log": ["self", "logs", "start_time"],
    "_track_num_input_tokens": ["self", "inputs"],
    "call_model_init": ["self", "trial"],
}


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_methods_keep_their_arguments(name):
    assert parameters(getattr(Trainer, name)) == OVERRIDDEN[name]
    for cls in (PackingTrainer, PackingSFTTrainer):
        assert getattr(cls, name) is not getattr(Trainer, name), f"{cls.__name__} does not override {name}"


def test_every_override_of_trainer_is_guarded():
    """A method of Trainer that the mixins define is in the list above, or passes its arguments on as they are."""
    ours = {name for cls in PackingTrainer.__mro__[1 : PackingTrainer.__mro__.index(Trainer)] for name in vars(cls)}
    overridden = {name for name in ours & set(dir(Trainer)) if not name.startswith("__")}
    assert overridden == set(OVERRIDDEN) | {"train", "create_model_card"}


READ_BY_TRAINER = {
    # How the loop calls us: what it reads, and in which order.
    "_run_epoch": [
        "self.get_batch_samples(epoch_iterator, num_batches",
        "self.training_step(model, inputs",
        "set_epoch",
    ],
    "training_step": ["self.loss_is_scaled_for_ga", "self.compute_loss(model, inputs", "self._prepare_inputs(inputs)"],
    "evaluation_loop": ["self.prediction_step(model, inputs", "self.gather_function", "metrics"],
    "_maybe_log_save_evaluate": ['logs["loss"]', "self.log(logs, start_time)", "self._evaluate("],
    "_finalize_training": ['"train_loss"', "self.log(metrics)"],
    "evaluate": ["self.get_eval_dataloader(eval_dataset)", "self.evaluation_loop(", "self.log(output.metrics)"],
    "predict": ["self.get_test_dataloader(test_dataset)", '"Prediction"'],
}


@pytest.mark.parametrize("name", READ_BY_TRAINER)
def test_the_loop_calls_what_is_overridden(name):
    source = inspect.getsource(getattr(Trainer, name))
    for text in READ_BY_TRAINER[name]:
        assert text in source, f"Trainer.{name} no longer has {text}"


@pytest.mark.parametrize(
    "name", ["_prepare_inputs", "compute_loss_context_manager", "get_cp_size", "get_sp_size", "get_tp_size"]
)
def test_methods_that_are_called_exist(name):
    assert callable(getattr(Trainer, name))


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_attributes_that_are_read_exist(tmp_path, kind):
    trainer = tiny.make(kind, tmp_path)
    for name in (
        "_train_batch_size",
        "_loss_shifts_labels",
        "loss_is_scaled_for_ga",
        "label_smoother",
        "compute_loss_func",
    ):
        assert hasattr(trainer, name), name
    for name in ("is_fsdp_enabled", "is_deepspeed_enabled", "preprocess_logits_for_metrics", "compute_metrics"):
        assert hasattr(trainer, name), name
    for name in ("n_gpu", "eval_batch_size", "include_for_metrics", "batch_eval_metrics", "train_sampling_strategy"):
        assert hasattr(trainer.args, name), name
    assert trainer.args.accelerator_config.to_dict().keys() >= {"even_batches", "dispatch_batches", "split_batches"}
    if kind == "sft":
        for name in ("_is_vision_dataset", "aux_loss_enabled", "router_aux_loss_coef", "completion_only_loss"):
            assert hasattr(trainer, name), name


def test_callback_events():
    for name in ("on_train_begin", "on_save", "on_evaluate"):
        assert parameters(getattr(TrainerCallback, name)) == ["self", "args", "state", "control", "kwargs"]
    assert "on_train_begin" in inspect.getsource(Trainer._inner_training_loop)


def test_trl_prepares_datasets_as_it_did():
    expected = ["self", "dataset", "processing_class", "args", "packing", "formatting_func", "dataset_name"]
    assert parameters(SFTTrainer._prepare_dataset) == expected
    source = inspect.getsource(SFTTrainer._prepare_dataset)
    assert "if args.max_length is not None and not packing:" in source  # hiding max_length keeps it from truncating
    assert 'if "labels" not in column_names:' in source
    init = inspect.getsource(SFTTrainer.__init__)
    assert "train_dataset = self._prepare_dataset(" in init
    assert "args.packing" in init and "args.padding_free" in init


def test_the_fused_head_gives_what_is_read():
    assert {"log_probs", "entropy", "is_top1", "aux_loss"} <= set(FusedCausalLMOutput.__dataclass_fields__)
    assert "outputs" in parameters(add_fused_lm_head)
    assert 'outputs=("log_probs", "entropy", "is_top1")' in inspect.getsource(SFTTrainer.__init__)
    model = talk.model()
    add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
    ids = torch.tensor([[6, 7, 8]])
    labels = torch.tensor([[-100, -100, 8]])
    outputs = model(input_ids=ids, labels=labels, fused_lm_head=True)
    assert outputs.log_probs.shape == (1, 2)
    assert outputs.log_probs[0, 0] == 0 and outputs.is_top1[0, 0] == 0 and outputs.entropy[0, 0] == 0


def test_the_label_smoother_is_called_as_it_was():
    expected = ["self", "model_output", "labels", "shift_labels", "num_items_in_batch"]
    assert parameters(LabelSmoother.__call__) == expected


def test_accelerate_gathers_objects_in_rank_order():
    assert callable(accelerate.utils.gather_object) and callable(accelerate.utils.broadcast_object_list)
    assert accelerate.utils.gather_object([1, 2]) == [1, 2]


class Mine(GPT2LMHeadModel):
    """A name that says nothing."""


class Masked(RobertaForMaskedLM):
    """Likewise."""


SMALL = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1}
HEADS = {"intermediate_size": 8, "num_attention_heads": 1}
MODELS = {
    "llama": (LlamaForCausalLM(LlamaConfig(**SMALL, **HEADS)), True),
    "a causal model with a loss of its own": (MambaForCausalLM(MambaConfig(**SMALL)), True),
    "masked language model": (RobertaForMaskedLM(RobertaConfig(**SMALL, **HEADS)), False),
    "a causal model of the user's": (Mine(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=1)), True),
    "a masked one of the user's": (Masked(RobertaConfig(**SMALL, **HEADS)), False),
}


@pytest.mark.parametrize("model, shifts", MODELS.values(), ids=MODELS)
def test_which_models_shift_their_labels(tmp_path, model, shifts):
    trainer = tiny.make("plain", tmp_path, tiny.words(4), model=model, packing=False)
    assert loss_shifts_labels(trainer) is shifts
    assert {"input_ids", "labels"} <= forward_names(trainer)
    assert attention_name(trainer)


def test_private_names_are_read_in_one_place_only():
    """`_names` of Trainer and SFTTrainer are used in upstream.py or listed above."""
    folder = Path(inspect.getfile(PackingTrainer)).parent
    private = {name for cls in (Trainer, SFTTrainer) for name in dir(cls) if name.startswith("_") and name[1] != "_"}
    allowed = {"_prepare_inputs", "_prepare_dataset", "_track_num_input_tokens", "_is_vision_dataset"}
    found = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in private:
                found.add((path.name, node.attr))
    assert {name for file, name in found if file != "upstream.py"} <= allowed
    assert found
