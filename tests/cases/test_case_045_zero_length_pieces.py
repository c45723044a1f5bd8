"""Case 045: a document of exactly two capacities gives two pieces, and an empty one gives none."""

import numpy as np
import pytest

from hf_packing.plan import plan_packs


@pytest.mark.parametrize("strategy", ["bfd", "optimal", "auto", "stream", "sequential", "wrapped"])
def test_case_045_three_pieces_of_8(strategy):
    plan = plan_packs([16, 0, 8], 8, strategy=strategy, overflow="split")
    assert plan.lengths.tolist() == [8, 8, 8]
    assert (np.diff(plan.pack_offsets) == 1).all() and plan.num_packs == 3
    assert sorted(zip(plan.sequence_ids.tolist(), plan.starts.tolist())) == [(0, 0), (0, 8), (2, 0)]
    assert plan.ledger.sequences_empty == 1 and plan.ledger.tokens_packed == 24
