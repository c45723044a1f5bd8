"""plan_dataset: what a tokenised dataset holds, as a plan; every loss is logged once."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from ..plan import PackPlan, plan_packs
from .edges import EdgeReport
from .preparation import Preparation
from .source import SequenceSource


__all__ = ["log_losses", "plan_dataset", "plan_source"]

logger = logging.getLogger(__name__)


def plan_dataset(
    dataset: Dataset,
    max_length: int,
    *,
    strategy: str = "auto",
    overflow: str = "error",
    max_sequences: int | None = None,
    multiple_of: int = 1,
    seed: int | None = None,
    drop_duplicates: bool = False,
    **options: Any,
) -> PackPlan:
    """Plans the packs of a tokenised dataset, for `PackedDataset` or `pack_dataset(plan=...)`.

    Sequences (and pieces) without any target are dropped and counted. Tokens are read only where the answer lies in
    them: labels or masks, attention_mask, the first and last token for ensure_bos and ensure_eos.

    Args:
        dataset: a `datasets.Dataset`.
        max_length, strategy, overflow, max_sequences, multiple_of, seed: as in `plan_packs`.
        drop_duplicates (`bool`, *optional*): drop later copies of a sequence (same prepared tokens).
        options: `column`, `ensure_bos`, `ensure_eos`, `bos_token_id`, `eos_token_id`, `mask_eos_loss`, `isolate`, as
        in
            `pack_dataset`; pass the same ones to whatever reads the plan.

    Example:

        >>> labels = [[1, 2, 3], [-100, -100], [6]]  # without a target: the second, and the third's first token
        >>> plan = plan_dataset(Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5], [6]], "labels": labels}), 8)
        >>> plan.sequence_ids.tolist(), plan.ledger.sequences_dropped
        ([0], 2)
    """
    source = SequenceSource.of_dataset(dataset, Preparation.resolve(overflow=overflow, **options))
    return plan_source(
        source,
        max_length,
        strategy=strategy,
        overflow=overflow,
        max_sequences=max_sequences,
        multiple_of=multiple_of,
        seed=seed,
        drop_duplicates=drop_duplicates,
    )


def plan_source(
    source: SequenceSource, max_length: int, *, drop_duplicates: bool = False, **plan_options: Any
) -> PackPlan:
    """Plans prepared sequences; `plan_options` are those of `plan_packs`. Logs what is lost and what looks wrong."""
    if source.preparation.eos_ids or source.preparation.bos_id is not None:
        EdgeReport.of_source(source).log()
    if drop_duplicates:
        duplicates = source.duplicates()
        source.leave_out(duplicates)
        if duplicates.any():
            logger.warning(
                "Dropping %s of %s sequences as duplicates of an earlier one, such as row %s.",
                f"{int(duplicates.sum()):,}",
                f"{len(source):,}",
                int(np.flatnonzero(duplicates)[0]),
            )
    plan = plan_packs(source.lengths, max_length, count_targets=source.count_targets, **plan_options)
    log_losses(plan, source.lengths)
    return plan


def log_losses(plan: PackPlan, lengths: NDArray[np.int64]) -> None:
    """One warning with counts and some rows where a plan leaves tokens out; nothing where it keeps all."""
    ledger = plan.ledger
    lost = ledger.tokens_truncated + ledger.tokens_dropped
    if not lost:
        return
    kept = np.bincount(plan.sequence_ids, weights=plan.lengths, minlength=lengths.size)
    rows = np.flatnonzero(kept < lengths)
    logger.warning(
        "Packing leaves out %s of %s tokens (%.2f %%): %s cut from %s sequences, %s in %s dropped sequences and "
        "pieces without a target. Rows such as %s.",
        f"{lost:,}",
        f"{ledger.tokens_in:,}",
        100 * lost / ledger.tokens_in,
        f"{ledger.tokens_truncated:,}",
        f"{ledger.sequences_truncated:,}",
        f"{ledger.tokens_dropped:,}",
        f"{ledger.sequences_dropped:,}",
        ", ".join(map(str, rows[:5].tolist())),
    )
