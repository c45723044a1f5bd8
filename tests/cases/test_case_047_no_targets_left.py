"""Case 047, the planner's side: what a truncation leaves without a target is dropped and counted."""

import numpy as np
import pytest

from hf_packing.errors import PackingError
from hf_packing.plan import plan_packs


def targets_after_prompt(prompts):
    """Completion-only labels: tokens from the end of the prompt on are targets, a piece's first token never is."""

    def count(sequence_ids, starts, lengths):
        firsts = np.maximum(np.asarray(prompts)[sequence_ids], starts + 1)
        return np.maximum(0, starts + lengths - firsts)

    return count


def test_case_047_a_prompt_longer_than_the_limit_is_dropped_and_counted():
    plan = plan_packs([8, 4], 4, overflow="truncate", count_targets=targets_after_prompt([6, 2]))
    assert plan.sequence_ids.tolist() == [1]
    ledger = plan.ledger
    assert (ledger.sequences_dropped, ledger.tokens_dropped, ledger.tokens_truncated) == (1, 4, 4)


def test_case_047_pieces_without_a_target_are_dropped_their_sequence_is_not():
    plan = plan_packs([8], 4, overflow="split", count_targets=targets_after_prompt([6]))
    assert plan.starts.tolist() == [4] and plan.lengths.tolist() == [4]
    ledger = plan.ledger
    assert (ledger.sequences_packed, ledger.sequences_dropped, ledger.tokens_dropped) == (1, 0, 4)


@pytest.mark.parametrize("strategy", ["bfd", "optimal", "auto", "stream", "sequential", "wrapped"])
def test_case_047_nothing_to_train_gives_an_empty_plan(strategy):
    plan = plan_packs(
        [3, 4], 4, strategy=strategy, count_targets=lambda ids, starts, lengths: np.zeros(ids.size, dtype=int)
    )
    assert plan.num_packs == 0 and plan.ledger.sequences_dropped == 2 and plan.ledger.tokens_dropped == 7
    assert plan.lower_bound == 0 and plan.fill == 1.0


def test_case_047_a_count_of_the_wrong_shape_is_refused():
    with pytest.raises(PackingError, match=r"count_targets returned shape \(1,\) for 2 pieces"):
        plan_packs([3, 4], 4, count_targets=lambda ids, starts, lengths: [1])
