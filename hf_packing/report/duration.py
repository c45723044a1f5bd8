"""A stated guess of the time a layout takes, from its slots and its attention scores alone."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout


__all__ = ["TimeModel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeModel:
    """Time in proportion to arithmetic: a·slots + b·scores, with a and b counted from a decoder layer.

    A layer of width h multiplies every slot with about 12·h² weights (projections 4·h², MLP 8·h²): 24·h² operations.
    Every attention score costs 4·h (2·h for query·key, 2·h for weight·value). One slot therefore weighs as much as
    6·h scores, and the number of layers cancels.

    Example:

        >>> import numpy as np
        >>> from hf_packing.report.layout import padded_batch, padding_free
        >>> lengths = np.array([2, 8, 3, 7])
        >>> round(TimeModel().ratio(padding_free(lengths, 2), padded_batch(lengths, 2)), 3)
        0.667
    """

    hidden_size: int = 2048
    """Width of the model; with a smaller one attention weighs more."""

    @property
    def assumptions(self) -> str:
        """What the ratio takes for granted, in one sentence."""
        return (
            f"time in proportion to 6·h·slots + causal scores with h = {self.hidden_size:,}: one decoder layer, every "
            "kernel equally efficient on every layout, no data loading, no vocabulary head; a backend that builds a "
            "dense mask does not get the packed scores"
        )

    def cost(self, layout: Layout) -> float:
        """Cost of one epoch in score units."""
        return 6 * self.hidden_size * layout.slots + layout.causal_scores

    def ratio(self, layout: Layout, baseline: Layout) -> float:
        """Time of an epoch ÷ time of an epoch of the baseline; 1.0 when there is nothing to do."""
        reference = self.cost(baseline)
        return self.cost(layout) / reference if reference else 1.0

    def step_ratio(self, layout: Layout, baseline: Layout) -> float:
        """Time of a step ÷ time of a step of the baseline."""
        if not layout.steps or not baseline.steps:
            return 1.0
        return self.ratio(layout, baseline) * baseline.steps / layout.steps
