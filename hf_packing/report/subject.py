"""What a report is made of: lengths, and the dataset they come from where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from numpy.typing import ArrayLike, NDArray

from ..data import dataset_lengths
from ..errors import PackingError
from .findings import TokenFindings, find


__all__ = ["findings_of", "lengths_of"]


def lengths_of(data: ArrayLike | Dataset, column: str = "input_ids") -> NDArray[np.int64]:
    """Tokens of each sequence: `data` itself, the rows of a dataset, or the sequences inside rows packed already.

    Raises:
        PackingError: for a dataset that has to be narrowed down first, or lengths that are not integers.

    Example:

        >>> lengths_of(Dataset.from_dict({"input_ids": [[5, 6, 7], [8]]})).tolist()
        [3, 1]
        >>> lengths_of(Dataset.from_dict({"input_ids": [[5, 6, 7, 8]], "seq_lengths": [[3, 1]]})).tolist()
        [3, 1]
    """
    if isinstance(data, DatasetDict | IterableDatasetDict):
        raise PackingError(f"The dataset has the splits {sorted(data)}; give one of them, such as dataset['train'].")
    if isinstance(data, IterableDataset):
        raise PackingError(
            "A streaming dataset has no end to count to; give a part of it, such as "
            "Dataset.from_list(list(stream.take(10_000)))."
        )
    if isinstance(data, Dataset):
        if "seq_lengths" in data.column_names:
            chunks = data.select_columns(["seq_lengths"]).with_format("arrow")[:].column("seq_lengths").chunks
            parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks]
            return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
        return dataset_lengths(data, column)
    array = np.asarray(data)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise PackingError(
            f"padding_report takes a 1-D list of integer lengths or a dataset, got {array.ndim} dimension(s) of "
            f"{array.dtype}. A dataset that is not tokenised yet has to be tokenised first (hf-packing report does)."
        )
    return array.astype(np.int64)


def findings_of(
    data: Any, column: str, tokenizer: Any = None, eos_token_id: Any = None, bos_token_id: int | None = None
) -> TokenFindings | None:
    """What the tokens of a dataset show; None for bare lengths and for rows packed already.

    Ids that are given win over the tokenizer's.
    """
    if not isinstance(data, Dataset) or "seq_lengths" in data.column_names:
        return None
    if tokenizer is not None:
        eos_token_id = tokenizer.eos_token_id if eos_token_id is None else eos_token_id
        bos_token_id = tokenizer.bos_token_id if bos_token_id is None else bos_token_id
    return find(data, column=column, eos_token_id=eos_token_id, bos_token_id=bos_token_id)
