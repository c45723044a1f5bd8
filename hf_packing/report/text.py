"""The padding bill for a terminal."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from .table import percent, text_table


if TYPE_CHECKING:
    from .bill import PaddingReport


__all__ = ["report_text"]

WIDTH = 118  # of running text, in characters


def _layout_table(report: PaddingReport) -> str:
    header = ["layout", "slots", "fill", "padding", "rows", "causal scores", "steps", "seq/step", "step×", "epoch×"]
    rows = []
    for name, figures in report.to_dict()["layouts"].items():
        rows.append(
            [
                figures["title"] + (" *" if name == report.best else ""),
                figures["slots"],
                percent(figures["fill"]),
                figures["padding"],
                figures["rows"],
                f"{figures['causal_scores']:,.0f}",
                figures["steps_per_epoch"],
                f"{figures['sequences_per_step']:.1f}",
                f"{figures['step_time']:.2f}",
                f"{figures['epoch_time']:.2f}",
            ]
        )
    return text_table(header, rows, indent=2)


def _horizon_table(report: PaddingReport) -> str:
    header = ["max_length", "longer", "tokens beyond", "kept", "packs", "bound", "fill", "padded fill"]
    rows = [
        [
            f"{row.max_length:,}" + (" *" if row.max_length == report.max_length else ""),
            row.sequences_longer,
            row.tokens_beyond,
            percent(row.kept),
            row.packs,
            row.lower_bound,
            percent(row.fill),
            percent(row.padded_fill),
        ]
        for row in report.horizons
    ]
    return text_table(header, rows, indent=2)


def _ledger_lines(report: PaddingReport) -> list[str]:
    ledger = report.plan.ledger
    lines = [
        f"  tokens in {ledger.tokens_in:,} = packed {ledger.tokens_packed:,} + truncated {ledger.tokens_truncated:,} "
        f"+ dropped {ledger.tokens_dropped:,}; slots {ledger.slots:,} = packed + padding {ledger.tokens_padding:,}",
        f"  sequences in {ledger.sequences_in:,} = packed {ledger.sequences_packed:,} + dropped "
        f"{ledger.sequences_dropped:,} + empty {ledger.sequences_empty:,}; of the packed, truncated "
        f"{ledger.sequences_truncated:,}, split {ledger.sequences_split:,}",
    ]
    return lines


def _findings_lines(report: PaddingReport) -> list[str]:
    if report.findings is None:
        return []
    return ["What the tokens show:", *(f"  {line}" for line in report.findings.lines()), ""]


def report_text(report: PaddingReport) -> str:
    """The whole report as plain text: verdict, layouts, ledger, and the table of max_length."""
    order = "in the order given" if report.seed is None else f"shuffled with seed {report.seed}"
    parts = [
        f"Padding bill: {report.sequences:,} sequences, {report.tokens:,} tokens, max_length {report.max_length:,}, "
        f"batches of {report.batch_size:,} {order}, overflow {report.overflow!r}",
        "",
        *wrap(report.verdict, width=WIDTH),
        "",
        _layout_table(report),
        *wrap(
            f"* {report.plan.num_packs:,} packs, proven bound {report.plan.lower_bound:,}. Causal scores are half "
            f"squares, l²/2. step× and epoch× are guesses against the batch's longest: "
            f"{report.time_model.assumptions}. `wrapped` cuts sequences anywhere instead of handling overflow.",
            width=WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
        ),
        "",
        "Every token accounted for:",
        *_ledger_lines(report),
        "",
        *_findings_lines(report),
        "Which max_length (packed by best fit; kept: share of the tokens within max_length)",
        _horizon_table(report),
    ]
    if report.suggested_max_length is not None:
        parts.append(f"  {report.suggested_max_length:,} is the smallest here that keeps 99.9 % of the tokens.")
    return "\n".join(parts)
