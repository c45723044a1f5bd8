"""What a report is made of: lengths, and where they come from a dataset, its targets and what its tokens show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from numpy.typing import ArrayLike, NDArray

from ..data.preparation import Preparation
from ..data.source import SequenceSource
from ..errors import PackingError
from .findings import TokenFindings


__all__ = ["Subject"]

Counts = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The sequences a report speaks of."""

    lengths: NDArray[np.int64]
    """`[N]` tokens of each, pads not counted."""
    count_targets: Counts | None = None
    """Targets of pieces, as `plan_packs` asks for; None for bare lengths."""
    findings: TokenFindings | None = None
    """EOS, BOS and duplicates; None for bare lengths and for rows packed already."""

    @classmethod
    def of(
        cls,
        data: ArrayLike | Dataset,
        column: str = "input_ids",
        eos_token_id: int | Sequence[int] | None = None,
        bos_token_id: int | None = None,
    ) -> Subject:
        """From lengths, a tokenised dataset, or a packed one (the sequences inside its rows).

        Raises:
            PackingError: for a dataset that has to be narrowed down first, columns that do not fit, or lengths that
                are not integers.

        Example:

            >>> Subject.of(Dataset.from_dict({"input_ids": [[5, 6, 7], [8]]})).lengths.tolist()
            [3, 1]
            >>> packed = Dataset.from_dict({"input_ids": [[5, 6, 7, 8]], "seq_lengths": [[3, 1]]})
            >>> Subject.of(packed).lengths.tolist()
            [3, 1]
        """
        if isinstance(data, DatasetDict | IterableDatasetDict):
            raise PackingError(f"The dataset has the splits {sorted(data)}; give one, such as dataset['train'].")
        if isinstance(data, IterableDataset):
            raise PackingError(
                "A streaming dataset has no end to count to; give a part of it, such as "
                "Dataset.from_list(list(stream.take(10_000)))."
            )
        if not isinstance(data, Dataset):
            return cls(lengths=_bare_lengths(data))
        if "seq_lengths" in data.column_names:
            return cls(lengths=_packed_lengths(data))
        preparation = Preparation.resolve(column=column, eos_token_id=eos_token_id, bos_token_id=bos_token_id)
        source = SequenceSource.of_dataset(data, preparation)
        return cls(
            lengths=source.lengths,
            count_targets=_WholeOnce(source),
            findings=TokenFindings.of_source(source),
        )


class _WholeOnce:
    """Targets of pieces, with those of whole sequences counted once: a report makes a dozen plans of one dataset."""

    def __init__(self, source: SequenceSource) -> None:
        self._source = source
        rows = np.arange(source.lengths.size)
        self._whole = source.count_targets(rows, np.zeros_like(rows), source.lengths)

    def __call__(self, rows: NDArray[Any], starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.int64]:
        counts = self._whole[rows]
        cut = np.flatnonzero(lengths != self._source.lengths[rows])
        if cut.size:
            counts[cut] = self._source.count_targets(rows[cut], starts[cut], lengths[cut])
        return counts


def _packed_lengths(data: Dataset) -> NDArray[np.int64]:
    chunks = data.select_columns(["seq_lengths"]).with_format("arrow")[:].column("seq_lengths").chunks
    parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks]
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)


def _bare_lengths(data: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(data)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise PackingError(
            f"padding_report takes a 1-D list of integer lengths or a dataset, got {array.ndim} dimension(s) of "
            f"{array.dtype}. A dataset that is not tokenised yet has to be tokenised first (hf-packing report does)."
        )
    return array.astype(np.int64)
