"""How fast plans are made, beside TRL's `_pack_bfd` on a table of 1-byte tokens, in one run.

    python benchmarks/plan_speed.py           # the table, about a minute
    python benchmarks/plan_speed.py --quick   # without TRL at a million sequences

CPU seconds of one core, best of a few runs (of one for TRL at a million). Lengths are GSM8K-like, packs hold 2,048
tokens. `trl loop` is the same call on a table whose tokens take no bytes (Arrow's null type), so that what is left is
its planner. `peak MB` is what Python and NumPy had allocated at most over the lengths, in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from length_sets import print_table, record, resample
from trl.data_utils import _pack_bfd

from hf_packing.plan import plan_packs


LENGTH = 2048


def cpu_seconds(call: Callable[[], object], times: int) -> float:
    """The least CPU time of several calls."""
    seconds = []
    for _ in range(times):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds)


def table_of(lengths: np.ndarray, *, bytes_each: int) -> pa.Table:
    """A table with one column of token lists; tokens of one byte, or of none."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    total = int(lengths.sum())
    tokens = pa.array(np.zeros(total, np.int8)) if bytes_each else pa.nulls(total)
    return pa.table({"input_ids": pa.ListArray.from_arrays(offsets, tokens)})


def peak_megabytes(number: int) -> float:
    """Peak memory over the lengths, measured in a process of its own because tracing slows everything down."""
    answer = subprocess.run([sys.executable, __file__, "--peak", str(number)], capture_output=True, check=True)
    return float(answer.stdout)


def measure(number: int, with_trl: bool) -> dict:
    lengths = resample("gsm8k_train", number, LENGTH)
    times = 3 if number > 2_000_000 else 9
    ours = plan_packs(lengths, LENGTH)
    row = {
        "sequences": number,
        "ours ms": 1e3 * cpu_seconds(lambda: plan_packs(lengths, LENGTH), times),
        "seeded ms": 1e3 * cpu_seconds(lambda: plan_packs(lengths, LENGTH, seed=0), times),
        "auto ms": 1e3 * cpu_seconds(lambda: plan_packs(lengths, LENGTH, strategy="auto"), times),
        "stream ms": 1e3 * cpu_seconds(lambda: plan_packs(lengths, LENGTH, strategy="stream"), 1),
        "peak MB": peak_megabytes(number),
        "packs": ours.num_packs,
        "gap": ours.gap,
        "auto gap": plan_packs(lengths, LENGTH, strategy="auto").gap,
    }
    trl = dict.fromkeys(("trl s", "trl loop s", "trl packs", "x", "x seeded", "x stream"), "")
    if with_trl:
        table = table_of(lengths, bytes_each=1)
        trl["trl s"] = cpu_seconds(lambda: _pack_bfd(table, LENGTH), 1 if number > 100_000 else 3)
        trl["trl packs"] = _pack_bfd(table, LENGTH).num_rows if number <= 100_000 else ""
        loop_table = table_of(lengths, bytes_each=0)
        trl["trl loop s"] = cpu_seconds(lambda: _pack_bfd(loop_table, LENGTH), 1 if number > 100_000 else 3)
        trl["x"] = 1e3 * trl["trl s"] / row["ours ms"]
        trl["x seeded"] = 1e3 * trl["trl s"] / row["seeded ms"]
        trl["x stream"] = 1e3 * trl["trl loop s"] / row["stream ms"]
    return {**row, **trl}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="leave TRL out at a million sequences")
    parser.add_argument("--peak", type=int, help="print the peak memory of one plan of so many sequences")
    options = parser.parse_args()
    if options.peak:
        lengths = resample("gsm8k_train", options.peak, LENGTH)
        tracemalloc.start()
        plan_packs(lengths, LENGTH)
        print(tracemalloc.get_traced_memory()[1] / 1e6)
        return
    rows = [
        measure(10_000, True),
        measure(100_000, True),
        measure(1_000_000, not options.quick),
        measure(10_000_000, False),
    ]
    print_table(rows)
    record("plan_speed", rows)


if __name__ == "__main__":
    main()
