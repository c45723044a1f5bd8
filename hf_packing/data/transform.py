"""PackingTransform: packing as a function for `datasets.map`, streams included."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Features

from ..errors import PackingError
from ..plan import PackPlan
from .packs import Packs, needs_64_bits, split_targets
from .planning import plan_source
from .preparation import Preparation
from .rows import as_array
from .slices import Slices
from .source import SequenceSource


__all__ = ["PackingTransform"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackingTransform:
    """Packs each batch that `datasets.map` hands over; with `batch_size=None` that is the whole dataset, one plan.

    Every setting is part of the cache key of `map`. A batch of a stored dataset is read as Arrow; a stream needs a
    finite `batch_size`, and every batch is planned alone. `sequence_ids` need `with_indices=True`. That the result
    does not depend on batch_size and num_proc is a promise of `pack_dataset`, not of a plain `map`.

    Args:
        max_length, strategy, overflow, max_sequences, multiple_of, seed: as in `plan_packs`.
        column, ensure_bos, ensure_eos, bos_token_id, eos_token_id, mask_eos_loss, isolate: as in `pack_dataset`.

    Example:

        >>> from datasets import Dataset
        >>> dataset = Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5, 6, 7], [8, 9]], "text": ["a", "b", "c"]})
        >>> packed = dataset.map(
        ...     PackingTransform(max_length=5), batched=True, batch_size=None, remove_columns=dataset.column_names
        ... )
        >>> sorted(packed["seq_lengths"][:])
        [[3, 2], [4]]
    """

    max_length: int
    strategy: str = "auto"
    overflow: str = "error"
    max_sequences: int | None = None
    multiple_of: int = 1
    seed: int | None = None
    column: str = "input_ids"
    ensure_bos: bool | int = False
    ensure_eos: bool | int = False
    bos_token_id: int | None = None
    eos_token_id: int | Sequence[int] | None = None
    mask_eos_loss: bool = False
    isolate: bool = True

    def __post_init__(self) -> None:
        self.preparation  # wrong settings raise here, not in a worker of map  # noqa: B018

    @property
    def preparation(self) -> Preparation:
        """The options that concern single sequences."""
        names = {field.name for field in fields(Preparation)} | {"bos_token_id", "eos_token_id"}
        given = {name: value for name, value in vars(self).items() if name in names}
        return Preparation.resolve(**given)

    def __call__(self, batch: Any, indices: Sequence[int] | None = None) -> Any:
        """One batch: an Arrow table (or map's lazy batch) gives a table, a stream's dict of lists a dict of lists."""
        table, in_arrow = _as_table(batch, self.column)
        packs = self._pack(table, None if indices is None else np.asarray(indices, dtype=np.int64))
        packed = packs.to_table(wide=needs_64_bits(int(packs.token_offsets[-1])))
        return packed if in_arrow else packed.to_pydict()

    def output_features(self, features: Features) -> Features:
        """Columns of the result, for `IterableDataset.map(..., features=...)`: the schema is then known before a row
        is.

        Example:

            >>> from datasets import List, Value
            >>> sorted(PackingTransform(max_length=8).output_features(Features({"input_ids": List(Value("int32"))})))
            ['input_ids', 'labels', 'seq_lengths']
        """
        packs = self._pack(features.arrow_schema.empty_table(), None)
        return Features.from_arrow_schema(packs.to_table().schema)

    def _pack(self, table: pa.Table, indices: Any) -> Packs:
        source = SequenceSource(table, preparation=self.preparation)
        plan = self._plan(source)
        slices = Slices(plan.sequence_ids, plan.starts, plan.lengths)
        targets = split_targets(source, slices)
        packs = Packs.read(source, slices, plan.pack_offsets, targets, with_ids=False)
        if indices is not None:
            packs.numbers["sequence_ids"] = indices[slices.rows]
        return packs

    def _plan(self, source: SequenceSource) -> PackPlan:
        return plan_source(
            source,
            self.max_length,
            strategy=self.strategy,
            overflow=self.overflow,
            max_sequences=self.max_sequences,
            multiple_of=self.multiple_of,
            seed=self.seed,
        )


def _as_table(batch: Any, column: str) -> tuple[pa.Table, bool]:
    """The batch as Arrow, and whether map can take Arrow back."""
    if isinstance(batch, pa.Table):
        return batch, True
    lazy = getattr(batch, "pa_table", None)
    if lazy is not None:
        return lazy, True
    if not isinstance(batch, Mapping):
        raise PackingError(
            f"PackingTransform got a {type(batch).__name__}; use it with datasets.map(..., batched=True) on the "
            "default, 'arrow', 'numpy' or 'torch' format."
        )
    arrays = {}
    for name, values in batch.items():
        if name != column and (isinstance(values, list) and values and isinstance(values[0], str | int | float)):
            continue
        try:
            arrays[name] = pa.array(_as_lists(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
            if name == column:
                raise PackingError(f"Column {name!r} is not lists of token ids: {error}.") from error
            logger.info("Column %s is no list of numbers and is not packed along: %s.", name, error)
    return pa.table(arrays), False


def _as_lists(values: Any) -> Any:
    """Rows as lists or 1-D arrays; a formatted batch may come as one tensor, or as a list of them."""
    if isinstance(values, list) and (not values or isinstance(values[0], list) or values[0] is None):
        return values
    return [as_array(value) for value in values]
