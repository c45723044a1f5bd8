"""Sequence: one row of a stream, prepared and cut, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import PackingError
from .preparation import Preparation
from .rows import IGNORE_INDEX, read_row


__all__ = ["Sequence"]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence (or a piece of one): its tokens and everything that has one number a token.

    Example:

        >>> preparation = Preparation.resolve(ensure_eos=9, overflow="truncate")
        >>> sequence = Sequence.read({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, 0, preparation)
        >>> sequence.input_ids.tolist(), sequence.labels.tolist()
        ([5, 6, 7, 9], [-100, 6, 7, 9])
        >>> sequence.piece(0, 2, preparation).labels.tolist()  # a cut sequence gets its end back
        [-100, 9]
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    aligned: dict[str, NDArray[Any]]

    def __len__(self) -> int:
        return int(self.input_ids.size)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """All of them by name."""
        return {"input_ids": self.input_ids, "labels": self.labels, **self.aligned}

    @classmethod
    def read(cls, given: Mapping[str, Any], number: int, preparation: Preparation) -> Sequence:
        """The row `number` of a stream, pads off and special tokens on; it may have no tokens at all.

        Raises:
            PackingError: no or ill-typed tokens, columns of other lengths, or a row that is packed already.
        """
        if isinstance(given, pa.Table):  # a row of a stream in Arrow format
            given = given.slice(0, 1).to_pylist()[0]
        if not isinstance(given, Mapping):
            raise PackingError(
                f"Row {number} of the stream is a {type(given).__name__}, not a dict with 'input_ids'; tokenise the "
                "data first."
            )
        if preparation.column != "input_ids":
            given = {**given, "input_ids": given.get(preparation.column)}
            del given[preparation.column]
        if given.get("seq_lengths") is not None:
            raise PackingError(
                f"Row {number} of the stream is packed already (it has 'seq_lengths'); collate it as it is."
            )
        row = read_row(given, number, "stream")
        if row.lengths.size > 1:
            raise PackingError(
                f"Row {number} of the stream holds {row.lengths.size} sequences (its position_ids restart); give one "
                "sequence a row, or collate packed rows as they are."
            )
        input_ids = row.input_ids.astype(np.int64, copy=False)
        labels = (input_ids if row.labels is None else row.labels).astype(np.int64, copy=True)
        sequence = cls(input_ids, labels, row.aligned)
        return sequence._with_ends(preparation) if len(sequence) else sequence

    def _with_ends(self, preparation: Preparation) -> Sequence:
        bos, eos = preparation.ensure_bos, preparation.ensure_eos
        front = [bos] if bos is not None and self.input_ids[0] != bos else []
        back = [eos] if eos is not None and int(self.input_ids[-1]) not in preparation.eos_ids else []
        if not front and not back:
            return self
        return Sequence(
            np.concatenate([front, self.input_ids, back]).astype(np.int64),
            np.concatenate([[IGNORE_INDEX] * len(front), self.labels, back]).astype(np.int64),
            {
                name: np.pad(values, [(len(front), len(back))] + [(0, 0)] * (values.ndim - 1))
                for name, values in self.aligned.items()
            },
        )

    def piece(self, start: int, length: int, preparation: Preparation) -> Sequence:
        """Tokens start : start + length, with its first token no target and the ends the policy gives back."""
        end = start + length
        input_ids, labels = self.input_ids[start:end].copy(), self.labels[start:end].copy()
        if preparation.ensure_bos is not None and start and preparation.overflow == "truncate_left":
            input_ids[0] = preparation.ensure_bos
        if (
            preparation.ensure_eos is not None
            and end < len(self)
            and preparation.overflow == "truncate"
            and length > 1
        ):
            input_ids[-1] = labels[-1] = preparation.ensure_eos
        if preparation.mask_eos_loss and int(input_ids[-1]) in preparation.eos_ids:
            labels[-1] = IGNORE_INDEX
        if preparation.isolate:
            labels[0] = IGNORE_INDEX
        return Sequence(input_ids, labels, {name: values[start:end] for name, values in self.aligned.items()})

    @property
    def targets(self) -> int:
        """Tokens with a label."""
        return int(np.count_nonzero(self.labels != IGNORE_INDEX))

    def without(self, names: set[str]) -> Sequence:
        """Without these token-aligned columns."""
        return replace(self, aligned={name: values for name, values in self.aligned.items() if name not in names})
