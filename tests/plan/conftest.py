"""Length sets for the planner's tests."""

from pathlib import Path

import numpy as np
import pytest


DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data"


@pytest.fixture
def load_lengths():
    """A function from a set's name to its lengths (or counts, for a histogram)."""
    return lambda name: np.load(DATA / f"{name}.npy")
