"""Case 049: planning a corpus holds a few numbers a document, never its tokens or Python objects."""

import tracemalloc

import numpy as np
import pytest

from hf_packing.plan import plan_packs


@pytest.mark.parametrize("strategy", ["bfd", "auto"])
def test_case_049_a_million_documents_take_bytes_each(strategy):
    lengths = np.random.default_rng(0).integers(1, 400, 1_000_000)
    tracemalloc.start()
    plan = plan_packs(lengths, 2048, strategy=strategy)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.ledger.tokens_packed == int(lengths.sum())
    # The plan itself is 24 bytes a document; 100 is the promise of 1 GB for ten million.
    assert peak < 100 * lengths.size
