"""Which of the processes this one is, for data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


__all__ = ["Ranks"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that train on different data; `copies` ranks of one tensor-parallel group share theirs."""

    count: int
    rank: int
    copies: int

    @classmethod
    def of(cls, trainer: Any) -> Ranks:
        """Four processes with tensor parallelism of 2 are two data ranks: 0, 0, 1, 1."""
        accelerator, copies = trainer.accelerator, trainer.get_tp_size()
        return cls(count=accelerator.num_processes // copies, rank=accelerator.process_index // copies, copies=copies)
