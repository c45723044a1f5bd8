"""How tight plans are: packs above the proven minimum, and fill, beside TRL's packing, on every length set.

    python benchmarks/plan_quality.py           # both tables, about three minutes

Sequences above the capacity are truncated, as TRL does. `trl global` is the number of packs of TRL's best-fit
decreasing over the whole set, `trl default` of its default, which packs 1,000 rows at a time (`datasets.map`); both
are counted by running its `_pack_bfd`. Sets given as histograms are packed whole where only counts are needed, and as
50,000 draws where order matters. CPU seconds of one core.
"""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
from length_sets import in_order, load_histogram, print_table, record
from trl.data_utils import _pack_bfd

from hf_packing.plan import plan_packs
from hf_packing.plan.histogram import best_fit_decreasing
from hf_packing.plan.optimal import AUTO_STEPS, OPTIMAL_STEPS, pack_tightly


BOUNDS = (
    ("gsm8k_train", 512),
    ("gsm8k_train", 1024),
    ("gsm8k_train", 2048),
    ("squad11_bert384_hist", 384),
    ("mf_math", 2048),
    ("flanlike_100k", 2048),
    ("orcamathlike_100k", 2048),
    ("pycode_files", 2048),
    ("wikipedia_bert512_hist", 512),
    ("longctx_100k", 131_072),
)
STREAMS = (
    *((name, length) for name, length in BOUNDS if not name.endswith("_hist")),
    ("squad11_bert384_hist", 384),
    ("wikipedia_bert512_hist", 512),
    ("gsm8k_test", 2048),
    ("dolly_hhrlhf_small", 2048),
    ("alpaca_en_demo", 2048),
    ("glaive_toolcall_demo", 4096),
    ("c4_demo", 2048),
    ("orcamathlike_100k", 4096),
    ("flanlike_100k", 8192),
    ("longctx_100k", 8192),
    ("pycode_files", 32_768),
)


def trl_packs(lengths: np.ndarray, capacity: int) -> int:
    """Rows TRL makes of these lengths; tokens take no bytes."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    column = pa.LargeListArray.from_arrays(offsets, pa.nulls(int(lengths.sum())))
    return _pack_bfd(pa.table({"input_ids": column}), capacity).num_rows


def bound_row(name: str, capacity: int) -> dict:
    sizes = load_histogram(name, capacity)
    row = {"set": name, "length": capacity, "sequences": sizes.sequences}
    packs = best_fit_decreasing(sizes, capacity).num_packs
    if sizes.sequences <= 200_000:
        row["trl global"] = trl_packs(np.repeat(sizes.sizes, sizes.counts), capacity)
    else:
        row["trl global"] = ""
    row["bfd"] = packs
    for strategy, steps in (("auto", AUTO_STEPS), ("optimal", OPTIMAL_STEPS)):
        started = time.process_time()
        table, proof = pack_tightly(sizes, capacity, None, steps)
        row |= {
            strategy: table.num_packs,
            f"{strategy} gap": table.num_packs - proof.bound,
            f"{strategy} s": round(time.process_time() - started, 3),
        }
    row |= {"proof": proof.kind, "fill %": round(100 * sizes.tokens / (table.num_packs * capacity), 3)}
    return row


def stream_row(name: str, capacity: int) -> dict:
    lengths = in_order(name, capacity, 50_000)
    started = time.process_time()
    plan = plan_packs(lengths, capacity, strategy="stream")
    seconds = time.process_time() - started
    trl_default = sum(trl_packs(lengths[i : i + 1000], capacity) for i in range(0, lengths.size, 1000))
    tokens = int(lengths.sum())

    def fill(packs: int) -> float:
        return round(100 * tokens / (packs * capacity), 3)

    return {
        "set": name,
        "length": capacity,
        "sequences": lengths.size,
        "bound %": fill(plan.lower_bound),
        "stream %": fill(plan.num_packs),
        "trl default %": fill(trl_default),
        "bfd %": fill(plan_packs(lengths, capacity).num_packs),
        "stream us/sequence": round(1e6 * seconds / lengths.size, 2),
    }


def main() -> None:
    bounds = [bound_row(name, capacity) for name, capacity in BOUNDS]
    print("Packs, and how far they are above the proven minimum\n")
    print_table(bounds)
    streams = [stream_row(name, capacity) for name, capacity in STREAMS]
    print("\nFill of a bounded buffer of 1,024 sequences\n")
    print_table(streams)
    record("plan_quality", bounds + streams)


if __name__ == "__main__":
    main()
