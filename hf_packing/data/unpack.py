"""unpack: what a model returned for a packed batch, given back one tensor a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import PackingError
from .collator import FACTS_KEY, PackedBatch


__all__ = ["unpack", "unpack_by_row"]


def unpack(values: torch.Tensor, batch: Mapping[str, Any] | Sequence[int]) -> list[torch.Tensor]:
    """Values of a packed batch, one tensor a real sequence, in the order of the batch; filler and pads are left out.

    Args:
        values: per token, of the batch's shape (`[1, T]`, `[B, L]`, or flattened `[T]`), with any trailing dimensions
            (logits `[1, T, V]`); or per sequence, `[S, ...]`.
        batch: what the collator returned, or the lengths of the sequences. A batch that was moved or rebuilt has lost
            its attributes and is understood only through the collator's `facts=True` tensor.

    Returns:
        Views into `values`: `[length, ...]` each for values per token, `[...]` each for values per sequence.
        `batch.sequence_ids` names the dataset row of each.

    Raises:
        PackingError: values of another shape, or a batch whose pads cannot be told from its sequences.

    Example:

        >>> from hf_packing.data.collator import PaddingFreeCollator
        >>> batch = PaddingFreeCollator(multiple_of=4)([{"input_ids": [7, 8, 9]}, {"input_ids": [4, 5]}])
        >>> batch["input_ids"].tolist()
        [[7, 8, 9, 0, 4, 5, 0, 0]]
        >>> [ids.tolist() for ids in unpack(batch["input_ids"], batch)]
        [[7, 8, 9], [4, 5]]
        >>> [ids.tolist() for ids in unpack(torch.tensor([7, 8, 9, 4, 5]), [3, 2])]
        [[7, 8, 9], [4, 5]]
    """
    segments, real, shape = _segments(batch)
    total, sequences = sum(segments), sum(length > 0 for length in real)
    if shape is None:
        shape = (1, total)
    if tuple(values.shape[:2]) == shape:
        flat = values.reshape(shape[0] * shape[1], *values.shape[2:])
    elif values.ndim and values.shape[0] == shape[0] * shape[1]:
        flat = values
    elif values.ndim and values.shape[0] == sequences:
        return list(values.unbind(0))
    else:
        raise PackingError(
            f"Values of shape {tuple(values.shape)} do not belong to a batch of shape {shape} with {sequences} "
            "sequences; pass one value a token ([1, T, ...]) or one a sequence ([S, ...])."
        )
    pieces, start = [], 0
    for slots, length in zip(segments, real):
        if length:
            pieces.append(flat[start : start + length])
        start += slots
    return pieces


def unpack_by_row(values: torch.Tensor, batch: Mapping[str, Any]) -> dict[int, torch.Tensor]:
    """Like `unpack`, keyed by dataset row; the pieces of a split sequence are joined in batch order.

    Raises:
        PackingError: also where the batch does not say which dataset row a sequence came from.

    Example:

        >>> from hf_packing.data.collator import PaddingFreeCollator
        >>> rows = [{"input_ids": [7, 8, 9, 4, 5], "seq_lengths": [3, 2], "sequence_ids": [41, 12]}]
        >>> batch = PaddingFreeCollator()(rows)
        >>> {row: ids.tolist() for row, ids in unpack_by_row(batch["input_ids"], batch).items()}
        {41: [7, 8, 9], 12: [4, 5]}
    """
    pieces: dict[int, list[torch.Tensor]] = {}
    for number, (sequence_id, piece) in enumerate(zip(sequence_ids(batch), unpack(values, batch))):
        if sequence_id < 0:
            raise PackingError(
                f"Sequence {number} (counting from 0) of the batch does not know its dataset row; collate rows that "
                "carry 'sequence_ids' (PackedDataset and pack_dataset add them)."
            )
        pieces.setdefault(sequence_id, []).append(torch.atleast_1d(piece))
    return {row: found[0] if len(found) == 1 else torch.cat(found) for row, found in pieces.items()}


def sequence_ids(batch: Mapping[str, Any]) -> list[int]:
    """Dataset row of each sequence of a batch, in order, -1 where unknown."""
    if isinstance(batch, PackedBatch) and batch.sequence_ids is not None:
        return [int(row) for row in batch.sequence_ids]
    if FACTS_KEY in batch:
        facts = batch[FACTS_KEY]
        return [int(row) for row in facts[facts[:, 0] > 0, 2].tolist()]
    raise PackingError(_UNKNOWN)


_UNKNOWN = (
    "This batch does not say where its sequences end and its pads begin (it was rebuilt on its way, which drops the "
    "collator's attributes). Pass the collator's own batch, the list of lengths, or collate with facts=True."
)


def _segments(batch: Mapping[str, Any] | Sequence[int]) -> tuple[list[int], list[int], tuple[int, int] | None]:
    """Slots and real tokens of every segment, and the batch's shape where it is known."""
    if isinstance(batch, PackedBatch) and batch.layout is not None:
        layout = batch.layout
        return layout.segments.tolist(), layout.real.tolist(), layout.shape
    if isinstance(batch, Mapping):
        if FACTS_KEY not in batch or "input_ids" not in batch:
            raise PackingError(_UNKNOWN)
        facts = batch[FACTS_KEY]
        return facts[:, 1].tolist(), facts[:, 0].tolist(), tuple(batch["input_ids"].shape)
    lengths = [int(length) for length in batch]
    return lengths, lengths, None
