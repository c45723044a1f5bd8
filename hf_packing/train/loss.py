"""Counting targets and normalising the loss: pure functions on tensors, the only place that says what a token weighs.

Shape legend: B rows, L slots a row, S sequences (or pieces of one) in a batch, V vocabulary, N targets of a step.

What an optimizer step minimises. With nll_t the negative log-likelihood of target t and w_t its weight,

    loss = sum over all targets t of all micro-batches and ranks of  w_t * nll_t  /  sum of the same w_t

    "token"     w_t = 1                          every target weighs the same
    "sequence"  w_t = 1 / targets(sequence of t) every sequence weighs the same; the pieces of a split sequence weigh
                                                 targets(piece) / targets(sequence) each, 1 together

Each micro-batch contributes  sum(w_t * nll_t) / denominator  with the denominator of the whole step, so that adding
gradients up over micro-batches gives the gradient of the loss above, however the sequences are spread. DDP and FSDP
average gradients over R ranks instead of adding them, so the contribution is multiplied by R.

Three sequences, A with 3 targets of nll 1 each, B with 1 target of nll 5, C with 2 targets of nll 2 each:

    token      (3*1 + 1*5 + 2*2) / 6                    = 12 / 6 = 2
    sequence   (3*1/3 + 1*5/1 + 2*2/2) / (1 + 1 + 1)    =  8 / 3 = the mean of the per-sequence means 1, 5 and 2
    mean of micro-batch means, {A, B} and {C}           = (8/4 + 4/2) / 2 = 2, but (7/5 + 5/1) / 2 = 3.2 for {A, C} and
                                                          {B}: it depends on the cut, which is why it is not used
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


__all__ = [
    "IGNORE_INDEX",
    "aligned_labels",
    "count_targets",
    "nll_from_logits",
    "sequence_weights",
]

IGNORE_INDEX = -100
"""Label of a token that is no target, as in Transformers."""


def aligned_labels(labels: torch.Tensor, shifts: bool = True) -> torch.Tensor:
    """Labels in line with the logits that predict them.

    Args:
        labels (`[B, L]`, integer): label of each token, `-100` where it is no target.
        shifts (`bool`, *optional*, defaults to `True`): whether slot t predicts token t + 1 (causal models). The
            result then has L - 1 slots a row; the last slot of a row predicts nothing.

    Example:
        >>> aligned_labels(torch.tensor([[-100, 12, 13, -100, 22]])).tolist()
        [[12, 13, -100, 22]]
    """
    return labels[..., 1:] if shifts else labels


def count_targets(labels: torch.Tensor, shifts: bool = True) -> int:
    """How many tokens of the batch are predicted and counted.

    Example:
        >>> count_targets(torch.tensor([[7, 8, 9, 10], [4, 5, 6, -100]]))  # the first token of a row is no target
        5
    """
    return int((aligned_labels(labels, shifts) != IGNORE_INDEX).sum())


def sequence_weights(
    labels: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    sequence_targets: torch.Tensor,
    shifts: bool = True,
) -> torch.Tensor:
    """Weight of each target under `loss_normalization="sequence"`: one over the targets of its whole sequence.

    Args:
        labels (`[B, L]`, integer): label of each token.
        starts (`[S]`, int64): first slot of each sequence, counted over the flattened `B * L` slots.
        lengths (`[S]`, int64): real tokens of each sequence.
        sequence_targets (`[S]`, int64): targets of the whole sequence a piece was cut from, `-1` where the piece is
            the whole sequence.
        shifts (`bool`, *optional*, defaults to `True`): as in [`aligned_labels`].

    Returns:
        float64, of the shape of `aligned_labels(labels)`; 0 where there is no target.

    Example:
        >>> labels = torch.tensor([[-100, 12, 13, -100, 22]])
        >>> sequence_weights(labels, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([-1, -1])).tolist()
        [[0.5, 0.5, 0.0, 1.0]]
        >>> # the first piece belongs to a sequence of 8 targets
        >>> sequence_weights(labels, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([8, -1])).tolist()
        [[0.125, 0.125, 0.0, 1.0]]
    """
    flat = labels.reshape(-1)
    is_target = flat != IGNORE_INDEX
    if shifts:
        # The first slot of a row is predicted by nobody: it is no target even where it carries a label.
        is_target = is_target.clone()
        is_target[:: labels.shape[-1]] = False
    # Cumulative counts turn "targets between two slots" into a difference: for targets [0, 1, 1, 0, 1] they are
    # [0, 0, 1, 2, 2, 3], and the sequence of slots 3..5 has 3 - 2 = 1.
    counts = F.pad(is_target.long().cumsum(0), (1, 0))
    in_piece = counts[starts + lengths] - counts[starts]
    targets = torch.where(sequence_targets >= 0, sequence_targets, in_piece)
    weights = torch.zeros(flat.shape, dtype=torch.float64, device=labels.device)
    slots = torch.repeat_interleave(starts - F.pad(lengths.cumsum(0), (1, 0))[:-1], lengths)
    slots = slots + torch.arange(slots.numel(), device=slots.device)
    weights[slots] = torch.repeat_interleave(1.0 / targets.clamp(min=1).double(), lengths)
    weights = (weights * is_target).view(labels.shape)
    return weights[..., 1:] if shifts else weights


def nll_from_logits(
    logits: torch.Tensor, labels: torch.Tensor, shifts: bool = True, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Negative log-likelihood of every target, 0 where there is none.

    Computed for the targets alone: a batch whose prompts are masked pays for its answers. Logits below float32 are
    raised to it; float64 stays float64.

    Args:
        logits (`[B, L, V]`, floating).
        labels (`[B, L]`, integer).
        shifts (`bool`, *optional*, defaults to `True`): as in [`aligned_labels`].
        label_smoothing (`float`, *optional*, defaults to `0.0`): share of the weight spread evenly over the vocabulary
            (Szegedy et al., arXiv:1512.00567), as `Trainer` does.

    Returns:
        float32 or float64, of the shape of `aligned_labels(labels)`. Connected to `logits` also without any target, so
        that a micro-batch of silence still takes part in the backward pass of its step.

    Example:
        >>> nll = nll_from_logits(torch.zeros(1, 3, 4), torch.tensor([[-100, 2, -100]]))
        >>> [round(value, 4) for value in nll[0].tolist()]  # log(4) = 1.3863
        [1.3863, 0.0]
    """
    targets = aligned_labels(labels, shifts).to(logits.device)
    used = logits[..., :-1, :] if shifts else logits
    is_target = targets != IGNORE_INDEX
    picked = used[is_target]
    if picked.dtype in (torch.float16, torch.bfloat16):
        picked = picked.float()
    values = F.cross_entropy(picked, targets[is_target], reduction="none", label_smoothing=label_smoothing)
    return values.new_zeros(targets.shape).masked_scatter(is_target, values)
