"""EdgeReport: how the sequences of a dataset begin and end, because a missing EOS teaches a model never to stop."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .preparation import Preparation
from .source import SequenceSource


__all__ = ["EdgeReport"]

logger = logging.getLogger(__name__)

_USUAL_END = 0.5
"""Share of sequences that end in the same token from which on that token looks like the template's own end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EdgeReport:
    """Counts over the stored sequences, before anything is added; None where no id was given to look for.

    Example:

        >>> import pyarrow as pa
        >>> table = pa.table({"input_ids": [[1, 5, 2], [1, 1, 5, 7], [5, 2, 2]]})
        >>> source = SequenceSource(table, preparation=Preparation.resolve(ensure_bos=1, eos_token_id=2))
        >>> report = EdgeReport.of_source(source)
        >>> report.missing_bos, report.doubled_bos, report.missing_eos, report.doubled_eos
        (1, 1, 1, 1)
    """

    preparation: Preparation
    sequences: int
    """Sequences with at least one token."""
    missing_bos: int | None
    doubled_bos: int | None
    missing_eos: int | None
    """Sequences that end in none of the end ids."""
    doubled_eos: int | None
    """Sequences that end in two of them."""
    usual_end: int | None
    """The token that most sequences end in."""
    usual_end_share: float
    """Share of the sequences that end in it, 0 to 1."""

    @classmethod
    def of_source(cls, source: SequenceSource) -> EdgeReport:
        """Reads the first two and the last two stored tokens of every sequence."""
        preparation = source.preparation
        last = source.token_at_end(1)
        some = last >= 0
        missing_bos = doubled_bos = missing_eos = doubled_eos = None
        if preparation.bos_id is not None:
            first = source.token_at_start(0)
            begins = first == preparation.bos_id
            missing_bos = int((~begins & some).sum())
            doubled_bos = int((begins & (source.token_at_start(1) == preparation.bos_id)).sum())
        if preparation.eos_ids:
            ends = np.isin(last, preparation.eos_ids)
            missing_eos = int((~ends & some).sum())
            doubled_eos = int((ends & np.isin(source.token_at_end(2), preparation.eos_ids)).sum())
        usual_end, share = _most_common(last[some])
        return cls(
            preparation=preparation,
            sequences=int(some.sum()),
            missing_bos=missing_bos,
            doubled_bos=doubled_bos,
            missing_eos=missing_eos,
            doubled_eos=doubled_eos,
            usual_end=usual_end,
            usual_end_share=share,
        )

    def to_text(self) -> str:
        """One line a finding that is not 0; empty where all is as it should be.

        Example:

            >>> import pyarrow as pa
            >>> table = pa.table({"input_ids": [[5, 2], [5, 6]]})
            >>> source = SequenceSource(table, preparation=Preparation(eos_ids=(2,)))
            >>> print(EdgeReport.of_source(source).to_text())
            1 of 2 sequences (50.0 %) do not end in EOS (2).
        """
        bos, eos = self.preparation.bos_id, " or ".join(map(str, self.preparation.eos_ids))
        findings = (
            (self.missing_bos, f"do not begin with BOS ({bos})"),
            (self.doubled_bos, f"begin with two BOS ({bos})"),
            (self.missing_eos, f"do not end in EOS ({eos})"),
            (self.doubled_eos, f"end in two EOS ({eos})"),
        )
        lines = [
            f"{count:,} of {self.sequences:,} sequences ({count / self.sequences:.1%}) {what}.".replace("%", " %")
            for count, what in findings
            if count
        ]
        if self._ends_otherwise():
            lines.append(
                f"{self.usual_end_share:.0%} of the sequences end in token {self.usual_end}, not in the end token "
                f"{self.preparation.eos_ids[0]}: the chat template probably closes with {self.usual_end}, and "
                f"generation stops on another token. If so, put it first: eos_token_id=({self.usual_end}, "
                f"{self.preparation.eos_ids[0]}).".replace("% of", " % of")
            )
        return "\n".join(lines)

    def _ends_otherwise(self) -> bool:
        ids = self.preparation.eos_ids
        return bool(ids) and self.usual_end != ids[0] and self.usual_end_share > _USUAL_END

    def log(self) -> None:
        """A warning with the findings, if there are any."""
        if text := self.to_text():
            logger.warning("%s", text)


def _most_common(tokens: NDArray[np.int64]) -> tuple[int | None, float]:
    if not tokens.size:
        return None, 0.0
    values, counts = np.unique(tokens, return_counts=True)
    at = int(counts.argmax())
    return int(values[at]), float(counts[at] / tokens.size)
