"""Plans of counts alone: all ranks together have every sequence once, and none holds what grows with the data."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.errors import PackingError
from hf_packing.plan.lengths import histogram
from hf_packing.plan.shares import plan_histogram


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=80),
    replicas=st.integers(1, 5),
    strategy=st.sampled_from(["bfd", "auto"]),
)
def test_all_ranks_together_have_every_sequence_once(lengths, replicas, strategy):
    counted = histogram(np.array(lengths))
    plan = plan_histogram(counted.sizes, counted.counts, 20, strategy=strategy)
    seen, packs = [], 0
    for rank in range(replicas):
        sizes, ordinals, offsets = plan.share(rank, replicas)
        assert offsets[0] == 0 and offsets[-1] == sizes.size
        assert all(sizes[a:b].sum() <= 20 for a, b in pairwise(offsets))
        seen += list(zip(sizes.tolist(), ordinals.tolist()))
        packs += offsets.size - 1
    assert packs == plan.num_packs >= plan.lower_bound
    assert sorted(seen) == sorted((size, n) for size in set(lengths) for n in range(lengths.count(size)))


def test_a_rank_of_a_billion_sequences_holds_its_share_alone(load_lengths):
    counted = histogram(load_lengths("gsm8k_train"))
    counts = counted.counts * (10**9 // counted.sequences + 1)
    tracemalloc.start()
    plan = plan_histogram(counted.sizes, counts, 2048)
    lengths, ordinals, offsets = plan.share(rank=17, num_replicas=10_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.certificate.counts.sum() > 10**9 and plan.num_packs == plan.lower_bound
    assert offsets.size - 1 == (plan.num_packs - 17 + 9_999) // 10_000
    assert np.add.reduceat(lengths, offsets[:-1]).max() <= 2048
    assert (ordinals < counts[counted.sizes.searchsorted(lengths)]).all()
    assert peak < 60e6  # a hundred thousand sequences and a few copies of them


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([3, 2], [1, 1], 8), "distinct and ascending"),
        (([3], [0], 8), "at least 1"),
        (([3, 9], [1, 1], 8), "sizes run from 3 to 9; they must lie within 1 and max_length=8"),
    ],
)
def test_bad_counts_are_refused(arguments, message):
    with pytest.raises(PackingError, match=message):
        plan_histogram(*arguments)


def test_strategies_that_need_single_sequences_and_ranks_out_of_range_are_refused():
    with pytest.raises(PackingError, match="strategy='stream' looks at single sequences"):
        plan_histogram([3], [1], 8, strategy="stream")
    with pytest.raises(PackingError, match="rank=2 is not one of the 2 ranks 0 to 1"):
        plan_histogram([3], [1], 8).share(2, 2)
