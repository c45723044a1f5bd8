"""The part of the trainers that normalises: micro-batches of a step, its counts, and what each loss is divided by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.trainer_pt_utils import LabelSmoother

from ..errors import PackingError
from .batches import BatchFacts, filler_batch
from .losses import TokenLosses, logit_losses, user_loss
from .upstream import CountsTokensSeen, TrainerParts, bare_model
from .window import BatchCounts


__all__ = ["MicroBatch", "SteppingMixin"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """A micro-batch and the optimizer step it belongs to."""

    counts: BatchCounts
    step: BatchCounts
    """Of the whole step: all micro-batches, all ranks."""
    weights: torch.Tensor | None = None
    """Weight of each target, on the CPU; None where all weigh 1."""


class SteppingMixin(CountsTokensSeen, TrainerParts):
    """Exact normalisation over all micro-batches and ranks of an optimizer step; the arithmetic is in loss.py."""

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor]:
        """The micro-batches of one optimizer step, and the targets in it over all micro-batches and ranks.

        Always `num_batches` of them: a rank that has fewer left adds filler without targets, so that every rank runs
        the same number of forward and backward passes and Trainer's step arithmetic holds in the last window too.
        """
        batches, counts = self._draw(epoch_iterator, num_batches)
        if self._stream is not None and counts.sequences == 0:
            # Every rank sees the same totals, so all of them begin the next pass here.
            self._stream.next_pass()
            batches, counts = self._draw(epoch_iterator, num_batches)
            if counts.sequences == 0:
                raise PackingError(
                    "A whole pass over the stream gave no sequence with a target on any rank; check the dataset and "
                    "its labels."
                )
        self._step_counts = counts
        self.meter.add_step(counts)
        self.count_tokens_seen(self.args, self.state, counts.tokens)
        return batches, torch.tensor(counts.targets, device=device)

    def _draw(self, epoch_iterator: Iterator[Any], num_batches: int) -> tuple[list[Any], BatchCounts]:
        batches, local = [], BatchCounts()
        for _ in range(num_batches):
            batch = next(epoch_iterator, None)
            if batch is None:
                batch = filler_batch(self._pad_token_id(), self.batch_form.filler_start)
            batches.append(batch)
            inputs, facts = BatchFacts.take_from(batch)
            local = local + facts.count(inputs.get("labels"), self.packing.loss_normalization, self._shifts)
        return batches, local.over_ranks(self.accelerator, copies=self._ranks.copies)

    # --- loss --------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Mapping[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        inputs, facts = BatchFacts.take_from(inputs)
        labels, normalization = inputs["labels"], self.packing.loss_normalization
        counts = facts.count(labels, normalization, self._shifts)
        weights = facts.target_weights(labels, self._shifts) if normalization == "sequence" else None
        self._micro_batch = MicroBatch(counts=counts, step=self._step_counts, weights=weights)
        # An override of compute_loss shadows the mixin's, so its result is weighted here, between it and backward.
        on_class = "compute_loss" not in vars(self)
        original, declared = self.compute_loss, self.loss_is_scaled_for_ga
        self.compute_loss = self._weighted(original, declared is True)  # type: ignore[method-assign]
        self.loss_is_scaled_for_ga = True
        try:
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[misc]
        finally:
            if on_class:
                del self.compute_loss
            else:
                self.compute_loss = original  # type: ignore[method-assign]
            self.loss_is_scaled_for_ga = declared
            self._micro_batch = None

    def _weighted(self, compute_loss: Any, is_scaled: bool) -> Any:
        """`compute_loss` with its result weighted by the micro-batch's targets, where it is a mean over them."""

        def weighted(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
            micro = self._micro_batch
            if micro is None:
                raise PackingError("compute_loss was wrapped outside of a training step.")
            self._scaled_here = False
            loss = compute_loss(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
            loss, rest = (loss[0], loss[1:]) if isinstance(loss, tuple) else (loss, ())
            if is_scaled and not self._scaled_here:
                # Already over the whole step, and over the ranks as Trainer wants it: times their number.
                self.meter.losses.add(loss=loss * (micro.step.targets / self._ranks.count))
            elif not self._scaled_here:
                if self.packing.loss_normalization == "sequence":
                    raise PackingError(
                        "loss_normalization='sequence' weighs every token, which a compute_loss that returns one mean "
                        "does not allow; use loss_normalization='token', or build on super().compute_loss."
                    )
                if micro.counts.targets:
                    self.meter.losses.add(loss=loss * micro.counts.targets)
                    loss = loss * (micro.counts.targets / micro.step.targets) * self._ranks.count
                else:
                    # A mean over nothing is NaN, and NaN times 0 is too.
                    loss = sum(p.sum() * 0.0 for p in model.parameters() if p.requires_grad)
            return (loss, *rest) if rest else loss

        return weighted

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Loss of a batch: in a training step its share of the step's loss, otherwise the mean over its targets."""
        micro, ranks = self._micro_batch, self._ranks.count
        inputs = dict(inputs)
        if micro is None:
            inputs, facts = BatchFacts.take_from(inputs)
            counts = facts.count(inputs.get("labels"), "token", self._shifts)
            micro, ranks = MicroBatch(counts=counts, step=counts), 1
        else:
            self._scaled_here = True
        inputs["use_cache"] = False
        if self.compute_loss_func is not None or type(self.label_smoother) not in (type(None), LabelSmoother):
            loss, outputs = self._user_loss(model, inputs, micro)
            if self._micro_batch is not None:
                self.meter.losses.add(loss=loss.detach() * micro.step.targets)
            return (loss * ranks, outputs) if return_outputs else loss * ranks
        losses = self._token_losses(model, inputs, return_outputs)
        per_token = losses.per_token
        weighted = (per_token if micro.weights is None else per_token * micro.weights.to(per_token)).sum()
        loss = weighted / max(micro.step.weight, 1e-30)
        self._record(losses, weighted, micro)
        if losses.aux_loss is not None and self._micro_batch is not None and micro.step.tokens:
            # Once an optimizer step: the mean over its micro-batches and ranks, each weighted by its real tokens.
            loss = loss + self._aux_coefficient() * losses.aux_loss.to(loss.device) * (
                micro.counts.tokens / micro.step.tokens
            )
        loss = loss * ranks
        return (loss, losses.outputs) if return_outputs else loss

    def _record(self, losses: TokenLosses, weighted: torch.Tensor, micro: MicroBatch) -> None:
        values = {"correct": losses.correct, "entropy": losses.entropy}
        known = {name: value for name, value in values.items() if value is not None}
        if self._micro_batch is not None:
            if losses.aux_loss is not None:
                share = micro.counts.tokens / max(micro.step.tokens, 1)
                known |= {"aux_loss": losses.aux_loss.detach() * share, "aux_weight": torch.tensor(share)}
            self.meter.losses.add(loss=weighted, **known)
        elif self._eval_run is not None:
            self._eval_run.losses.add(**known)

    def _token_losses(self, model: Any, inputs: dict[str, Any], with_outputs: bool) -> TokenLosses:
        return logit_losses(model, inputs, shifts=self._shifts, label_smoothing=self._label_smoothing())

    def _label_smoothing(self) -> float:
        return self.label_smoother.epsilon if self.label_smoother is not None else 0.0

    def _aux_coefficient(self) -> float:
        return float(getattr(bare_model(self).config.get_text_config(), "router_aux_loss_coef", 0.0) or 0.0)

    def _user_loss(self, model: Any, inputs: dict[str, Any], micro: MicroBatch) -> tuple[torch.Tensor, Any]:
        """A user's `compute_loss_func` (or a label smoother of their own), over the targets of the step."""
        if self.packing.loss_normalization == "sequence":
            raise PackingError(
                "loss_normalization='sequence' weighs every token, which a loss function of one number does not "
                "allow; use loss_normalization='token'."
            )
        labels = inputs["labels"]
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        if not micro.counts.targets:
            # A mean over nothing is NaN; this is 0 and still takes part in the backward pass.
            return outputs["logits"].sum() * 0.0, outputs
        compute = self.compute_loss_func
        if compute is None:
            compute = partial(self.label_smoother, shift_labels=self._shifts)
        return user_loss(compute, outputs, labels, micro.counts.targets, micro.step.targets), outputs
