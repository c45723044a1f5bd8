"""Case 053: 100 documents, 7 over the limit, 2 empty, 1 missing: every one of them is told."""

import pytest

from hf_packing.errors import PackingError
from hf_packing.plan import plan_packs


def documents(missing):
    return [5] * 90 + [12] * 7 + [0] * 2 + [missing]


@pytest.mark.parametrize("strategy", ["bfd", "optimal", "auto", "stream", "sequential"])
def test_case_053_over_and_empty_are_counted(strategy):
    plan = plan_packs(documents(0), 10, strategy=strategy, overflow="drop")
    ledger = plan.ledger
    assert (ledger.sequences_packed, ledger.sequences_dropped, ledger.sequences_empty) == (90, 7, 3)
    assert ledger.tokens_in == 90 * 5 + 7 * 12 == ledger.tokens_packed + ledger.tokens_dropped


def test_case_053_a_missing_length_is_named():
    with pytest.raises(PackingError, match=r"lengths\[99\] is None"):
        plan_packs(documents(None), 10, overflow="drop")
