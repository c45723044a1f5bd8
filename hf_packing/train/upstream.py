"""The private names of transformers and trl that the trainers read or override: all of them, in this one place.

Each has a test that fails when a new version renames it (tests/train/test_upstream.py).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from trl import SFTTrainer


if TYPE_CHECKING:
    from .config import PackingSettings
    from .evaluation import EvalRun
    from .loaders import StreamBatches
    from .metrics import TrainMeter
    from .proof import BatchForm
    from .ranks import Ranks
    from .stepping import MicroBatch
    from .window import BatchCounts


__all__ = [
    "CountsTokensSeen",
    "TrainerParts",
    "attention_name",
    "bare_model",
    "forward_names",
    "loss_shifts_labels",
    "tokenize_with_trl",
]


def bare_model(trainer: Any) -> Any:
    """The model without the wrappers of accelerate and PEFT."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def attention_name(trainer: Any) -> str:
    """The attention implementation the model was loaded with."""
    return str(bare_model(trainer).config._attn_implementation)


def forward_names(trainer: Any) -> frozenset[str]:
    """Names of the model's forward arguments: what `remove_unused_columns` keeps."""
    return frozenset(inspect.signature(bare_model(trainer).forward).parameters)


_ALIGNED_HEADS = ("MaskedLM", "ForPreTraining", "TokenClassification")
"""Parts of the names of heads whose slot t predicts token t."""


def loss_shifts_labels(trainer: Any) -> bool:
    """Whether slot t of the model's output predicts token t + 1 (causal), and not token t (masked language models).

    `Trainer._loss_shifts_labels` knows the models that use the library's own loss. Of the others, and of classes that
    users derive under names of their own, a model is causal unless it descends from a head that is known not to be.
    """
    model = bare_model(trainer)
    if trainer._loss_shifts_labels:
        return True
    names = [cls.__name__ for cls in type(model).__mro__]
    aligned = any(part in name for name in names for part in _ALIGNED_HEADS)
    return not (aligned or getattr(model.config, "is_encoder_decoder", False))


def tokenize_with_trl(
    trainer: SFTTrainer, dataset: Any, processing_class: Any, args: Any, formatting: Any, name: str
) -> Any:
    """`SFTTrainer._prepare_dataset` without its packing: formats, chat template, EOS, tokens, labels.

    It truncates to `args.max_length`; hide that (None) where packing decides what is cut.
    """
    return SFTTrainer._prepare_dataset(trainer, dataset, processing_class, args, False, formatting, name)


class TrainerParts:
    """What the mixins use of each other and of `Trainer`, for readers and the type checker; nothing at run time."""

    if TYPE_CHECKING:
        args: Any
        accelerator: Any
        model: Any
        state: Any
        train_dataset: Any
        eval_dataset: Any
        data_collator: Any
        processing_class: Any
        compute_metrics: Any
        compute_loss_func: Any
        label_smoother: Any
        loss_is_scaled_for_ga: Any
        preprocess_logits_for_metrics: Any
        is_fsdp_enabled: bool
        is_deepspeed_enabled: bool
        _train_batch_size: int
        compute_loss_context_manager: Any
        _prepare_inputs: Any
        add_callback: Any
        get_cp_size: Any
        get_sp_size: Any
        get_tp_size: Any

        packing: PackingSettings
        meter: TrainMeter
        batch_form: BatchForm
        _ranks: Ranks
        _shifts: bool
        _stream: StreamBatches | None
        _eval_run: EvalRun | None
        _alarmed: bool
        _verdict: str
        is_world_process_zero: Any
        _step_counts: BatchCounts
        _micro_batch: MicroBatch | None
        compute_loss: Any
        _pad_token_id: Any
        _prove_once: Any


class CountsTokensSeen:
    """Makes `state.num_input_tokens_seen` count real tokens.

    `Trainer._track_num_input_tokens` tells pads by their id, which misses every EOS where pad == EOS, and counts
    repeated rows; the packed trainers know the real number of every step and add it once.
    """

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Left to `count_tokens_seen`, which is called once a step."""

    def count_tokens_seen(self, args: Any, state: Any, tokens: int) -> None:
        if args.include_num_input_tokens_seen != "no":
            state.num_input_tokens_seen += tokens
