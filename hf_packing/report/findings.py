"""What the tokens themselves show before packing: missing or doubled EOS and BOS, and rows that repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.edges import EdgeReport
from ..data.source import SequenceSource
from .table import percent


__all__ = ["TokenFindings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenFindings:
    """Counts over the sequences that have tokens, pads not counted; None where a token was not looked for.

    Example:

        >>> from datasets import Dataset
        >>> from hf_packing.data.preparation import Preparation
        >>> rows = Dataset.from_dict({"input_ids": [[1, 5, 2], [1, 5, 2], [1, 1, 7]]})
        >>> source = SequenceSource.of_dataset(rows, Preparation.resolve(eos_token_id=2, bos_token_id=1))
        >>> found = TokenFindings.of_source(source)
        >>> found.without_eos, found.doubled_bos, found.duplicates
        (1, 1, 1)
    """

    rows: int
    """Sequences with at least one token."""
    eos_token_ids: tuple[int, ...]
    """End-of-sequence tokens looked for."""
    bos_token_id: int | None
    """Begin-of-sequence token looked for."""
    without_eos: int | None
    """Sequences that do not end in EOS."""
    doubled_eos: int | None
    """Sequences that end in EOS twice."""
    eos_then_one: int | None
    """Of those without EOS at their end, the ones with EOS one token before it, as `<|im_end|>` and a line break."""
    without_bos: int | None
    """Sequences that do not begin with BOS."""
    doubled_bos: int | None
    """Sequences that begin with BOS twice, the trace of a chat template and a tokenizer that both add it."""
    common_end: int | None
    """The token most sequences end in."""
    common_end_share: float
    """Share of the sequences that end in it."""
    duplicates: int
    """Sequences whose tokens equal those of an earlier one."""
    duplicate_tokens: int
    """Tokens in these sequences."""

    @classmethod
    def of_source(cls, source: SequenceSource) -> TokenFindings:
        """Read the edges of every sequence, and every token once for the duplicates (by a 16-byte hash)."""
        edges, wanted = EdgeReport.of_source(source), source.preparation.eos_ids
        then_one = ~np.isin(source.token_at_end(1), wanted) & np.isin(source.token_at_end(2), wanted)
        repeated = source.duplicates()
        return cls(
            rows=edges.sequences,
            eos_token_ids=wanted,
            bos_token_id=source.preparation.bos_id,
            without_eos=edges.missing_eos,
            doubled_eos=edges.doubled_eos,
            eos_then_one=int(then_one.sum()) if wanted else None,
            without_bos=edges.missing_bos,
            doubled_bos=edges.doubled_bos,
            common_end=edges.usual_end,
            common_end_share=edges.usual_end_share,
            duplicates=int(repeated.sum()),
            duplicate_tokens=int(source.lengths[repeated].sum()),
        )

    def lines(self) -> list[str]:
        """The findings in words, one a line; what is as it should be is said too."""
        found = [*self._eos_lines(), *self._bos_lines()]
        if not self.eos_token_ids:
            found.append("EOS was not looked for: no tokenizer and no id was given")
        lost = f", {self.duplicate_tokens:,} tokens" if self.duplicates else ""
        found.append(f"{self._count(self.duplicates)} repeat an earlier row token by token{lost}")
        return found

    def _eos_lines(self) -> list[str]:
        if self.without_eos is None or self.doubled_eos is None:
            return []
        name = f"EOS (id {' or '.join(map(str, self.eos_token_ids))})"
        lines = [f"{self._count(self.without_eos)} do not end in {name}"]
        if self.eos_then_one:
            lines.append(
                f"{self._count(self.eos_then_one)} end in EOS and one more token, as chat templates write a line "
                "break behind it: the model learns to stop"
            )
        elif self.without_eos and self.common_end not in self.eos_token_ids and self.common_end_share > 0.5:
            lines.append(
                f"{percent(self.common_end_share)} of the rows end in id {self.common_end}: if that is what the chat "
                "template closes a turn with, it is the EOS to train and to stop on"
            )
        return [*lines, f"{self._count(self.doubled_eos)} end in {name} twice"]

    def _bos_lines(self) -> list[str]:
        if self.without_bos is None or self.doubled_bos is None:
            return []
        name = f"BOS (id {self.bos_token_id})"
        if self.rows and self.without_bos == self.rows:
            return [f"no row begins with {name}: right for a model trained without one"]
        return [
            f"{self._count(self.without_bos)} do not begin with {name}",
            f"{self._count(self.doubled_bos)} begin with {name} twice",
        ]

    def _count(self, count: int) -> str:
        return f"{count:,} of {self.rows:,} rows" + (f" ({percent(count / self.rows)})" if count else "")
