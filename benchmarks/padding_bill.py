"""Every layout of the padding bill on real length sets: python benchmarks/padding_bill.py

Batches of 8 filled in a random order (seed 0), longer sequences truncated. `buckets 50` is the sorted corpus in 50
buckets, each padded to its longest; the waste of such buckets on web text is often put at 8-15 % (a figure that
circulates without a publication; here it stands beside what real sets give).
"""

from __future__ import annotations

from length_sets import in_order, print_table, record

from hf_packing.report import padding_report


SETS = (
    ("gsm8k_train", 512),
    ("gsm8k_train", 2048),
    ("mf_math", 2048),
    ("dolly_hhrlhf_small", 2048),
    ("alpaca_en_demo", 2048),
    ("c4_demo", 2048),
    ("wikipedia_bert512_hist", 512),
    ("pycode_files", 32768),
)


def main() -> None:
    """Print the table and write it down."""
    rows = []
    for name, max_length in SETS:
        bill = padding_report(in_order(name, max_length), max_length, 8, seed=0, max_lengths=())
        fills = {layout: f"{100 * figures.fill:.1f}" for layout, figures in bill.layouts.items()}
        rows.append(
            {
                "set": name,
                "max_length": max_length,
                "sequences": bill.sequences,
                "max": fills["padded_max"],
                "batch": fills["padded_batch"],
                "grouped": fills["length_grouped"],
                "buckets 50": fills["length_buckets"],
                "sequential": fills["packed_sequential"],
                "bfd": fills["packed_bfd"],
                "optimal": fills["packed_optimal"],
                "gap": bill.plan.gap,
                "slots saved": f"{bill.layouts['padded_batch'].slots / bill.layouts[bill.best].slots:.2f}x",
            }
        )
    print("fill (%), real tokens / slots\n")
    print_table(rows)
    record("padding_bill", rows)


if __name__ == "__main__":
    main()
