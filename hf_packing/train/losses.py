"""From a model and a batch to the loss of every target: which head computes it, and what else comes along."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import PackingError
from .loss import IGNORE_INDEX, aligned_labels, nll_from_logits


__all__ = ["TokenLosses", "fused_losses", "logit_losses", "user_loss"]


@dataclass(frozen=True, kw_only=True)
class TokenLosses:
    """What one forward pass gives; sums are over the targets of the batch."""

    per_token: torch.Tensor
    """Loss of every target, of the shape of `aligned_labels(labels)`, 0 where there is none."""
    outputs: Any
    correct: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    aux_loss: torch.Tensor | None = None


def fused_losses(model: Any, inputs: Mapping[str, Any], loss_type: str) -> TokenLosses:
    """Through TRL's fused head (`trl.trainer.utils.add_fused_lm_head`): the `[T, V]` logits are never materialised."""
    outputs = model(**inputs, fused_lm_head=True)
    per_token = -outputs.log_probs
    if loss_type == "dft":  # dynamic fine-tuning, arXiv:2508.05629
        per_token = per_token * outputs.log_probs.exp().detach()
    return TokenLosses(
        per_token=per_token,
        outputs=outputs,
        correct=outputs.is_top1.sum() if outputs.is_top1 is not None else None,
        entropy=outputs.entropy.sum() if outputs.entropy is not None else None,
        aux_loss=outputs.aux_loss,
    )


def logit_losses(
    model: Any,
    inputs: Mapping[str, Any],
    *,
    shifts: bool,
    label_smoothing: float = 0.0,
    loss_type: str = "nll",
    with_metrics: bool = False,
) -> TokenLosses:
    """Through the full logits, with a loss of our own that is exact whatever the model does with its loss arguments.

    Labels are not handed to the model: it would compute a second loss, with float32 logits of its own.

    Raises:
        PackingError: the model returns no logits.
    """
    labels = inputs["labels"]
    outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    if logits is None:
        raise PackingError(
            f"{type(model).__name__} returned no 'logits', which the token-normalised loss is computed from; give the "
            "trainer a model with a language-modelling head, or a compute_loss_func."
        )
    per_token = nll_from_logits(logits, labels, shifts, label_smoothing)
    if loss_type == "dft":
        per_token = per_token * (-per_token).exp().detach()
    metrics = _accuracy_and_entropy(logits.detach(), labels, shifts) if with_metrics else {}
    return TokenLosses(per_token=per_token, outputs=outputs, aux_loss=outputs.get("aux_loss"), **metrics)


def _accuracy_and_entropy(logits: torch.Tensor, labels: torch.Tensor, shifts: bool) -> dict[str, torch.Tensor]:
    targets = aligned_labels(labels, shifts)
    is_target = targets != IGNORE_INDEX
    picked = (logits[:, :-1] if shifts else logits)[is_target]
    log_probs = picked.float().log_softmax(-1)
    return {
        "correct": (picked.argmax(-1) == targets[is_target]).sum(),
        "entropy": -(log_probs.exp() * log_probs).sum(),
    }


def user_loss(
    compute: Callable[..., torch.Tensor], outputs: Any, labels: torch.Tensor, targets: int, step_targets: int
) -> torch.Tensor:
    """This batch's share of the step's loss, from a user's function.

    The function is given the targets of its own batch as `num_items_in_batch` (where it takes it), and the result is
    weighted by the batch's share of the step's targets. That is right for a function that divides by the count, for
    one that ignores it and returns a mean, and for one that adds a term of its own, which then counts once a step.

    Example:
        >>> labels, outputs = torch.tensor([[-100, 1, 2]]), torch.tensor([[6.0, 2.0]])  # 2 targets of 8 in the step
        >>> by_count = lambda outputs, labels, num_items_in_batch: outputs.sum() / num_items_in_batch
        >>> mean = lambda outputs, labels: outputs.mean()
        >>> [user_loss(function, outputs, labels, 2, 8).item() for function in (by_count, mean)]
        [1.0, 1.0]
    """
    parameters = inspect.signature(compute).parameters.values()
    count = {}
    if any(p.name == "num_items_in_batch" or p.kind is p.VAR_KEYWORD for p in parameters):
        count["num_items_in_batch"] = torch.tensor(targets, device=labels.device)
    return compute(outputs, labels, **count) * (targets / step_targets)
