"""The report in one sentence: is packing worth it for these lengths?"""

from __future__ import annotations

from ..plan import PackPlan
from .layout import Layout
from .table import percent


__all__ = ["WORTHWHILE", "verdict"]

WORTHWHILE = 1.05  # fewer slots by less than this factor are not worth a changed batch composition


def _plan_quality(plan: PackPlan) -> str:
    packs = f"{plan.num_packs:,} packs at {percent(plan.fill)} fill"
    if plan.gap == 0:
        return f"{packs}, proven the fewest possible"
    return f"{packs}, at most {plan.gap:,} above the proven bound of {plan.lower_bound:,}"


def _loss_of_tokens(plan: PackPlan) -> str:
    ledger = plan.ledger
    lost = ledger.tokens_truncated + ledger.tokens_dropped
    if not lost:
        return ""
    return f"; {percent(lost / ledger.tokens_in)} of the tokens do not fit max_length {plan.max_length:,} and are lost"


def verdict(layouts: dict[str, Layout], best: str, plan: PackPlan) -> str:
    """One sentence on what packing saves.

    Args:
        layouts: the layouts of the report by name, with `padded_max`, `padded_batch` and `length_grouped`.
        best: name of the packed layout that the sentence speaks of.
        plan: its plan.
    """
    packed, per_batch, to_max = layouts[best], layouts["padded_batch"], layouts["padded_max"]
    if not packed.slots:
        return "No tokens: there is nothing to pack."
    gain = per_batch.slots / packed.slots
    lost = _loss_of_tokens(plan)
    if gain >= WORTHWHILE:
        grouped = layouts["length_grouped"].slots / packed.slots
        alone = f" and {grouped:.1f}× against length grouping" if grouped >= WORTHWHILE else ""
        near = "; length grouping alone saves about as much" if grouped < WORTHWHILE else ""
        widest = to_max.slots / packed.slots
        return (
            f"Packing saves {gain:.1f}× slots against padding to the batch's longest ({widest:.1f}× against padding "
            f"to max_length{alone}): {_plan_quality(plan)}{near}{lost}."
        )
    if to_max.fill >= 1 / WORTHWHILE:
        return f"Near-full data ({percent(to_max.fill)} of every row is real): nothing to gain from packing{lost}."
    return (
        f"Nothing to gain in slots: batches of this size are {percent(per_batch.fill)} full as they are, packs would "
        f"be {percent(packed.fill)} full (fewer, longer rows: {packed.rows:,} for {per_batch.rows:,}){lost}."
    )
