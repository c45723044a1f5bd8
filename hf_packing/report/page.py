"""The padding bill as one self-contained page: no script, no network, readable on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from .drawing import Block, bars, histogram, rows_of_blocks
from .table import percent


if TYPE_CHECKING:
    from .bill import PaddingReport


__all__ = ["report_page"]

DRAWN_ROWS = 14


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    """A table whose cells carry their heading, so that a narrow screen can stack them."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = []
    for number, row in enumerate(rows):
        cells = "".join(f'<td data-label="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(header, row))
        mark = ' class="chosen"' if number == chosen else ""
        body.append(f"<tr{mark}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _layout_table(report: PaddingReport) -> str:
    header = ["layout", "slots", "fill", "padding", "rows", "scores", "steps", "seq/step", "step×", "epoch×"]
    rows = [
        [
            layout.title,
            f"{layout.slots:,}",
            percent(layout.fill),
            f"{layout.padding:,}",
            f"{layout.rows:,}",
            f"{layout.causal_scores:.2e}" if layout.causal_scores >= 1e7 else f"{layout.causal_scores:,.0f}",
            f"{layout.steps:,}",
            f"{layout.sequences_per_step:.1f}",
            f"{report.time_model.step_ratio(layout, report.layouts['padded_batch']):.2f}",
            f"{report.time_model.ratio(layout, report.layouts['padded_batch']):.2f}",
        ]
        for layout in report.layouts.values()
    ]
    return _table(header, rows, list(report.layouts).index(report.best))


def _horizon_table(report: PaddingReport) -> str:
    header = ["max_length", "longer", "tokens beyond", "kept", "packs", "proven bound", "fill", "padded fill"]
    rows = [
        [
            f"{row.max_length:,}",
            f"{row.sequences_longer:,}",
            f"{row.tokens_beyond:,}",
            percent(row.kept),
            f"{row.packs:,}",
            f"{row.lower_bound:,}",
            percent(row.fill),
            percent(row.padded_fill),
        ]
        for row in report.horizons
    ]
    return _table(header, rows, [row.max_length for row in report.horizons].index(report.max_length))


def _padded_rows(report: PaddingReport) -> str:
    """The first batches as they are padded today: a row is as wide as the longest of its batch."""
    lengths = np.minimum(report.lengths[report.lengths > 0], report.max_length)[:DRAWN_ROWS]
    rows = [[Block(int(length), 0, f"{length:,} tokens")] for length in lengths]
    label = f"{len(rows)} sequences, each in a row of its own"
    return rows_of_blocks(rows, report.max_length, label)


def _packs(report: PaddingReport) -> str:
    """A sample of packs, evenly spread over the plan."""
    plan = report.plan
    chosen = np.unique(np.linspace(0, plan.num_packs - 1, min(DRAWN_ROWS, plan.num_packs)).astype(int))
    rows, colour = [], 0
    for number in chosen.tolist():
        blocks = []
        for sequence, _, length in zip(*plan[number]):
            blocks.append(Block(int(length), colour, f"pack {number}: sequence {sequence}, {length:,} tokens"))
            colour += 1
        rows.append(blocks)
    width = max(report.max_length, int(plan.lengths.max(initial=0)))
    return rows_of_blocks(rows, width, f"{len(rows)} of {plan.num_packs:,} packs with their sequences")


def _cards(report: PaddingReport) -> str:
    ledger, per_batch, packed = report.plan.ledger, report.layouts["padded_batch"], report.layouts[report.best]
    lost = ledger.tokens_truncated + ledger.tokens_dropped
    figures = [
        (percent(per_batch.waste), "of padded batches is padding"),
        (percent(packed.waste), "of packs is padding"),
        (f"{per_batch.slots / packed.slots:.2f}×" if packed.slots else "–", "fewer slots than padded batches"),
        (f"{report.plan.num_packs:,}", f"packs, proven bound {report.plan.lower_bound:,}"),
        (f"{lost:,}", f"tokens lost, {percent(lost / ledger.tokens_in if ledger.tokens_in else 0.0)}"),
    ]
    cards = "".join(
        f'<div class="card"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in figures
    )
    return f'<div class="cards">{cards}</div>'


def _figure(drawing: str, caption: str) -> str:
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>" if drawing else ""


def _pictures(report: PaddingReport) -> str:
    if not report.plan.num_packs:
        return ""
    fills = [(layout.title, layout.fill, percent(layout.fill)) for layout in report.layouts.values()]
    best = report.layouts[report.best].title
    return "".join(
        [
            "<h2>How full the slots are</h2>",
            _figure(
                bars(fills, "Fill of each layout", best), "Real tokens ÷ slots, each layout of the same sequences."
            ),
            "<h2>How long the sequences are</h2>",
            _figure(
                histogram(report.lengths, report.max_length),
                "Sequences by length; those right of the dashed line do not fit. The last bar holds all longer ones.",
            ),
            "<h2>Before and after</h2>",
            _figure(
                _padded_rows(report),
                f"Padded: the first sequences, one a row of {report.max_length:,} slots; grey is padding.",
            ),
            _figure(
                _packs(report),
                f"{best.capitalize()}: a sample of {min(DRAWN_ROWS, report.plan.num_packs):,} of "
                f"{report.plan.num_packs:,} packs; a colour is one sequence, and none sees another.",
            ),
        ]
    )


def _ledger(report: PaddingReport) -> str:
    ledger = report.plan.ledger
    header = ["", "in", "packed", "truncated", "dropped", "split", "empty", "padding"]
    rows: list[tuple[str | int, ...]] = [
        (
            "tokens",
            ledger.tokens_in,
            ledger.tokens_packed,
            ledger.tokens_truncated,
            ledger.tokens_dropped,
            "–",
            "–",
            ledger.tokens_padding,
        ),
        (
            "sequences",
            ledger.sequences_in,
            ledger.sequences_packed,
            ledger.sequences_truncated,
            ledger.sequences_dropped,
            ledger.sequences_split,
            ledger.sequences_empty,
            "–",
        ),
    ]
    return _table(header, [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows])


def _findings(report: PaddingReport) -> str:
    if report.findings is None:
        return ""
    lines = "".join(f"<li>{escape(line)}</li>" for line in report.findings.lines())
    return f"<h2>What the tokens show</h2>\n<ul>{lines}</ul>"


def report_page(report: PaddingReport) -> str:
    """The page as HTML text."""
    order = "in the order given" if report.seed is None else f"shuffled with seed {report.seed}"
    facts = (
        f"{report.sequences:,} sequences, {report.tokens:,} tokens; max_length {report.max_length:,}; batches of "
        f"{report.batch_size:,} {order}; overflow {report.overflow}"
    )
    suggestion = (
        f"<p>{report.suggested_max_length:,} is the smallest here that keeps 99.9 % of the tokens.</p>"
        if report.suggested_max_length is not None
        else ""
    )
    style = files("hf_packing.report").joinpath("page.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Padding bill</title>
<style>
{style}</style>
</head>
<body>
<h1>Padding bill</h1>
<p class="facts">{escape(facts)}</p>
<p class="verdict">{escape(report.verdict)}</p>
{_cards(report)}
{_pictures(report)}
<h2>Every layout</h2>
{_layout_table(report)}
<p class="note">Scores are those of causal attention, half squares: of the row where rows are padded, of every sequence
where they are not.
step× and epoch× are guesses against the batch's longest: {escape(report.time_model.assumptions)}.</p>
<h2>Every token accounted for</h2>
{_ledger(report)}
{_findings(report)}
<h2>Which max_length</h2>
{_horizon_table(report)}
{suggestion}
</body>
</html>
"""
