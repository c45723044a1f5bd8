"""EpochOrder and sort_by_cost: every unit in exactly one place, sorted the same on every machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.data.epoch_order import EpochOrder, sort_by_cost


@given(st.lists(st.floats(0, 1e18), max_size=50))
def test_sort_by_cost(costs):
    costs = np.array(costs, dtype=np.float64)
    order = sort_by_cost(costs)
    assert sorted(order.tolist()) == list(range(costs.size))
    largest = costs.max(initial=0)
    wide = costs.size and costs.min() < largest * 2**-60
    for before, after in zip(costs[order], costs[order][1:]):
        assert after <= before * 1.002 or wide


def test_sort_by_cost_of_realistic_costs_is_nearly_exact():
    costs = np.random.RandomState(0).lognormal(15, 3, 10_000)
    ratio = costs[sort_by_cost(costs)] / np.sort(costs)[::-1]
    assert 0.998 < ratio.min() <= ratio.max() < 1.002


@pytest.mark.parametrize("sorts", [True, False])
@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(0, 90),
    per_step=st.integers(1, 7),
    window=st.integers(1, 5),
    epoch=st.integers(0, 5),
    head=st.booleans(),
)
def test_every_unit_in_one_place(sorts, size, per_step, window, epoch, head):
    costs = np.random.RandomState(size).lognormal(5, 1, size)
    order = EpochOrder(
        costs,
        sort_by_cost(costs) if sorts else None,
        per_step=per_step,
        window=window,
        numbers=(7, epoch),
        head=head,
    )
    steps = order.steps(0, order.full_steps)
    units = np.concatenate([order.head, steps.reshape(-1), order.tail])
    assert sorted(units.tolist()) == list(range(size))
    assert order.tail.size == size % per_step
    pieces = [order.steps(a, min(a + window, order.full_steps)) for a in range(0, order.full_steps, window)]
    assert np.array_equal(np.concatenate(pieces) if pieces else steps, steps), "any windows, alone or together"
    if head and size >= per_step:
        assert np.allclose(np.sort(costs[order.head]), np.sort(costs)[-per_step:], rtol=0.002)
