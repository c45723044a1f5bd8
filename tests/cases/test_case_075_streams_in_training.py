"""Case 075: the short last window of a pass over a stream is a step of its own, and nothing of it is left over."""

from __future__ import annotations

import pytest
from datasets import IterableDataset

from tests.equivalence import trajectory
from tests.train import tiny


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_case_075_five_batches_two_a_step(tmp_path, kind):
    rows = tiny.words(*[10] * 5)
    stream = IterableDataset.from_generator(lambda: iter(rows))
    record = trajectory.Record()
    made = tiny.make(
        kind, tmp_path, stream, max_length=10, gradient_accumulation_steps=2, max_steps=5, learning_rate=0.0,
        callbacks=[record],
    )  # fmt: skip
    made.train()
    single = [tiny.nll(trajectory.build(), [row])[0] / 9 for row in rows]
    expected = [(single[0] + single[1]) / 2, (single[2] + single[3]) / 2, single[4]]
    assert record.trajectory.losses == pytest.approx(expected + expected[:2], rel=1e-6)
    alone = trajectory.reference(trajectory.build(), rows[4:], 1).gradients[0]
    found = record.trajectory.gradients[2]
    assert ((found - alone).norm() / alone.norm()).item() <= 1e-6
