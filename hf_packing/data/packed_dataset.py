"""PackedDataset: a dataset seen through a plan; rows are gathered when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import Dataset as TorchDataset

from ..errors import PackingError
from ..plan.plan import PackPlan
from .packed_row import ArrangedPacks, PackedRow
from .packs import Packs, as_pack_numbers, split_targets
from .preparation import Preparation
from .slices import Slices
from .source import SequenceSource


__all__ = ["PackedDataset"]

_KEEPS_ORDER = frozenset({"sequential", "stream", "wrapped"})


class PackedDataset(TorchDataset[PackedRow]):
    """Map-style view: row i is pack i of the plan, read from the dataset's Arrow buffers on access.

    A row is a mapping of NumPy arrays, gathered when one is asked for or when rows are collated: `input_ids`, `labels`
    (the first token of each sequence is no target), `seq_lengths`, `sequence_ids` (rows of the dataset), the columns
    with one number a token, and `sequence_targets` where sequences are split. An int gives one row, a slice or a list
    of ints a list of rows.

    The view follows its plan to the letter: it does not drop, cut or add what the plan does not know, and refuses a
    plan whose pieces its sequences do not have.

    Args:
        dataset: tokenised; sliced, filtered, shuffled, concatenated ones alike.
        plan: from `plan_dataset`, or from `plan_packs(dataset_lengths(dataset), ...)`.
        seed (`int`, *optional*, defaults to `0`): of the neighbours in later epochs.
        options: those of `pack_dataset` that the plan was made with: `column`, `ensure_bos`, `ensure_eos`,
            `bos_token_id`, `eos_token_id`, `mask_eos_loss`, `isolate`.

    Raises:
        PackingError: the plan belongs to another dataset, or the dataset cannot be read as sequences.

    Example:

        >>> from hf_packing.data.columns import dataset_lengths
        >>> from hf_packing.plan import plan_packs
        >>> dataset = Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5, 6, 7], [8]]})
        >>> packed = PackedDataset(dataset, plan_packs(dataset_lengths(dataset), 4))
        >>> len(packed), packed[0]["input_ids"].tolist(), packed[1]["seq_lengths"].tolist()
        (2, [4, 5, 6, 7], [3, 1])
    """

    def __init__(self, dataset: Dataset, plan: PackPlan, *, seed: int = 0, **options: Any) -> None:
        self.dataset, self.plan, self.seed = dataset, plan, seed
        self.preparation = Preparation.resolve(overflow=plan.overflow, **options)
        # Shared memory, so that set_epoch also reaches loader workers that live on between epochs.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._open()

    @classmethod
    def of_source(cls, dataset: Dataset, plan: PackPlan, source: SequenceSource, seed: int = 0) -> PackedDataset:
        """The view over a dataset that is open already."""
        self = cls.__new__(cls)
        self.dataset, self.plan, self.seed, self.preparation = dataset, plan, seed, source.preparation
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()
        self._open(source)
        return self

    def _open(self, source: SequenceSource | None = None) -> None:
        self._source = source or SequenceSource.of_dataset(self.dataset, self.preparation)
        slices = Slices(self.plan.sequence_ids, self.plan.starts, self.plan.lengths)
        if len(slices) and int(slices.rows.max()) >= len(self._source):
            raise PackingError(
                f"The plan names row {int(slices.rows.max())} of a dataset with {len(self._source)} rows; it was made "
                "for another dataset. Plan this one (plan_dataset)."
            )
        self._source.check(slices)
        # Targets of split sequences: those pieces stay where they are in every epoch.
        self._targets = split_targets(self._source, slices) if self.plan.ledger.sequences_split else None
        self._packs, self._packs_epoch = self._arrange(0), 0

    def set_epoch(self, epoch: int) -> None:
        """Other neighbours for another epoch, the same on every rank: sequences of equal length change places.

        The number of packs and their fill stay; pieces of split sequences stay where they are (two of one sequence
        never meet), and so do plans that keep the dataset's order (`sequential`, `stream`, `wrapped`). Epoch 0 is the
        plan.
        """
        self._epoch.fill_(int(epoch))

    @property
    def epoch(self) -> int:
        """The epoch whose neighbours are read."""
        return int(self._epoch)

    def __len__(self) -> int:
        return int(self.plan.num_packs)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is int and 0 <= key < len(self):  # the common case, without a detour
            return PackedRow(self._arranged(), key)
        if isinstance(key, slice | list | tuple | np.ndarray | range):
            return self.__getitems__(key)
        return PackedRow(self._arranged(), as_pack_numbers((key,), len(self))[0])

    def __getitems__(self, keys: Any) -> list[PackedRow]:
        """Several rows; torch's DataLoader asks this way for a batch."""
        arranged = self._arranged()
        return [PackedRow(arranged, number) for number in as_pack_numbers(keys, len(self))]

    def read_packs(self, numbers: Sequence[int]) -> Packs:
        """Several packs as flat columns."""
        return self._arranged().read(numbers)

    def _arranged(self) -> ArrangedPacks:
        epoch = int(self._epoch.item())
        if epoch != self._packs_epoch:
            self._packs, self._packs_epoch = self._arrange(epoch), epoch
        return self._packs

    def _arrange(self, epoch: int) -> ArrangedPacks:
        plan = self.plan
        slices = Slices(plan.sequence_ids, plan.starts, plan.lengths)
        if epoch and plan.strategy not in _KEEPS_ORDER and len(slices):
            single = np.flatnonzero(np.bincount(plan.sequence_ids)[plan.sequence_ids] == 1)
            shuffled = np.random.default_rng([self.seed, epoch]).permutation(single)
            # Lengths [3, 2, 3] of places [0, 1, 2]: sorted by length the places are [1, 0, 2], a shuffle of them
            # [1, 2, 0]; so place 0 gets the piece of place 2 and the other way round, and place 1 keeps its own.
            places = single[np.argsort(plan.lengths[single], kind="stable")]
            pieces = shuffled[np.argsort(plan.lengths[shuffled], kind="stable")]
            moved = np.arange(len(slices))
            moved[places] = pieces
            slices = slices[moved]
        return ArrangedPacks(self._source, slices, plan.pack_offsets, self._targets)

    def __getstate__(self) -> dict[str, Any]:
        # Views over memory maps are rebuilt on the other side, where the dataset maps its own files.
        keys = ("dataset", "plan", "seed", "preparation", "_epoch")
        return {key: self.__dict__[key] for key in keys}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
