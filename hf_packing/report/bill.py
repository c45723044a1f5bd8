"""The padding bill: one set of sequences in every layout, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import ArrayLike, NDArray

from ..errors import PackingError
from ..plan import PackPlan, plan_packs
from . import layout as layouts_of
from .duration import TimeModel
from .findings import TokenFindings
from .horizon import MAX_LENGTHS, Horizon, horizons, smallest_sufficient
from .layout import Layout
from .page import report_page
from .subject import Subject
from .text import report_text
from .verdict import verdict


__all__ = ["STRATEGIES", "PaddingReport", "padding_report"]

STRATEGIES = ("sequential", "wrapped", "stream", "bfd", "optimal")
SIMPLEST = ("bfd", "optimal", "auto", "stream", "sequential", "wrapped")  # among plans with equally many packs


@dataclass(frozen=True, kw_only=True)
class PaddingReport:
    """What padding costs and what packing saves, for one set of sequences. Made by `padding_report`."""

    sequences: int
    """Sequences given, empty ones included."""
    tokens: int
    """Tokens given, before anything is cut."""
    max_length: int
    """Capacity of a row, in tokens."""
    batch_size: int
    """Rows a batch."""
    seed: int | None
    """Seed of the order of the padded batches; None is the order given."""
    overflow: str
    """What was done with sequences longer than `max_length`."""
    lengths: NDArray[np.int64]
    """The lengths given."""
    layouts: dict[str, Layout]
    """Every layout by its name."""
    best: str
    """The packed layout with the fewest slots of those that cut nothing by themselves."""
    plan: PackPlan
    """The plan behind `best`."""
    horizons: tuple[Horizon, ...]
    """The same sequences at other values of max_length."""
    time_model: TimeModel
    """How step and epoch times were guessed."""
    findings: TokenFindings | None = None
    """EOS, BOS and duplicates, where tokens were given."""

    @property
    def verdict(self) -> str:
        """The report in one sentence."""
        return verdict(self.layouts, self.best, self.plan)

    @property
    def suggested_max_length(self) -> int | None:
        """The smallest max_length of the table that leaves 99.9 % of the tokens whole, or None."""
        return smallest_sufficient(self.horizons)

    def _layout_figures(self, layout: Layout) -> dict[str, Any]:
        baseline, widest = self.layouts["padded_batch"], self.layouts["padded_max"]
        return {
            "title": layout.title,
            "slots": layout.slots,
            "fill": layout.fill,
            "padding": layout.padding,
            "waste": layout.waste,
            "rows": layout.rows,
            "causal_scores": layout.causal_scores,
            "sum_squares": layout.sum_squares,
            "saved": 1 - layout.slots / widest.slots if widest.slots else 0.0,
            "steps_per_epoch": layout.steps,
            "sequences_per_step": layout.sequences_per_step,
            "step_time": self.time_model.step_ratio(layout, baseline),
            "epoch_time": self.time_model.ratio(layout, baseline),
            "sequences_cut": layout.cut,
        }

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain dicts, lists and numbers.

        `layouts[name]` holds `slots`, `fill`, `padding`, `waste`, `rows`, `causal_scores` (padded rows: half the
        square of the row; padding-free and packed: Σ l²/2 over sequences), `sum_squares` (the same without the half),
        `saved` (share of the slots of `padded_max`), `steps_per_epoch`, `sequences_per_step`, and `step_time` and
        `epoch_time` as multiples of `padded_batch` under `assumptions`.
        """
        return {
            "sequences": self.sequences,
            "tokens": self.tokens,
            "max_length": self.max_length,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "overflow": self.overflow,
            "layouts": {name: self._layout_figures(layout) for name, layout in self.layouts.items()},
            "best": self.best,
            "lower_bound": self.plan.lower_bound,
            "ledger": self.plan.ledger.to_dict(),
            "max_lengths": [_plain(asdict(row)) for row in self.horizons],
            "suggested_max_length": self.suggested_max_length,
            "findings": None if self.findings is None else asdict(self.findings),
            "assumptions": self.time_model.assumptions,
            "verdict": self.verdict,
        }

    def to_json(self, path: str | Path | None = None, *, indent: int | None = 2) -> str:
        """`to_dict` as JSON text, also written to `path` where one is given."""
        text = json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_text(self) -> str:
        """The report for a terminal, about 40 lines."""
        return report_text(self)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained page, readable on a phone, and return its path."""
        target = Path(path)
        target.write_text(report_page(self), encoding="utf-8")
        return target


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}


def padding_report(
    data: ArrayLike | Dataset,
    max_length: int = 2048,
    batch_size: int = 8,
    *,
    seed: int | None = None,
    overflow: str = "truncate",
    strategies: tuple[str, ...] | None = None,
    max_lengths: tuple[int, ...] = MAX_LENGTHS,
    hidden_size: int = 2048,
    column: str = "input_ids",
    tokenizer: Any = None,
    eos_token_id: int | Sequence[int] | None = None,
    bos_token_id: int | None = None,
) -> PaddingReport:
    """Lay the same sequences out in every layout and count slots, padding, attention scores and steps.

    Args:
        data (`[N]` integers, or `datasets.Dataset`): tokens of each sequence, or tokenised rows; of packed rows (with
            `seq_lengths`) the sequences inside.
        max_length (`int`, *optional*, defaults to `2048`): capacity of a row, in tokens.
        batch_size (`int`, *optional*, defaults to `8`): rows a batch, for padded rows and for packs alike.
        seed (`int`, *optional*): shuffles the order in which padded batches are filled; None keeps the order given.
        overflow (`str`, *optional*, defaults to `"truncate"`): what happens to longer sequences, as in `plan_packs`.
            All layouts are made of the pieces that it leaves.
        strategies (`tuple[str, ...]`, *optional*): strategies of `plan_packs` to compare; defaults to all of them.
        max_lengths (`tuple[int, ...]`, *optional*): values of max_length for the table that helps to choose it.
        hidden_size (`int`, *optional*, defaults to `2048`): width of the model, for the guess of the time.
        column (`str`, *optional*, defaults to `"input_ids"`): token column of a dataset.
        tokenizer (*optional*): names the EOS and BOS to look for in a dataset.
        eos_token_id (`int` or list, *optional*): the same without a tokenizer, or other than the tokenizer's.
        bos_token_id (`int`, *optional*): likewise.

    Returns:
        `PaddingReport`, with `to_text()`, `to_dict()`, `to_json()` and `to_html(path)`.

    Raises:
        PackingError: lengths that are not integers or negative, or a longer sequence with `overflow="error"`.

    Example:

        >>> bill = padding_report([2048, 512, 256, 128], max_length=2048)
        >>> padded, packed = bill.layouts["padded_max"], bill.layouts["packed_bfd"]
        >>> padded.slots, padded.padding, packed.slots, packed.padding
        (8192, 5248, 4096, 1152)
        >>> bill.plan.lower_bound
        2
    """
    if batch_size < 1:
        raise PackingError(f"batch_size is {batch_size}; a batch needs at least 1 row.")
    if tokenizer is not None:
        eos_token_id = tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        bos_token_id = tokenizer.bos_token_id if bos_token_id is None else bos_token_id
    subject = Subject.of(data, column, eos_token_id, bos_token_id)
    lengths, targets = subject.lengths, subject.count_targets
    reference = plan_packs(lengths, max_length, strategy="bfd", overflow=overflow, count_targets=targets)
    in_order = np.lexsort((reference.starts, reference.sequence_ids))
    pieces = reference.lengths[in_order]
    if seed is not None:
        pieces = np.random.default_rng(seed).permutation(pieces)
    plans = {
        strategy: reference
        if strategy == "bfd"
        else plan_packs(lengths, max_length, strategy=strategy, overflow=overflow, count_targets=targets)
        for strategy in strategies or STRATEGIES
    }
    rows = [
        layouts_of.padded_max(pieces, max_length, batch_size),
        layouts_of.padded_batch(pieces, batch_size),
        layouts_of.length_grouped(pieces, batch_size),
        layouts_of.length_buckets(pieces, batch_size),
        layouts_of.padding_free(pieces, batch_size),
        *(layouts_of.packed(plan, strategy, batch_size) for strategy, plan in plans.items()),
    ]
    # Cutting sequences anywhere always fills the packs; it is a layout to compare, never the recommendation.
    whole = [strategy for strategy in plans if strategy != "wrapped"] or list(plans)
    best = min(whole, key=lambda strategy: (plans[strategy].num_packs, SIMPLEST.index(strategy)))
    return PaddingReport(
        sequences=lengths.size,
        tokens=int(lengths.sum()),
        max_length=max_length,
        batch_size=batch_size,
        seed=seed,
        overflow=overflow,
        lengths=lengths,
        layouts={row.name: row for row in rows},
        best=f"packed_{best}",
        plan=plans[best],
        horizons=horizons(
            lengths, (*max_lengths, max_length), "truncate" if overflow == "error" else overflow, targets
        ),
        time_model=TimeModel(hidden_size=hidden_size),
        findings=subject.findings,
    )
