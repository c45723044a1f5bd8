"""What a plan was asked for, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import PackingError
from .policy import Overflow, Strategy


__all__ = ["PlanSettings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings:
    """Arguments of [`plan_packs`] other than the lengths.

    Raises:
        PackingError: for a value out of range, or a `multiple_of` that does not divide `max_length`.

    Example:

        >>> PlanSettings(max_length=8, strategy=Strategy.BFD, overflow=Overflow.SPLIT, multiple_of=4).max_sequences
    """

    max_length: int
    strategy: Strategy
    overflow: Overflow
    max_sequences: int | None = None
    multiple_of: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_length", 1), ("multiple_of", 1), ("max_sequences", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None or name in ("max_length", "multiple_of"):
                object.__setattr__(self, name, _whole(name, value, least))
        if self.max_length % self.multiple_of:
            below = self.max_length // self.multiple_of * self.multiple_of
            fits = f"{below} or {below + self.multiple_of}" if below else f"{self.multiple_of}"
            raise PackingError(
                f"multiple_of={self.multiple_of} does not divide max_length={self.max_length}, so that a full pack "
                f"could not be aligned; use max_length={fits}."
            )


def _whole(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise PackingError(f"{name}={value!r}; it is a whole number of at least {least}.")
    return int(value)
