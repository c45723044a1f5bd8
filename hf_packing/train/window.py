"""What one optimizer step is made of: the counts of its micro-batches, added up over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch


__all__ = ["BatchCounts", "sum_over_ranks"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCounts:
    """Counts of one micro-batch, or of several added up; pads and filler are in `slots` alone."""

    targets: int = 0
    """Tokens that are predicted and counted."""
    weight: float = 0.0
    """Sum of the target weights: the denominator of the step's loss."""
    tokens: int = 0
    """Real tokens."""
    slots: int = 0
    """Nominal tokens: capacity times packs for packs, the size of the tensor for anything else."""
    sequences: int = 0
    packs: int = 0

    def __add__(self, other: BatchCounts) -> BatchCounts:
        return BatchCounts.from_values([a + b for a, b in zip(astuple(self), astuple(other))])

    @classmethod
    def from_values(cls, values: Sequence[float]) -> BatchCounts:
        targets, weight, tokens, slots, sequences, packs = values
        return cls(
            targets=round(targets),
            weight=weight,
            tokens=round(tokens),
            slots=round(slots),
            sequences=round(sequences),
            packs=round(packs),
        )

    def over_ranks(self, accelerator: Any, copies: int = 1) -> BatchCounts:
        """Added up over the ranks; `copies` ranks hold the same batch (tensor parallelism) and count once.

        Four ranks, two of data times two of tensor parallelism, with 10 and 6 targets: (10 + 10 + 6 + 6) / 2 = 16.
        """
        return BatchCounts.from_values([value / copies for value in sum_over_ranks(accelerator, astuple(self))])


def sum_over_ranks(accelerator: Any, values: Sequence[float | torch.Tensor]) -> list[float]:
    """Add up a few numbers over the ranks in one collective; every rank must call it, and gets the same sums.

    float64 keeps counts exact up to 2**53; devices without it (MPS) never have a second rank.
    """
    if accelerator.num_processes == 1:
        return [float(value) for value in values]
    packed = torch.stack([torch.as_tensor(value, dtype=torch.float64).to(accelerator.device) for value in values])
    return accelerator.reduce(packed, reduction="sum").tolist()
