"""The part of the trainers that evaluates: exact sums over sequences, on top of Trainer's own loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers.trainer_utils import EvalLoopOutput, denumpify_detensorize

from .batches import BatchFacts
from .evaluation import EvalRun
from .loss import nll_from_logits
from .upstream import TrainerParts


__all__ = ["EvaluatingMixin"]


class EvaluatingMixin(TrainerParts):
    """`eval_loss` is the loss over all targets, one value for every batch size, packing and number of ranks."""

    # --- evaluation --------------------------------------------------------------------------------------------

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Trainer's loop, with exact sums in place of its mean of batch means and sequences in place of packs."""
        predicting = description.lower().startswith("predict")
        collect = self.compute_metrics is not None or predicting
        if prediction_loss_only or (prediction_loss_only is None and self.args.prediction_loss_only):
            collect = False
        by_batch = self.compute_metrics if self.args.batch_eval_metrics and collect else None
        keep = collect and (by_batch is None or predicting)
        with_inputs = "inputs" in self.args.include_for_metrics
        self._prove_once()
        self._eval_run = run = EvalRun(collect, keep, by_batch, with_inputs)
        try:
            output = super().evaluation_loop(  # type: ignore[misc]
                dataloader,
                description,
                prediction_loss_only=True,
                ignore_keys=ignore_keys,
                metric_key_prefix=metric_key_prefix,
            )
        finally:
            self._eval_run = None
        counts = run.counts.over_ranks(self.accelerator, copies=self._ranks.copies)
        sums, _ = run.losses.take(self.accelerator, [])
        metrics = dict(output.metrics)
        metrics.pop(f"{metric_key_prefix}_loss", None)
        if counts.targets:
            for name, field in (("loss", "loss"), ("mean_token_accuracy", "correct"), ("entropy", "entropy")):
                if field in sums:
                    metrics[f"{metric_key_prefix}_{name}"] = sums[field] / self._ranks.copies / counts.targets
        output = output._replace(metrics=metrics, num_samples=counts.sequences)
        return self._with_predictions(output, run, metric_key_prefix) if collect else output

    def _with_predictions(self, output: EvalLoopOutput, run: EvalRun, prefix: str) -> EvalLoopOutput:
        sequences, computed = run.finish()
        prediction = run.as_prediction(sequences)
        if self.compute_metrics is not None and not self.args.batch_eval_metrics:
            computed = self.compute_metrics(prediction)
        named = {
            name if name.startswith(f"{prefix}_") else f"{prefix}_{name}": value
            for name, value in denumpify_detensorize(computed or {}).items()
        }
        return output._replace(
            predictions=prediction.predictions if run.keep else None,
            label_ids=prediction.label_ids if run.keep else None,
            metrics={**output.metrics, **named},
        )

    def prediction_step(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        inputs, facts = BatchFacts.take_from(inputs)
        inputs = self._prepare_inputs(inputs)
        labels, run = inputs["labels"], self._eval_run
        collect = run.collect if run is not None else not prediction_loss_only
        with torch.no_grad(), self.compute_loss_context_manager():
            if collect:
                loss, outputs = self.compute_loss(model, dict(inputs), return_outputs=True)
                logits = outputs["logits"]
            else:
                loss, logits = self.compute_loss(model, dict(inputs)), None
        loss = loss.detach()
        if run is None:
            return loss, logits, (labels if collect else None)
        counts = facts.count(labels, "token", self._shifts)
        run.add(counts, loss)
        if collect:
            losses = None
            if "loss" in self.args.include_for_metrics:
                losses = facts.mean_losses(nll_from_logits(logits, labels, self._shifts), labels, self._shifts)
            if self.preprocess_logits_for_metrics is not None:
                logits = self.preprocess_logits_for_metrics(logits, labels)
            run.add_predictions(facts, logits, labels, inputs["input_ids"], losses)
        return (loss if counts.targets else torch.zeros_like(loss)), None, None
