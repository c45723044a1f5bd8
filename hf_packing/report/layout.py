"""Ways to lay sequences out in memory, and what each costs: slots, padding, attention scores, optimizer steps.

Every function takes the lengths of the sequences and counts; no token is touched. One example runs through this
page: lengths [2, 8, 3, 7], batches of 2, max_length 10

    padded_max       4 rows of 10                 40 slots
    padded_batch     [2, 8] [3, 7]                2·8 + 2·7 = 30 slots
    length_grouped   [2, 3] [7, 8]                2·3 + 2·8 = 22 slots
    padding_free     the tokens and nothing else  20 slots
    packed           8+2 and 7+3                  2·10 = 20 slots
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..plan import PackPlan


__all__ = ["Layout", "length_buckets", "length_grouped", "packed", "padded_batch", "padded_max", "padding_free"]

GROUP_BATCHES = 50  # batches sorted together by length_grouped; as many buckets in length_buckets


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What one layout of the same sequences costs for one pass over them."""

    name: str
    """Key in the report, such as `padded_batch`."""
    title: str
    """The same for people."""
    sequences: int
    """Sequences (or pieces of them) that are laid out."""
    tokens: int
    """Real tokens."""
    slots: int
    """Token positions that the hardware computes, real or not."""
    rows: int
    """Rows of all batches together; a padding-free batch is one row."""
    steps: int
    """Batches of `batch_size` rows (padding-free: of `batch_size` sequences) in one epoch."""
    sum_squares: int
    """Query-key pairs: Σ row² where rows are padded, Σ l² over sequences where they are not."""
    cut: int = 0
    """Sequences that this layout cuts in two or more pieces."""

    @property
    def padding(self) -> int:
        """Slots without a real token."""
        return self.slots - self.tokens

    @property
    def fill(self) -> float:
        """Real tokens ÷ slots (η); 1.0 when there is nothing to lay out."""
        return self.tokens / self.slots if self.slots else 1.0

    @property
    def waste(self) -> float:
        """Share of the slots that is padding, 1 − fill."""
        return 1.0 - self.fill

    @property
    def causal_scores(self) -> float:
        """Attention scores under a causal mask, counted as half the square: l²/2.

        The exact count with the diagonal is l(l + 1)/2 and without it l(l − 1)/2; the half square lies between them.
        """
        return self.sum_squares // 2 if self.sum_squares % 2 == 0 else self.sum_squares / 2

    @property
    def sequences_per_step(self) -> float:
        """Mean number of sequences in a batch."""
        return self.sequences / self.steps if self.steps else 0.0


def sum_of_squares(lengths: NDArray[np.int64], times: NDArray[np.int64] | None = None) -> int:
    """Σ times·length², exact also where int64 would wrap.

    Example:

        >>> sum_of_squares(np.array([2, 8, 3, 7]))
        126
        >>> sum_of_squares(np.array([8, 7]), times=np.array([2, 2]))
        226
    """
    counts = np.ones_like(lengths) if times is None else times
    if not lengths.size:
        return 0
    if float(lengths.max()) ** 2 * float(counts.sum()) < 2**62:
        return int((lengths * lengths * counts).sum())
    return sum(int(length) ** 2 * int(count) for length, count in zip(lengths, counts))


