"""Names of the choices a plan can make: how sequences are placed, and what happens to those that are too long."""

from __future__ import annotations

from enum import StrEnum

from ..errors import PackingError


__all__ = ["Overflow", "Strategy", "parse_overflow", "parse_strategy"]


class Strategy(StrEnum):
    """How sequences are placed into packs."""

    BFD = "bfd"
    """Best-fit decreasing on the histogram of lengths: milliseconds, often within 0.1 % of the best. Under
    `max_sequences`, packs of equal number instead where those are fewer."""

    OPTIMAL = "optimal"
    """Best-fit decreasing, then exact fill and column generation until the proven lower bound is met."""

    AUTO = "auto"
    """Best-fit decreasing, then the optimal search with a small budget while packs are above the bound."""

    STREAM = "stream"
    """A bounded buffer: nearly keeps the order, no sequence waits longer than two buffers."""

    SEQUENTIAL = "sequential"
    """Next fit: keeps the order strictly, opens a new pack when the next sequence does not fit."""

    WRAPPED = "wrapped"
    """Fills every pack by cutting sequences anywhere, in order; every piece is its own sequence afterwards."""


class Overflow(StrEnum):
    """What happens to a sequence longer than `max_length`."""

    ERROR = "error"
    """Refuse, naming the first such sequence."""

    TRUNCATE = "truncate"
    """Keep the first `max_length` tokens."""

    TRUNCATE_LEFT = "truncate_left"
    """Keep the last `max_length` tokens."""

    SPLIT = "split"
    """Cut into pieces of `max_length` and one rest; every token is kept."""

    DROP = "drop"
    """Leave the sequence out and count its tokens as dropped."""

    OWN_PACK = "own_pack"
    """Give the sequence a pack of its own, longer than the capacity."""


def parse_strategy(value: str) -> Strategy:
    """The strategy of that name; PackingError lists the names there are."""
    if value in list(Strategy):
        return Strategy(value)
    raise PackingError(f"strategy={value!r} is not known; choose one of {', '.join(Strategy)}.")


def parse_overflow(value: str) -> Overflow:
    """The overflow policy of that name; PackingError lists the names there are."""
    if value in list(Overflow):
        return Overflow(value)
    raise PackingError(f"overflow={value!r} is not known; choose one of {', '.join(Overflow)}.")
