"""Evaluation over sequences, whatever batches they came in: exact sums, and predictions unpacked again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from numpy.typing import NDArray
from transformers import EvalPrediction

from ..errors import PackingError
from .batches import BatchFacts
from .loss import IGNORE_INDEX
from .metrics import LossMeter
from .window import BatchCounts


__all__ = ["EvalRun", "SequencePrediction"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SequencePrediction:
    """What the model said about one sequence; arrays have one entry a real token."""

    sequence_id: int
    predictions: tuple[NDArray[Any], ...]
    labels: NDArray[np.int64]
    input_ids: NDArray[np.int64]
    loss: float | None = None
    """Mean over the targets, where it was asked for."""


class EvalRun:
    """One pass over an evaluation set on one rank.

    Args:
        collect (`bool`): ask for predictions, as `compute_metrics` and `predict` need.
        keep (`bool`): keep them to the end of the pass.
        batch_metrics (*optional*): `compute_metrics` under `batch_eval_metrics=True`: it is handed the sequences of
            each batch, and memory does not grow with the set.
        with_inputs (`bool`): hand `compute_metrics` the input ids too.
    """

    def __init__(self, collect: bool, keep: bool, batch_metrics: Callable[..., Any] | None, with_inputs: bool) -> None:
        self.collect, self.keep = collect, keep
        self.losses = LossMeter()
        self.counts = BatchCounts()
        self._batch_metrics = batch_metrics
        self._with_inputs = with_inputs
        self._kept: list[list[SequencePrediction]] = []
        self._last: list[SequencePrediction] | None = None

    def add(self, counts: BatchCounts, loss: torch.Tensor) -> None:
        """Add a batch and its mean loss; a batch without targets has none."""
        self.counts = self.counts + counts
        if counts.targets:
            self.losses.add(loss=loss.detach() * counts.targets)

    def add_predictions(
        self,
        facts: BatchFacts,
        outputs: Any,
        labels: torch.Tensor,
        input_ids: torch.Tensor,
        losses: list[float] | None = None,
    ) -> None:
        """Unpack what the model said about a batch; `losses` are those of its sequences."""
        values = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        for value in values:
            if not torch.is_tensor(value) or value.shape[:2] != labels.shape:
                shape = tuple(value.shape) if torch.is_tensor(value) else type(value).__name__
                raise PackingError(
                    f"preprocess_logits_for_metrics returned {shape} for a batch of {tuple(labels.shape)} tokens; "
                    "packed predictions can be given back to their sequences only with one entry a token. Return a "
                    "tensor that keeps the first two dimensions, e.g. logits.argmax(-1)."
                )
        flat = [value.detach().reshape(-1, *value.shape[2:]).cpu() for value in values]
        labels, input_ids = labels.reshape(-1).cpu(), input_ids.reshape(-1).cpu()
        batch = []
        for number, (start, length, sequence_id) in enumerate(
            zip(facts.starts.tolist(), facts.lengths.tolist(), facts.sequence_ids.tolist())
        ):
            here = slice(start, start + length)
            batch.append(
                SequencePrediction(
                    sequence_id=sequence_id,
                    predictions=tuple(_to_numpy(value[here]) for value in flat),
                    labels=labels[here].numpy(),
                    input_ids=input_ids[here].numpy(),
                    loss=losses[number] if losses is not None else None,
                )
            )
        if self.keep:
            self._kept.append(batch)
        if self._batch_metrics is None:
            return
        # The last batch is told apart from the others (compute_result=True), so each waits for the next one.
        if self._last is not None:
            self._batch_metrics(self.as_prediction(gather_object(self._last)), compute_result=False)
        self._last = batch

    def finish(self) -> tuple[list[SequencePrediction], dict[str, Any]]:
        """All kept predictions in dataset order, and the metrics of a `batch_eval_metrics` run. Collective."""
        metrics: dict[str, Any] = {}
        if self._batch_metrics is not None:
            metrics = self._batch_metrics(self.as_prediction(gather_object(self._last or [])), compute_result=True)
        if not self.keep:
            return [], metrics
        # Batches were dealt to the ranks in turn, so they are put back in that order: for two ranks with batches
        # [a, c] and [b, d] that is a, b, c, d.
        rounds = zip(*gather_object([self._kept]))
        kept = [one for batches in rounds for batch in batches for one in batch]
        if all(one.sequence_id >= 0 for one in kept):
            kept.sort(key=lambda one: one.sequence_id)
        return kept, metrics

    def as_prediction(self, sequences: list[SequencePrediction]) -> EvalPrediction:
        """One row a sequence, padded with -100 to the longest: `[N, L]` labels, `[N, L, ...]` predictions."""
        width = max((one.labels.size for one in sequences), default=0)
        parts = len(sequences[0].predictions) if sequences else 1
        predictions = tuple(_stack([one.predictions[part] for one in sequences], width) for part in range(parts))
        return EvalPrediction(
            predictions=predictions[0] if parts == 1 else predictions,
            label_ids=_stack([one.labels for one in sequences], width),
            inputs=_stack([one.input_ids for one in sequences], width) if self._with_inputs else None,
            losses=np.array([one.loss for one in sequences]) if sequences and sequences[0].loss is not None else None,
        )


def _to_numpy(value: torch.Tensor) -> NDArray[Any]:
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _stack(values: list[NDArray[Any]], width: int) -> NDArray[Any]:
    if not values:
        return np.empty((0, width), dtype=np.int64)
    out = np.full((len(values), width, *values[0].shape[1:]), IGNORE_INDEX, dtype=values[0].dtype)
    for row, value in zip(out, values):
        row[: len(value)] = value
    return out
