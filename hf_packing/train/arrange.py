"""From a dataset as users have it to what the loaders read: planned, packed or grouped, the same on every rank."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from datasets import IterableDataset as HFIterableDataset
from numpy.typing import NDArray

from ..data import (
    PackedDataset,
    PackedStream,
    PaddingFreeCollator,
    TokenColumn,
    dataset_lengths,
    plan_dataset,
)
from ..data.slices import Slices
from ..errors import PackingError
from ..plan import PackPlan
from .batches import PaddedCollator
from .config import PackingSettings
from .proof import BatchForm
from .ranks import Ranks
from .share import Resumable, share_of


__all__ = ["Arranged", "arrange"]

logger = logging.getLogger(__name__)


_WARN_LOST, _REFUSE_LOST = 0.01, 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class PackLengths:
    """Lengths of the sequences of each pack, as `PackBatchSampler` reads them off a plan."""

    lengths: NDArray[np.int64]
    pack_offsets: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Arranged:
    """A dataset ready for a loader."""

    dataset: Any
    lengths: Any
    """What `PackBatchSampler` balances by: a plan, the lengths of each pack, or of each row."""
    packed: bool
    """Whether a row is a pack."""
    padding_free: bool
    """Whether batches are flattened; otherwise a row of the batch is one sequence."""
    ready: bool = False
    """Whether the rows have a collator of their own (packing=False in PackingSFTTrainer)."""
    is_stream: bool = False
    plan: PackPlan | None = None
    messages: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        lengths = getattr(self.lengths, "lengths", self.lengths)
        return int(np.max(lengths)) if len(lengths) else 0

    def collator(self, form: BatchForm, settings: PackingSettings, pad_token_id: int, shifts: bool) -> Any:
        """What makes batches of these rows; None where they have a collator of their own."""
        if self.ready:
            return None
        if not self.padding_free:
            return PaddedCollator(pad_token_id, settings.pad_to_multiple_of, shifts)
        return PaddingFreeCollator(
            boundaries=form.boundaries,
            layout=form.layout,
            pad_to_multiple_of=settings.pad_to_multiple_of,
            pad_token_id=pad_token_id,
            position_ids_start=form.position_ids_start,
            facts=True,
        )

    def agreed(self, accelerator: Any) -> Arranged:
        """The same plan on every rank: fingerprints are compared, and rank 0's plan is taken where they differ."""
        if self.plan is None or accelerator.num_processes == 1:
            return self
        fingerprints = gather_object([self.plan.fingerprint])
        if len(set(fingerprints)) == 1:
            return self
        logger.warning(
            "The ranks planned differently (%s different plans); all take the plan of rank 0. Check that they see the "
            "same dataset and settings.",
            len(set(fingerprints)),
        )
        plan = broadcast_object_list([self.plan])[0]
        dataset = PackedDataset(self.dataset.dataset, plan, seed=self.dataset.seed)
        return replace(self, dataset=dataset, lengths=plan, plan=plan)


def arrange(
    dataset: Any,
    settings: PackingSettings,
    *,
    packing: bool,
    layout: str,
    name: str,
    ranks: Ranks,
    ready_rows: bool = False,
    shifts: bool = True,
) -> Arranged:
    """Plan and pack `dataset`, or take it as it is where it is packed already.

    Args:
        dataset: a `datasets.Dataset` (tokenised or packed), a `PackedDataset`, a list of dicts or a torch dataset of
            them; or a stream: a `datasets.IterableDataset`, a `PackedStream`, any iterable of dicts.
        packing (`bool`): whether packs are wanted.
        layout (`str`): of the batches; `"group"` means one sequence a row.
        name (`str`): what messages call it.
        ready_rows (`bool`): rows are cut and labelled already, and have a collator of their own.
        shifts (`bool`): whether the first token of a sequence is never a target; not so in masked language models.

    Raises:
        PackingError: nothing to train on, packs where the model cannot take them, or tokens lost that nobody asked to.
    """
    if isinstance(dataset, HFIterableDataset | PackedStream) or not hasattr(dataset, "__len__"):
        return _arrange_stream(
            dataset, settings, packing and layout != "group", ranks, layout, name, ready_rows, shifts
        )
    if isinstance(dataset, PackedDataset):
        _refuse_packs(layout, name)
        return _described(
            Arranged(dataset=dataset, lengths=dataset.plan, packed=True, padding_free=True, plan=dataset.plan), name
        )
    if not isinstance(dataset, Dataset):
        dataset = _as_dataset(dataset, name)
    if len(dataset) == 0:
        raise PackingError(f"The {name} dataset is empty; there is nothing to pack.")
    if "seq_lengths" in dataset.column_names:
        _refuse_packs(layout, name)
        return _packed_already(dataset, name)
    if ready_rows:
        return Arranged(
            dataset=dataset, lengths=dataset_lengths(dataset), packed=False, padding_free=False, ready=True
        )
    packed = packing and layout != "group"
    if not (packed or settings.padding_free or shifts):
        return _as_they_are(dataset, settings, name)
    plan = _plan(dataset, settings, packed, name)
    view = PackedDataset(dataset, plan, seed=settings.seed)
    padding_free = packed or (settings.padding_free and layout != "group")
    arranged = Arranged(dataset=view, lengths=plan, packed=packed, padding_free=padding_free, plan=plan)
    return _described(arranged, name)


def _as_they_are(dataset: Dataset, settings: PackingSettings, name: str) -> Arranged:
    """Rows for a model that predicts every token in its place: a plan would take the first one for no target."""
    lengths = dataset_lengths(dataset)
    if settings.max_length is not None and lengths.max() > settings.max_length:
        raise PackingError(
            f"Row {int(lengths.argmax())} of the {name} dataset has {int(lengths.max())} tokens, more than max_length="
            f"{settings.max_length}, and sequences of a masked language model are not cut here. Truncate them when "
            "tokenising, or raise max_length."
        )
    return Arranged(dataset=dataset, lengths=lengths, packed=False, padding_free=False)


