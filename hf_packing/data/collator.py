"""PaddingFreeCollator: rows in, one flat (or stacked) batch out, every token once and every boundary kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import PackingError
from .boundaries import cu_seqlens_from_lengths, position_ids_from_lengths, seq_idx_from_lengths
from .flat_rows import FlatRows
from .layout import BatchLayout
from .rows import IGNORE_INDEX


__all__ = ["FACTS_KEY", "PackedBatch", "PaddingFreeCollator"]

FACTS_KEY = "packing_facts"
"""Key of the private tensor that tells trainers what a batch holds; it is taken off before the forward."""


class PackedBatch(dict[str, Any]):
    """A batch that knows its sequences; a plain dict for everybody else.

    The attributes live as long as the object does: libraries that rebuild the mapping on another device lose them
    (they become None), which is why trainers ask for the tensor under `FACTS_KEY` as well.

    Attributes:
        layout (`BatchLayout`): segments, real tokens, shape.
        sequence_ids (int64 `[S]`): dataset row of each sequence, -1 where unknown.
    """

    layout: BatchLayout | None = None
    sequence_ids: NDArray[np.int64] | None = None

    @property
    def num_sequences(self) -> int | None:
        """Real sequences in the batch."""
        return None if self.layout is None else self.layout.num_sequences


@dataclass(frozen=True, kw_only=True)
class PaddingFreeCollator:
    """Collates packed rows (with `seq_lengths`) and plain sequences into one batch without padding between them.

    The default batch is exactly `input_ids`, `position_ids` (restarting) and `labels`, int64 `[1, T]`, without an
    attention_mask: Transformers' varlen attention paths read the boundaries off the positions. The first token of
    every sequence has label -100, so that no sequence is asked to predict the beginning of the next; nothing else is
    masked. A row's `attention_mask` takes its pads off; mask columns (`completion_mask`, `assistant_masks`) become
    labels; numeric columns with one entry a token are flattened along; everything else in a row is ignored.

    Args:
        boundaries (`"position_ids"` or `"explicit"`): `"explicit"` adds `cu_seq_lens_q`, `cu_seq_lens_k` (int32
            `[S + 1]`), `max_length_q`, `max_length_k` (Python ints) and `seq_idx` (int32, shape of input_ids).
        layout (`"flat"` or `"rows"`): `"rows"` keeps one row a row, `[B, L]`, for backends that build dense masks.
        pad_to_multiple_of (`int`, *optional*): T (or L) becomes a multiple of it; the pads are one extra segment.
        multiple_of (`int`, *optional*, defaults to `1`): every sequence fills a multiple of this many slots inside its
            own segment (context parallelism needs 2 · cp).
        pad_token_id (`int`, *optional*, defaults to 0): the id in filler and pads; it is never a target.
        max_sequences (`int`, *optional*): cu_seq_lens get the fixed length `max_sequences + 1` by repeating the end,
            and max_length_q/k become T, so that shapes and constants do not change with the content.
        position_ids_start (`int`, *optional*, defaults to `0`): position of the first token of every sequence.
        vocab_size (`int`, *optional*): ids outside `[0, vocab_size)` raise instead of failing on the device.
        facts (`bool`, *optional*, defaults to `False`): adds `FACTS_KEY`, int64 `[S, 4]`, one row a sequence in batch
            order: real tokens, slots of its segment, dataset row or -1, targets of the whole sequence it was cut from
            or -1. With two rows or more (`layout="rows"`) the pads of each are an entry of 0 real tokens, so that the
            segments cover all slots.

    Raises:
        PackingError: no rows, columns that do not fit their tokens, labels in some rows only, too many sequences.

    Example:

        >>> collate = PaddingFreeCollator(boundaries="explicit")
        >>> batch = collate([{"input_ids": [7, 8, 9]}, {"input_ids": [4, 5]}])
        >>> batch["position_ids"].tolist(), batch["labels"].tolist()
        ([[0, 1, 2, 0, 1]], [[-100, 8, 9, -100, 5]])
        >>> batch["cu_seq_lens_q"].tolist(), batch["max_length_q"], batch.num_sequences
        ([0, 3, 5], 3, 2)
    """

    boundaries: str = "position_ids"
    layout: str = "flat"
    pad_to_multiple_of: int | None = None
    multiple_of: int = 1
    pad_token_id: int | None = None
    max_sequences: int | None = None
    position_ids_start: int = 0
    vocab_size: int | None = None
    facts: bool = False

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("boundaries", self.boundaries, ("position_ids", "explicit")),
            ("layout", self.layout, ("flat", "rows")),
        ):
            if value not in allowed:
                raise PackingError(f"{name}={value!r} is unknown; use one of {', '.join(map(repr, allowed))}.")
        for name, number in (
            ("pad_to_multiple_of", self.pad_to_multiple_of),
            ("multiple_of", self.multiple_of),
            ("max_sequences", self.max_sequences),
        ):
            if number is not None and number < 1:
                raise PackingError(f"{name}={number} must be at least 1.")

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> PackedBatch:
        """One batch of fresh tensors from a list of rows."""
        flat = FlatRows.read(rows)
        layout = self._lay_out(flat)
        slots = None if layout.is_dense else layout.slots()
        starts = layout.starts()
        input_ids = _place(flat.input_ids, layout, slots, self.pad_token_id or 0)
        if self.vocab_size is not None:
            self._check_vocabulary(input_ids)
        labels = _place(flat.input_ids if flat.labels is None else flat.labels, layout, slots, IGNORE_INDEX)
        if labels is input_ids:
            labels = labels.copy()
        labels[starts] = IGNORE_INDEX

        batch = PackedBatch()
        batch.layout, batch.sequence_ids = layout, flat.sequence_ids
        positions = position_ids_from_lengths(layout.segments, self.position_ids_start)
        for name, values in (("input_ids", input_ids), ("position_ids", positions), ("labels", labels)):
            batch[name] = torch.from_numpy(values.reshape(layout.shape))
        for name, column in flat.aligned.items():
            values = _place(column, layout, slots, 0)
            batch[name] = torch.from_numpy(values.reshape(*layout.shape, *values.shape[1:]))
        if self.boundaries == "explicit":
            self._add_boundaries(batch, layout)
        if self.facts:
            batch[FACTS_KEY] = torch.from_numpy(_facts(flat, layout))
        return batch

    def _lay_out(self, flat: FlatRows) -> BatchLayout:
        multiples = {"multiple_of": self.multiple_of, "pad_to_multiple_of": self.pad_to_multiple_of or 1}
        if self.layout == "flat":
            layout = BatchLayout.flat(flat.lengths, **multiples)
        else:
            layout = BatchLayout.stacked(flat.lengths, flat.counts, **multiples)
        if self.max_sequences is not None and layout.segments.size > self.max_sequences:
            pads = layout.segments.size - layout.num_sequences
            raise PackingError(
                f"A batch of {layout.num_sequences} sequences and {pads} segments of pads does not fit "
                f"max_sequences={self.max_sequences}; plan packs with a lower max_sequences, take fewer rows a batch, "
                "or raise the collator's."
            )
        return layout

    def _add_boundaries(self, batch: PackedBatch, layout: BatchLayout) -> None:
        offsets = cu_seqlens_from_lengths(layout.segments)
        longest = int(layout.segments.max())
        if self.max_sequences is not None:
            offsets = np.pad(offsets, (0, self.max_sequences + 1 - offsets.size), mode="edge")
            longest = int(offsets[-1])
        batch["cu_seq_lens_q"] = torch.from_numpy(offsets)
        batch["cu_seq_lens_k"] = torch.from_numpy(offsets.copy())
        batch["max_length_q"] = batch["max_length_k"] = longest
        batch["seq_idx"] = torch.from_numpy(seq_idx_from_lengths(layout.segments).reshape(layout.shape))

    def _check_vocabulary(self, input_ids: NDArray[np.int64]) -> None:
        limit = self.vocab_size or 0
        bad = np.flatnonzero((input_ids < 0) | (input_ids >= limit))
        if bad.size:
            raise PackingError(
                f"Column 'input_ids' holds {int(input_ids[bad[0]])} at slot {int(bad[0])} of the batch ({bad.size} "
                f"such ids in it); the vocabulary is 0 … {limit - 1}. Use the model's own tokenizer."
            )


def _place(values: NDArray[Any], layout: BatchLayout, slots: NDArray[np.int64] | None, filler: int) -> NDArray[Any]:
    """The values of all real tokens in the slots of the batch, `[B·L, ...]`; the same array where it fills them."""
    total = layout.rows * layout.row_length
    if values.shape[0] == total:
        return values
    placed = np.empty((total, *values.shape[1:]), dtype=values.dtype)
    if slots is None:
        placed[: values.shape[0]] = values
        placed[values.shape[0] :] = filler
    else:
        placed[:] = filler
        placed[slots] = values
    return placed


def _facts(flat: FlatRows, layout: BatchLayout) -> NDArray[np.int64]:
    facts = np.full((layout.segments.size, 4), -1, dtype=np.int64)
    facts[:, 0], facts[:, 1] = layout.real, layout.segments
    is_real = layout.real > 0
    facts[is_real, 2] = flat.sequence_ids
    facts[is_real, 3] = flat.sequence_targets
    return facts if layout.rows > 1 else facts[is_real]
