"""pack_dataset: a tokenised dataset in, a packed one out, written through `datasets.map`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict, Features
from datasets.fingerprint import Hasher

from ..errors import PackingError
from ..plan import PackPlan
from .columns import cache_file, dataset_fingerprint
from .packed_dataset import PackedDataset
from .packs import needs_64_bits
from .planning import plan_source
from .preparation import Preparation
from .source import SequenceSource


__all__ = ["pack_dataset"]

_FORMAT = 1
"""Part of every cache key; to be raised when the same settings give other rows."""
_TOKENS_A_BATCH = 1 << 19
"""Tokens gathered and written together: arrays of this size are reused by the allocator, larger ones are not."""


def pack_dataset(
    dataset: Dataset | DatasetDict,
    max_length: int,
    *,
    plan: PackPlan | None = None,
    strategy: str = "auto",
    overflow: str = "error",
    max_sequences: int | None = None,
    multiple_of: int = 1,
    seed: int | None = None,
    drop_duplicates: bool = False,
    column: str = "input_ids",
    ensure_bos: bool | int = False,
    ensure_eos: bool | int = False,
    bos_token_id: int | None = None,
    eos_token_id: int | tuple[int, ...] | list[int] | None = None,
    mask_eos_loss: bool = False,
    isolate: bool = True,
    batch_size: int | None = None,
    num_proc: int | None = None,
    desc: str | None = "Packing",
    return_plan: bool = False,
    **map_options: Any,
) -> Any:
    """Packs a whole tokenised dataset by one plan; the result does not depend on `batch_size` or `num_proc`.

    The result has one row a pack: `input_ids`, `labels` (the first token of each sequence is no target),
    `seq_lengths`, `sequence_ids` (rows of `dataset`), columns with one number a token, and `sequence_targets` where
    sequences are split. It trains as it is in `trl.SFTTrainer` with `packing=False`; a plain `Trainer` needs
    `remove_unused_columns=False` (it would remove seq_lengths) and `PaddingFreeCollator`. Rows are written batch by
    batch through `datasets.map`, so that its cache, progress bar and processes work, and memory does not grow with
    the tokens.

    Labels are `labels`, or the tokens that `completion_mask` and `assistant_masks` allow (all of them where several
    are present), or every token; pads (`attention_mask` 0) are taken off. Sequences without a target are dropped and
    counted in the plan's ledger.

    Args:
        dataset: tokenised; sliced, filtered, shuffled, concatenated, formatted ones alike. A `DatasetDict` is packed
        split
            by split.
        max_length, strategy, overflow, max_sequences, multiple_of, seed: as in `plan_packs`.
        plan (`PackPlan`, *optional*): a plan made for this dataset with the same options.
        drop_duplicates (`bool`, *optional*): drop later copies of a sequence (same prepared tokens).
        column (`str`, *optional*): column of the token ids.
        ensure_bos, ensure_eos (`bool` or `int`, *optional*): put the token where it is missing; the id stands here or
        in
            `bos_token_id`, `eos_token_id`. Added tokens count before planning; after a truncation the token replaces
            the first (last) kept one and is a target.
        bos_token_id, eos_token_id: shares of sequences without them are logged. Several end ids are all accepted as
        ends,
            the first is the one that is added.
        mask_eos_loss (`bool`, *optional*): the end token of a sequence is no target.
        isolate (`bool`, *optional*, defaults to `True`): False makes each pack one continuous text (one seq_length).
        batch_size (`int`, *optional*): packs written together; by default about half a million tokens.
        num_proc, desc, map_options: as in `datasets.Dataset.map` (`load_from_cache_file`, `cache_file_name`,
            `keep_in_memory`, `writer_batch_size`).
        return_plan (`bool`, *optional*): return `(packed, plan)`.

    Raises:
        PackingError: bad columns, rows or settings, by name; an iterable dataset (use `PackedStream`).

    Example:

        >>> dataset = Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5, 6, 7], [8, 9]]})
        >>> packed, plan = pack_dataset(dataset, 5, return_plan=True, desc=None)
        >>> packed["seq_lengths"][:], plan.ledger.tokens_padding
        ([[4], [3, 2]], 1)
    """
    if isinstance(dataset, DatasetDict):
        raise PackingError("Pack the splits of a DatasetDict one by one: each has its own plan.")
    preparation = Preparation.resolve(
        column=column,
        ensure_bos=ensure_bos,
        ensure_eos=ensure_eos,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        mask_eos_loss=mask_eos_loss,
        isolate=isolate,
        overflow=overflow if plan is None else plan.overflow,
    )
    source = SequenceSource.of_dataset(dataset, preparation)
    if plan is None:
        plan = plan_source(
            source,
            max_length,
            drop_duplicates=drop_duplicates,
            strategy=strategy,
            overflow=overflow,
            max_sequences=max_sequences,
            multiple_of=multiple_of,
            seed=seed,
        )
    elif plan.max_length != max_length:
        raise PackingError(
            f"The plan is for max_length={plan.max_length}, asked is max_length={max_length}; plan again."
        )
    lazy = PackedDataset.of_source(dataset, plan, source)
    packed = _write(lazy, batch_size, num_proc, desc, map_options)
    return (packed, plan) if return_plan else packed


class _WritePacks:
    """The function under `datasets.map`: numbers of packs in, their rows as an Arrow table out."""

    def __init__(self, packs: PackedDataset, wide: bool) -> None:
        self.packs, self.wide = packs, wide

    def __call__(self, numbers: pa.Table) -> pa.Table:
        # map hands out consecutive rows, whatever the batch size and the process.
        first, count = (numbers["pack"][0].as_py(), len(numbers)) if len(numbers) else (0, 0)
        return self.packs.read_packs(range(first, first + count)).to_table(wide=self.wide)


def _write(
    lazy: PackedDataset, batch_size: int | None, num_proc: int | None, desc: str | None, map_options: dict[str, Any]
) -> Dataset:
    dataset, plan = lazy.dataset, lazy.plan
    # One type for every batch of the column: a single pack decides, batches are cut to fit below 2^31 values.
    longest = int(plan.pack_tokens.max()) if len(plan) else 0
    wide = needs_64_bits(longest)
    schema = lazy.read_packs(range(0)).to_table(wide=wide).schema
    features = Features.from_arrow_schema(schema)
    fingerprint = Hasher.hash(
        ("hf_packing", _FORMAT, dataset_fingerprint(dataset), plan.fingerprint, lazy.preparation)
    )
    most = max(1, _TOKENS_A_BATCH // max(1, longest))
    if "cache_file_name" not in map_options and not map_options.get("keep_in_memory"):
        map_options = {**map_options, "cache_file_name": cache_file(dataset, fingerprint)}
    numbers = Dataset.from_dict({"pack": range(len(plan))}, split=dataset.split).with_format("arrow")
    if not len(plan):
        packed = Dataset(schema.empty_table(), split=dataset.split, fingerprint=fingerprint)
    else:
        packed = numbers.map(
            _WritePacks(lazy, wide),
            batched=True,
            batch_size=min(batch_size or most, max(most, (2**31 - 1) // max(1, longest))),
            remove_columns=["pack"],
            features=features,
            num_proc=num_proc,
            desc=desc,
            new_fingerprint=fingerprint,
            **map_options,
        )
    kind = dataset.format["type"]
    return packed.with_format(kind) if kind else packed.with_format(None)
