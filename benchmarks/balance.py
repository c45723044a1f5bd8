"""What balance saves and costs: how long ranks wait for the slowest one, and what the sampler takes.

    python benchmarks/balance.py            # the table, 1 minute
    python benchmarks/balance.py --scale    # also 10⁸ sequences for 1,000 ranks (6 GB, 2 minutes)

Modelled, not measured on GPUs: the cost of a pack is Σl², the attention term alone. `max/mean` is the cost of the most
expensive rank over the mean of the ranks, averaged over the steps; `time` is the same ratio of the sums, which is how
much longer the epoch takes than with perfect balance. Peers are the same packs in random order, and sorted inside
windows of 16 steps without cost bands.

Lengths: pycode_files (tokens of the 15,595 Python files of a virtual environment, Tekken tokenizer) and longctx_100k
(synthetic: three lognormals, medians 700, 5,000, 28,000, σ 0.7, 0.9, 0.9, weights 0.5, 0.35, 0.15, clipped to
64..131,072).
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import platform
import time
import tracemalloc
from datetime import date
from pathlib import Path

import numpy as np
import torch

import hf_packing
from hf_packing.data.sampler import PackBatchSampler
from hf_packing.plan import PackPlan, plan_packs


HERE = Path(__file__).resolve().parent
SETS = (("longctx_100k", 131_072), ("pycode_files", 32_768))
WINDOW = 16


def schedule(packs, ranks: int, balance: str | None, seed: int = 0) -> tuple[np.ndarray, float]:
    """Packs of every full step `[steps, N]` (one a rank), and the CPU seconds one rank took."""
    columns, seconds = [], []
    for rank in range(ranks):
        started = time.process_time()
        sampler = PackBatchSampler(
            packs,
            batch_size=1,
            num_replicas=ranks,
            rank=rank,
            balance=balance,
            seed=seed,
            window=WINDOW,
            drop_last=True,
        )
        columns.append([batch[0] for batch in sampler])
        seconds.append(time.process_time() - started)
    return np.array(columns).T, float(np.median(seconds))


def sorted_windows(costs: np.ndarray, ranks: int, seed: int = 0) -> np.ndarray:
    """The peer: a random order, sorted by cost inside each window of 16 steps."""
    steps = costs.size // ranks
    order = np.random.default_rng(seed).permutation(costs.size)[: steps * ranks]
    size = WINDOW * ranks
    windows = [order[first : first + size] for first in range(0, order.size, size)]
    return np.concatenate([window[np.argsort(costs[window])] for window in windows]).reshape(-1, ranks)


def ratios(costs: np.ndarray, steps: np.ndarray) -> dict[str, float]:
    step_costs = costs[steps]
    slowest, mean = step_costs.max(axis=1), step_costs.mean(axis=1)
    return {"max_over_mean": float((slowest / mean).mean()), "time": float(slowest.sum() / mean.sum())}


def squares(plan: PackPlan) -> np.ndarray:
    return np.add.reduceat(plan.lengths.astype(np.float64) ** 2, plan.pack_offsets[:-1])


def balance_table() -> list[dict]:
    rows = []
    for name, max_length in SETS:
        lengths = np.load(HERE / "data" / f"{name}.npy").astype(np.int64)
        plan = plan_packs(lengths, max_length, overflow="truncate", seed=0)
        costs = squares(plan)
        for ranks in (8, 64):
            if plan.num_packs < 2 * WINDOW * ranks:
                continue
            random, _ = schedule(plan, ranks, None)
            ours, seconds = schedule(plan, ranks, "attention")
            layouts = {"random": random, "sorted windows": sorted_windows(costs, ranks), "ours": ours}
            rows.append(
                {"lengths": name, "max_length": max_length, "packs": plan.num_packs, "ranks": ranks}
                | {layout: ratios(costs, steps) for layout, steps in layouts.items()}
                | {"us_per_pack": 1e6 * seconds / plan.num_packs}
            )
    return rows


def print_table(rows: list[dict]) -> None:
    print(f"{'lengths':<14}{'max_length':>10}{'packs':>7}{'ranks':>6}", end="")
    print("   max/mean (time): random, sorted windows, ours   µs/pack")
    for row in rows:
        cells = "".join(
            f"{row[layout]['max_over_mean']:>9.3f} ({row[layout]['time']:.3f})"
            for layout in ("random", "sorted windows", "ours")
        )
        print(
            f"{row['lengths']:<14}{row['max_length']:>10,}{row['packs']:>7,}{row['ranks']:>6}{cells}"
            f"{row['us_per_pack']:>10.2f}"
        )


def scaled_run(packs: int, each: int = 10, ranks: int = 1000) -> dict:
    """One rank's start, a resume at half of the epoch, and a thousand of its steps, on packs × each sequences."""
    lengths = np.random.default_rng(0).integers(1, 400, packs * each).astype(np.int64)
    plan = PackPlan.__new__(PackPlan)  # only lengths and offsets are read; planning has its own benchmark
    object.__setattr__(plan, "lengths", lengths)
    object.__setattr__(plan, "pack_offsets", np.arange(0, packs * each + 1, each, dtype=np.int64))
    tracemalloc.start()
    started = time.process_time()
    sampler = PackBatchSampler(plan, batch_size=1, num_replicas=ranks, rank=7)
    start = time.process_time() - started
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sampler.load_state_dict(sampler.state_dict(batches=len(sampler) // 2))
    started = time.process_time()
    batches = iter(sampler)
    next(batches)
    first = time.process_time() - started
    steps = 1 + sum(1 for _ in itertools.islice(batches, 999))
    seconds = time.process_time() - started
    return {
        "sequences": packs * each,
        "packs": packs,
        "ranks": ranks,
        "start_s": start,
        "resume_to_first_batch_s": first,
        "ms_per_step": 1e3 * seconds / steps,
        "bytes_per_pack_kept": kept / packs,
        "bytes_per_pack_at_start": peak / packs,
    }


def at_a_billion(run: dict) -> dict:
    """10⁹ sequences on 1,000 ranks by formula: start and memory grow with the packs, a step with the ranks alone."""
    factor = 1e9 / run["sequences"]
    return {
        "start_s": run["start_s"] * factor,
        "ms_per_step": run["ms_per_step"],
        "kept_gb": run["bytes_per_pack_kept"] * run["packs"] * factor / 1e9,
    }


def environment() -> dict:
    versions = {"hf_packing": hf_packing.__version__, "numpy": np.__version__, "torch": torch.__version__}
    return versions | {"python": platform.python_version(), "cores": os.cpu_count(), "date": date.today().isoformat()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", action="store_true", help="also the run on 10⁸ sequences")
    scale = parser.parse_args().scale
    logging.disable(logging.WARNING)  # that drop_last leaves packs out is meant: only full steps are compared
    results = {"environment": environment(), "balance": balance_table()}
    print_table(results["balance"])
    if scale:
        results["scale"] = [scaled_run(10**6), scaled_run(10**7)]
        results["billion"] = at_a_billion(results["scale"][-1])
        for run in [*results["scale"], results["billion"]]:
            print(", ".join(f"{name} {value:,.3f}".removesuffix(".000") for name, value in run.items()))
    path = HERE / "results" / "balance.json"
    if not scale and path.exists():
        earlier = json.loads(path.read_text())
        results |= {name: earlier[name] for name in ("scale", "billion") if name in earlier}
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
