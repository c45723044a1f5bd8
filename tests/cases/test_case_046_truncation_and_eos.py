"""Case 046, the planner's side: which documents lose their last token is known at plan time."""

from hf_packing.plan import plan_packs


def test_case_046_the_plan_tells_which_documents_lost_their_end():
    lengths = [7, 5]
    plan = plan_packs(lengths, 5, overflow="truncate")
    ends = {i: s + n for i, s, n in zip(plan.sequence_ids.tolist(), plan.starts.tolist(), plan.lengths.tolist())}
    assert [i for i, end in sorted(ends.items()) if end < lengths[i]] == [0]
    assert plan.ledger.sequences_truncated == 1


def test_case_046_truncate_left_keeps_the_end():
    plan = plan_packs([7], 5, overflow="truncate_left")
    assert plan.starts.tolist() == [2] and plan.starts[0] + plan.lengths[0] == 7
