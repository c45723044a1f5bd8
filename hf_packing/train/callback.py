"""The trainers' own callback: what has to happen at Trainer's events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import ProgressCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


__all__ = ["PackingCallback"]


class PackingCallback(TrainerCallback):
    """The proof before the first step, what a resume needs at each checkpoint, fill and speed in the progress bar."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer.before_training()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        for shown in self._trainer.callback_handler.callbacks:
            bar = getattr(shown, "training_bar", None) if isinstance(shown, ProgressCallback) else None
            if bar is not None and logs and "fill" in logs:
                bar.set_postfix_str(f"fill {logs['fill']:.1%}, {logs['tokens_per_second']:,.0f} tokens/s")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._trainer.save_run_state(Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        self._trainer.meter.restart_clock()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer.meter.restart_clock()
