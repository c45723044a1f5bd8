"""What a micro-batch holds, kept beside it: collators that add the facts, and the reading of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from ..data import FACTS_KEY
from ..data.rows import read_row
from ..errors import PackingError
from .loss import IGNORE_INDEX, count_targets, sequence_weights
from .window import BatchCounts


__all__ = ["BatchFacts", "PaddedCollator", "TrainerCollator", "filler_batch"]

SLOTS_KEY = "packing_slots"
"""Key of a second private tensor, int64 `[2]`: packs in the batch, and the slots they stand for."""

# Models with **kwargs take the boundaries without naming them in their forward.
_ALWAYS_KEPT = frozenset(
    {
        "input_ids", "labels", "position_ids", "attention_mask", "cu_seq_lens_q", "cu_seq_lens_k",
        "max_length_q", "max_length_k", "seq_idx", FACTS_KEY, SLOTS_KEY,
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFacts:
    """The sequences of one batch of B rows of L slots; tensors are int64 `[S]`."""

    starts: torch.Tensor
    """First slot of each sequence, counted over the flattened B * L slots."""
    lengths: torch.Tensor
    """Real tokens of each sequence."""
    sequence_ids: torch.Tensor
    """Row of the dataset each sequence came from, -1 where unknown."""
    sequence_targets: torch.Tensor
    """Targets of the whole sequence a piece was cut from, -1 where the piece is the whole."""
    packs: int
    slots: int

    @classmethod
    def take_from(cls, batch: Mapping[str, Any]) -> tuple[dict[str, Any], BatchFacts]:
        """Split a batch into what the model gets and the facts; a batch without them is read row by row."""
        inputs = dict(batch)
        facts, counts = inputs.pop(FACTS_KEY, None), inputs.pop(SLOTS_KEY, None)
        if facts is None:
            return inputs, cls._from_rows(inputs)
        # Each row of facts: real tokens, slots of the segment, sequence id, targets. Segments follow each other: for
        # segments of 4, 3 and 5 slots the starts are 0, 4 and 7. A segment without real tokens is padding.
        real, segments, ids, targets = facts.unbind(1)
        starts, used = segments.cumsum(0) - segments, real > 0
        packs, slots = counts.tolist() if counts is not None else (1, inputs["input_ids"].numel())
        return inputs, cls(
            starts=starts[used],
            lengths=real[used],
            sequence_ids=ids[used],
            sequence_targets=targets[used],
            packs=packs,
            slots=slots,
        )

    @classmethod
    def _from_rows(cls, inputs: Mapping[str, Any]) -> BatchFacts:
        """One sequence a row, its real tokens those of the attention mask (all of them without one)."""
        ids = inputs["input_ids"]
        rows, width = ids.shape[0], ids.shape[-1]
        mask = inputs.get("attention_mask")
        mask = torch.ones(rows, width, dtype=torch.int64) if mask is None or mask.dim() != 2 else mask.long()
        starts = mask.argmax(1) + torch.arange(rows, device=mask.device) * width
        unknown = torch.full((rows,), -1, device=mask.device)
        return cls(
            starts=starts.to(ids.device),
            lengths=mask.sum(1).to(ids.device),
            sequence_ids=unknown.to(ids.device),
            sequence_targets=unknown.to(ids.device),
            packs=rows,
            slots=rows * width,
        )

    def target_weights(self, labels: torch.Tensor, shifts: bool) -> torch.Tensor:
        """Weight of each target when every sequence weighs the same, as `sequence_weights` gives it."""
        return sequence_weights(labels, self.starts, self.lengths, self.sequence_targets, shifts)

    def mean_losses(self, per_token: torch.Tensor, labels: torch.Tensor, shifts: bool) -> list[float]:
        """Loss of each sequence over its targets in this batch, NaN where it has none."""
        # In line with the labels: [12, 13, -100] predicted behind a first slot become [-, 12, 13, -100].
        per_token = torch.nn.functional.pad(per_token, (int(shifts), 0)).reshape(-1).cpu()
        is_target = labels.cpu() != IGNORE_INDEX
        if shifts:
            is_target[..., 0] = False  # nothing predicts the first slot of a row, whatever its label
        flat, losses = is_target.reshape(-1), []
        for start, length in zip(self.starts.tolist(), self.lengths.tolist()):
            targets = int(flat[start : start + length].sum())
            losses.append(float(per_token[start : start + length].sum()) / targets if targets else float("nan"))
        return losses

    def count(self, labels: torch.Tensor | None, normalization: str, shifts: bool) -> BatchCounts:
        """The counts of this batch; a batch of filler alone has none but its slots."""
        targets = 0 if labels is None else count_targets(labels, shifts)
        weight = float(targets)
        if normalization == "sequence" and labels is not None:
            weight = float(self.target_weights(labels, shifts).sum())
        return BatchCounts(
            targets=targets,
            weight=weight,
            tokens=int(self.lengths.sum()),
            slots=self.slots,
            sequences=self.lengths.numel(),
            packs=self.packs,
        )


@dataclass(frozen=True)
class TrainerCollator:
    """Wraps a collator for the trainers' loaders: adds the facts, and turns "nothing for this rank" into filler.

    Args:
        collate: rows to batch; a `PaddingFreeCollator(facts=True)` for packs, any padding collator otherwise.
        capacity (`int`, *optional*): slots a pack stands for, to tell nominal from real tokens; without it the size of
            the batch is what it stands for.
    """

    collate: Callable[[Sequence[Any]], Mapping[str, Any]]
    capacity: int | None = None
    pad_token_id: int = 0
    position_ids_start: int | None = 0
    keep: frozenset[str] | None = None
    """Names the model's forward takes; other columns are left out (`remove_unused_columns`). `None` keeps all."""
    foreign: bool = False
    """Whether `collate` is not this package's: others stumble over columns they do not know."""

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        if not rows:
            return filler_batch(self.pad_token_id, self.position_ids_start)
        if self.foreign and self.keep is not None:
            rows = [self._known(row) for row in rows]
        batch = dict(self.collate(rows))
        if "labels" not in batch:
            raise PackingError(
                f"The data collator gave {', '.join(sorted(batch))}, but no 'labels'; the loss is counted on labels."
            )
        if FACTS_KEY in batch:
            slots = len(rows) * self.capacity if self.capacity else batch["input_ids"].numel()
            slots = max(slots, int(batch[FACTS_KEY][:, 0].sum()))  # an own_pack is longer than the capacity
            batch[SLOTS_KEY] = torch.tensor([len(rows), slots])
        return batch if self.keep is None else self._known(batch)

    def _known(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        known = _ALWAYS_KEPT | (self.keep or frozenset())
        return {name: value for name, value in columns.items() if name in known}


def filler_batch(pad_token_id: int, position_ids_start: int | None) -> dict[str, Any]:
    """A batch that trains nothing: for a rank that has no micro-batch left while others have one.

    Padded batches carry a mask and no positions (`position_ids_start=None`); some of their models take none.
    """
    place = {"attention_mask": torch.ones(1, 2, dtype=torch.int64)}
    if position_ids_start is not None:
        place = {"position_ids": torch.arange(2).unsqueeze(0) + position_ids_start}
    return {
        "input_ids": torch.full((1, 2), pad_token_id),
        **place,
        "labels": torch.full((1, 2), IGNORE_INDEX),
        FACTS_KEY: torch.empty(0, 4, dtype=torch.int64),
        SLOTS_KEY: torch.zeros(2, dtype=torch.int64),
    }


@dataclass(frozen=True)
class PaddedCollator:
    """One sequence a row, padded on the right to the longest, with an attention mask.

    Example:
        >>> batch = PaddedCollator(pad_token_id=0)([{"input_ids": [7, 8, 9]}, {"input_ids": [4, 5]}])
        >>> batch["input_ids"].tolist(), batch["labels"].tolist(), batch["attention_mask"].tolist()
        ([[7, 8, 9], [4, 5, 0]], [[-100, 8, 9], [-100, 5, -100]], [[1, 1, 1], [1, 1, 0]])
    """

    pad_token_id: int = 0
    pad_to_multiple_of: int | None = None
    shifts: bool = True

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        read = [read_row(row, number) for number, row in enumerate(rows)]
        ids = [torch.as_tensor(row.input_ids.astype("int64")) for row in read]
        labels = [
            torch.as_tensor((row.input_ids if row.labels is None else row.labels).astype("int64")) for row in read
        ]
        if self.shifts:
            for values in labels:
                values[:1] = IGNORE_INDEX
        batch = {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_token_id),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX),
            "attention_mask": pad_sequence([torch.ones_like(x) for x in ids], batch_first=True),
        }
        if self.pad_to_multiple_of:
            spare = -batch["input_ids"].shape[1] % self.pad_to_multiple_of
            fills = {"input_ids": self.pad_token_id, "labels": IGNORE_INDEX, "attention_mask": 0}
            batch = {k: torch.nn.functional.pad(v, (0, spare), value=fills[k]) for k, v in batch.items()}
        # The pads of a row are a segment without real tokens, so that segments cover every slot.
        width, facts = batch["input_ids"].shape[1], []
        for row in read:
            length = len(row.input_ids)
            facts.append([length, length, _one(row.sequence_ids), _one(row.sequence_targets)])
            if length < width:
                facts.append([0, width - length, -1, -1])
        batch[FACTS_KEY] = torch.tensor(facts)
        return batch


def _one(known: Any) -> int:
    return -1 if known is None else int(known[0])
