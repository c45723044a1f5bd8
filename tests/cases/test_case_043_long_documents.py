"""Case 043: over-long documents are split, truncated or dropped by a named policy, and counted."""

import pytest

from hf_packing.errors import PackingError
from hf_packing.plan import plan_packs


def test_case_043_split_keeps_all_21_tokens():
    plan = plan_packs([21], 8, overflow="split")
    pieces = sorted(zip(plan.starts.tolist(), plan.lengths.tolist()))
    assert pieces == [(0, 8), (8, 8), (16, 5)]
    assert plan.num_packs == 3
    assert plan.ledger.tokens_packed == 21 and plan.ledger.sequences_split == 1


@pytest.mark.parametrize(("overflow", "start"), [("truncate", 0), ("truncate_left", 13)])
def test_case_043_truncate_keeps_8_and_reports_13(overflow, start):
    plan = plan_packs([21], 8, overflow=overflow)
    assert plan.starts.tolist() == [start] and plan.lengths.tolist() == [8]
    assert plan.ledger.tokens_truncated == 13 and plan.ledger.sequences_truncated == 1


def test_case_043_drop_keeps_0_and_reports_one_document():
    plan = plan_packs([21], 8, overflow="drop")
    assert plan.num_packs == 0 and plan.ledger.sequences_dropped == 1 and plan.ledger.tokens_dropped == 21


def test_case_043_default_refuses_and_names_the_document():
    with pytest.raises(PackingError, match=r"lengths\[1\] is 21, above max_length=8.*overflow="):
        plan_packs([3, 21], 8)


def test_case_043_own_pack_is_longer_than_the_capacity():
    plan = plan_packs([21, 3, 4], 8, overflow="own_pack", multiple_of=2)
    own = [i for i in range(plan.num_packs) if plan[i][2].tolist() == [21]]
    assert len(own) == 1 and plan.num_packs == 2
    assert plan.ledger.slots == 22 + 8