def _steps(rows: int, batch_size: int) -> int:
    return -(-rows // batch_size)


def _batches(lengths: NDArray[np.int64], batch_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Longest sequence and number of rows of each batch, batches taken in the order given."""
    # For lengths [2, 8, 3, 7, 5] and batches of 2: starts [0, 2, 4], longest [8, 7, 5], rows [2, 2, 1].
    starts = np.arange(0, lengths.size, batch_size)
    if not starts.size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    longest = np.maximum.reduceat(lengths, starts)
    rows = np.minimum(batch_size, lengths.size - starts)
    return longest, rows


def _padded(name: str, title: str, lengths: NDArray[np.int64], batch_size: int) -> Layout:
    longest, rows = _batches(lengths, batch_size)
    return Layout(
        name=name,
        title=title,
        sequences=lengths.size,
        tokens=int(lengths.sum()),
        slots=int((longest * rows).sum()),
        rows=lengths.size,
        steps=longest.size,
        sum_squares=sum_of_squares(longest, rows),
    )


def padded_max(lengths: NDArray[np.int64], max_length: int, batch_size: int) -> Layout:
    """Every sequence padded to `max_length`: waste = 1 − Σl / (N·L).

    Example:

        >>> bill = padded_max(np.array([2048, 512, 256, 128]), 2048, 8)
        >>> bill.slots, bill.padding, round(bill.waste, 3)
        (8192, 5248, 0.641)
    """
    # A sequence that overflow="own_pack" leaves longer than max_length would widen every row.
    width = max(max_length, int(lengths.max(initial=0)))
    return Layout(
        name="padded_max",
        title="padded to max_length",
        sequences=lengths.size,
        tokens=int(lengths.sum()),
        slots=lengths.size * width,
        rows=lengths.size,
        steps=_steps(lengths.size, batch_size),
        sum_squares=lengths.size * width * width,
    )


def padded_batch(lengths: NDArray[np.int64], batch_size: int) -> Layout:
    """Every sequence padded to the longest of its batch, batches in the order given.

    Example:

        >>> bill = padded_batch(np.array([2, 8, 3, 7]), 2)
        >>> bill.slots, round(bill.fill, 3), bill.sum_squares
        (30, 0.667, 226)
    """
    return _padded("padded_batch", "padded to the batch's longest", lengths, batch_size)


def length_grouped(lengths: NDArray[np.int64], batch_size: int) -> Layout:
    """Windows of 50 batches, each sorted by length before it is cut into batches: order stays random in the large.

    Example:

        >>> bill = length_grouped(np.array([2, 8, 3, 7]), 2)
        >>> bill.slots, round(bill.fill, 3)
        (22, 0.909)
    """
    window = GROUP_BATCHES * batch_size
    # Sorting by (window, length) sorts every window on its own; lexsort's last key is the first to count.
    grouped = lengths[np.lexsort((lengths, np.arange(lengths.size) // window))]
    return _padded("length_grouped", f"length-grouped, windows of {GROUP_BATCHES} batches", grouped, batch_size)


def length_buckets(lengths: NDArray[np.int64], batch_size: int, buckets: int = GROUP_BATCHES) -> Layout:
    """The sorted corpus cut into `buckets` of equally many sequences, each padded to its bucket's longest.

    No more buckets than batches are made, so that a bucket fills at least one batch.

    Example:

        >>> length_buckets(np.array([2, 8, 3, 7]), 2).slots
        22
    """
    count = max(1, min(buckets, _steps(lengths.size, batch_size)))
    parts = [part for part in np.array_split(np.sort(lengths), count) if part.size]
    longest = np.array([part[-1] for part in parts], np.int64)
    rows = np.array([part.size for part in parts], np.int64)
    return Layout(
        name="length_buckets",
        title=f"{buckets} length buckets",
        sequences=lengths.size,
        tokens=int(lengths.sum()),
        slots=int((longest * rows).sum()),
        rows=lengths.size,
        steps=sum(_steps(part.size, batch_size) for part in parts),
        sum_squares=sum_of_squares(longest, rows),
    )


def padding_free(lengths: NDArray[np.int64], batch_size: int) -> Layout:
    """The sequences of a batch one after the other in one row, nothing between them.

    Example:

        >>> bill = padding_free(np.array([2, 8, 3, 7]), 2)
        >>> bill.slots, bill.fill, bill.sum_squares
        (20, 1.0, 126)
    """
    tokens = int(lengths.sum())
    steps = _steps(lengths.size, batch_size)
    return Layout(
        name="padding_free",
        title="padding-free, not packed",
        sequences=lengths.size,
        tokens=tokens,
        slots=tokens,
        rows=steps,
        steps=steps,
        sum_squares=sum_of_squares(lengths),
    )


def packed(plan: PackPlan, strategy: str, batch_size: int) -> Layout:
    """The packs of a plan, each filled up to `max_length`; attention stays inside a sequence.

    Example:

        >>> from hf_packing.plan import plan_packs
        >>> bill = packed(plan_packs([2, 8, 3, 7], 10), "bfd", 2)
        >>> bill.slots, bill.rows, bill.sum_squares
        (20, 2, 126)
    """
    return Layout(
        name=f"packed_{strategy}",
        title=f"packed, {strategy}",
        sequences=plan.lengths.size,
        tokens=plan.ledger.tokens_packed,
        slots=plan.ledger.slots,
        rows=plan.num_packs,
        steps=_steps(plan.num_packs, batch_size),
        sum_squares=sum_of_squares(plan.lengths),
        cut=plan.ledger.sequences_split,
    )