def _plan(dataset: Dataset, settings: PackingSettings, packed: bool, name: str) -> PackPlan:
    max_length = settings.max_length or max(int(dataset_lengths(dataset).max()), 1)
    plan = plan_dataset(
        dataset,
        max_length,
        strategy=settings.strategy if packed else "sequential",
        overflow=settings.overflow,
        max_sequences=settings.max_sequences if packed else 1,
        seed=settings.seed if packed else None,
    )
    ledger = plan.ledger
    if plan.num_packs == 0:
        raise PackingError(
            f"No sequence of the {name} dataset has a target: {ledger.sequences_in} sequences, "
            f"{ledger.sequences_empty} empty, {ledger.sequences_dropped} dropped. Check the labels (or masks), "
            f"and that prompts are not longer than max_length={max_length}."
        )
    lost = ledger.tokens_lost / max(ledger.tokens_in, 1)
    if lost > _REFUSE_LOST and not settings.overflow_was_set:
        raise PackingError(
            f"{lost:.0%} of the tokens of the {name} dataset would be lost at max_length={max_length}: "
            f"{ledger.tokens_truncated} cut from {ledger.sequences_truncated} sequences, {ledger.tokens_dropped} in "
            f"{ledger.sequences_dropped} dropped ones. Raise max_length, use overflow='split', or set overflow "
            f"explicitly (overflow={settings.overflow!r}) if this is meant."
        )
    if lost > _WARN_LOST:
        logger.warning(
            "%.1f %% of the tokens of the %s dataset are lost at max_length=%s.", 100 * lost, name, max_length
        )
    return plan


def _described(arranged: Arranged, name: str) -> Arranged:
    plan = arranged.plan
    if plan is None:
        return arranged
    ledger = plan.ledger
    if arranged.packed:
        what = (
            f"{ledger.sequences_packed:,} sequences -> {plan.num_packs:,} packs of {plan.max_length:,} "
            f"(fill {plan.fill:.2%}, proven bound {plan.lower_bound:,})"
        )
    else:
        what = f"{ledger.sequences_packed:,} sequences, one a row"
    cut = (
        f"{ledger.tokens_truncated:,} tokens cut from {ledger.sequences_truncated:,} sequences, "
        f"{ledger.sequences_split:,} split, {ledger.sequences_dropped:,} dropped"
        if ledger.tokens_lost or ledger.sequences_split
        else "nothing cut"
    )
    return replace(arranged, messages=(f"{name}: {what}; {cut}",))


def _refuse_packs(layout: str, name: str) -> None:
    if layout == "padded":
        raise PackingError(
            f"The {name} dataset is packed already, but packing=False, which trains on padded rows. Set packing=True, "
            "or pass the dataset it was packed from."
        )
    if layout == "group":
        raise PackingError(
            f"The {name} dataset is packed already, but this model cannot train on packs, and the sequences of a pack "
            "cannot be taken apart without their plan. Pass the dataset it was packed from."
        )


def _packed_already(dataset: Dataset, name: str) -> Arranged:
    column = TokenColumn.of_dataset(dataset, "seq_lengths")
    offsets = np.concatenate([[0], np.cumsum(column.lengths)])
    lengths = PackLengths(
        lengths=column.gather(Slices.whole(np.arange(len(dataset)), column.lengths)).astype(np.int64),
        pack_offsets=offsets,
    )
    message = f"{name}: {len(dataset):,} packs of {offsets[-1]:,} sequences, used as they are"
    return Arranged(
        dataset=dataset.with_format("numpy"), lengths=lengths, packed=True, padding_free=True, messages=(message,)
    )


def _as_dataset(rows: Any, name: str) -> Dataset:
    """A list or a torch dataset of dicts, as a `datasets.Dataset`."""
    kept = ("input_ids", "labels", "attention_mask", "completion_mask", "assistant_masks", "seq_lengths")
    columns: list[dict[str, Any]] = []
    for number in range(len(rows)):
        row = rows[number]
        if "input_ids" not in row:
            raise PackingError(
                f"Row {number} of the {name} dataset has no 'input_ids' (only {', '.join(map(str, row))}); tokenise "
                "it."
            )
        columns.append({key: _as_list(row[key]) for key in kept if key in row})
    return Dataset.from_list(columns) if columns else Dataset.from_dict({"input_ids": []})


def _as_list(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.reshape(-1).tolist()
    return value


def _arrange_stream(
    dataset: Any,
    settings: PackingSettings,
    packed: bool,
    ranks: Ranks,
    layout: str,
    name: str,
    ready: bool,
    shifts: bool,
) -> Arranged:
    share = share_of(dataset, ranks)
    if isinstance(dataset, PackedStream):
        _refuse_packs(layout, name)
        return Arranged(dataset=share, lengths=(), packed=True, padding_free=True, is_stream=True)
    padding_free = packed or settings.padding_free
    if ready or not (padding_free or shifts):
        rows = Resumable(share)
        return Arranged(dataset=rows, lengths=(), packed=False, padding_free=False, ready=ready, is_stream=True)
    if settings.max_length is None:
        raise PackingError("max_length=None: a stream of unknown lengths needs the longest sequence to train on.")
    stream = PackedStream(
        share,
        settings.max_length,
        overflow=settings.overflow,
        max_sequences=settings.max_sequences if packed else 1,
    )
    return Arranged(dataset=stream, lengths=(), packed=packed, padding_free=padding_free, is_stream=True)
