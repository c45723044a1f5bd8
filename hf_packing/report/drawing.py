"""The pictures of the report as inline SVG: bars, a histogram, and packs with their sequences as blocks.

Horizontal positions are percentages and text is in pixels, so a drawing takes the width it gets, from a phone to a
desk, and its letters stay the same size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray


__all__ = ["Block", "bars", "histogram", "rows_of_blocks"]

COLOURS = 6  # .c0 to .c5 in page.css
BINS = 40


@dataclass(frozen=True, slots=True)
class Block:
    """One sequence in a row of slots."""

    length: int
    colour: int
    label: str


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f'<svg role="img" aria-label="{escape(label)}" width="100%" height="{height}">\n{body}\n</svg>'


def _rect(left: float, top: float, width: float, height: float, style: str, title: str = "") -> str:
    inner = f"<title>{escape(title)}</title>" if title else ""
    place = f'x="{left:.3f}%" y="{top:.1f}" width="{width:.3f}%" height="{height:.1f}"'
    return f'<rect class="{style}" {place}>{inner}</rect>'


def _text(left: float, top: float, text: str, anchor: str = "start", style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{left:.3f}%" y="{top:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def bars(shares: Sequence[tuple[str, float, str]], label: str, highlight: str = "") -> str:
    """Horizontal bars from 0 to 100 %: (name, share, text at the right end) each."""
    parts = []
    for number, (name, share, text) in enumerate(shares):
        top = 40 * number
        parts.append(_text(0, top + 13, name))
        parts.append(_text(100, top + 13, text, "end", "figure"))
        parts.append(_rect(0, top + 19, 100, 12, "slot"))
        parts.append(_rect(0, top + 19, 100 * share, 12, "good" if name == highlight else "bar", f"{name}: {text}"))
    return _svg(40 * len(shares), label, parts)


def _edges(lengths: NDArray[np.int64], max_length: int) -> tuple[NDArray[np.float64], bool]:
    """Bin edges that show both the lengths and the capacity, and whether they are spaced by a factor."""
    top = float(max(max_length, int(np.quantile(lengths, 0.995)))) * 1.08 + 1
    if top > 8 * max(1.0, float(np.median(lengths))):
        return np.geomspace(max(1.0, float(lengths.min()) * 0.9), top, BINS + 1), True
    return np.linspace(0, top, BINS + 1), False


def _ticks(low: float, high: float, geometric: bool) -> list[int]:
    if geometric:
        powers = [2**power for power in range(40) if low <= 2**power <= high]
        return powers[:: max(1, -(-len(powers) // 5))]
    step = 10 ** np.floor(np.log10(high))
    step = next(part for part in (step / 5, step / 2, step, step * 2) if high / part <= 5)
    return [int(tick) for tick in np.arange(0, high, step)]


def histogram(lengths: NDArray[np.int64], max_length: int) -> str:
    """How many sequences have which length, with the capacity as a line; longer ones are coloured as cut."""
    lengths = lengths[lengths > 0]
    if not lengths.size:
        return ""
    edges, geometric = _edges(lengths, max_length)
    counts, _ = np.histogram(np.minimum(lengths, edges[-1]), edges)
    scale = np.log if geometric else np.asarray
    low, high = float(scale(edges[0])), float(scale(edges[-1]))

    def place(value: float) -> float:
        return 100 * (float(scale(value)) - low) / (high - low)

    height, base = 198, 160
    tallest = counts.max()
    parts = []
    for left, right, count in zip(edges, edges[1:], counts):
        if not count:
            continue
        tall = max(1.5, 125 * count / tallest)
        style = "cut" if left >= max_length else "bar"
        title = f"{int(np.ceil(left)):,} to {int(right):,} tokens: {count:,} sequences"
        parts.append(_rect(place(left), base - tall, max(0.2, place(right) - place(left) - 0.3), tall, style, title))
    parts.append(f'<line class="axis" x1="0" x2="100%" y1="{base}" y2="{base}"/>')
    for tick in _ticks(float(edges[0]), float(edges[-1]), geometric):
        at = place(tick) if tick else 0.0
        parts.append(_text(at, base + 16, f"{tick:,}", "start" if at < 5 else "middle" if at < 93 else "end", "tick"))
    at = place(max_length)
    parts.append(f'<line class="limit" x1="{at:.3f}%" x2="{at:.3f}%" y1="18" y2="{base}"/>')
    parts.append(_text(at, 13, f"max_length {max_length:,}", "end" if at > 50 else "start", "figure"))
    name = "tokens in a sequence" + (", logarithmic scale" if geometric else "")
    parts.append(_text(0, height - 2, name, style="tick"))
    return _svg(height, f"Histogram of {lengths.size:,} sequence lengths, capacity {max_length:,}", parts)


def rows_of_blocks(rows: Sequence[Sequence[Block]], width: int, label: str) -> str:
    """Rows of `width` slots, each sequence a coloured block, the rest empty slots."""
    parts = []
    for number, row in enumerate(rows):
        top = 20 * number
        parts.append(_rect(0, top + 2, 100, 14, "slot"))
        left = 0
        for block in row:
            parts.append(
                _rect(
                    100 * left / width,
                    top + 2,
                    100 * block.length / width,
                    14,
                    f"c{block.colour % COLOURS}",
                    block.label,
                )
            )
            left += block.length
    return _svg(20 * len(rows), label, parts)
