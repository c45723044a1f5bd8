"""The numbers docs/many_gpus.md gives for balance are what benchmarks/balance.py measures."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import balance
from hf_packing.plan import plan_packs


ROOT = Path(__file__).resolve().parents[2]
RESULTS = json.loads((ROOT / "benchmarks/results/balance.json").read_text())


@pytest.mark.parametrize(("name", "max_length", "bound"), [(*balance.SETS[0], 1.15), (*balance.SETS[1], 1.12)])
@pytest.mark.parametrize("seed", [0, 1])
def test_slowest_of_eight_ranks(name, max_length, bound, seed):
    lengths = np.load(ROOT / f"benchmarks/data/{name}.npy").astype(np.int64)
    plan = plan_packs(lengths, max_length, overflow="truncate", seed=seed)
    costs = balance.squares(plan)
    random, _ = balance.schedule(plan, 8, None, seed)
    ours, seconds = balance.schedule(plan, 8, "attention", seed)
    assert balance.ratios(costs, random)["max_over_mean"] > 2, "there was something to balance"
    assert balance.ratios(costs, ours)["max_over_mean"] <= bound
    assert 1e6 * seconds / plan.num_packs < 5, "µs a pack; below 1 on a quiet machine"


def test_documented_table():
    table = (ROOT / "docs/many_gpus.md").read_text()
    for row in RESULTS["balance"]:
        line = next(
            line
            for line in table.splitlines()
            if line.startswith("|") and f"{row['max_length']:,}" in line and f"| {row['ranks']} |" in line
        )
        stated = [float(number) for number in re.findall(r"\d\.\d\d", line)]
        measured = [
            row[layout][kind] for layout in ("random", "sorted windows", "ours") for kind in ("max_over_mean", "time")
        ]
        assert stated == pytest.approx(measured, abs=0.00501)
        assert row["us_per_pack"] < 1
