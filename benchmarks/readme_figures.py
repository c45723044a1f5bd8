"""The figures of the README, from benchmarks/results/: one Markdown table on standard output.

    python benchmarks/readme_figures.py

Nothing is measured here; each row names the script that measured it. A test holds the README to this output.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


RESULTS = Path(__file__).resolve().parent / "results"


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def find(rows: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row.get(name) == value for name, value in values.items())]
    return row


def figures() -> str:
    plan = find(load("plan_speed")["rows"], sequences=1_000_000)
    proven = [row for row in load("plan_quality")["rows"] if "optimal gap" in row]
    slowest = max(row["optimal s"] for row in proven)
    data = {row["figure"]: row for row in load("data_speed")["rows"]}
    batch, collate, written = data["first batch"], data["read + collate, together"], data["materialise"]
    steps = load("train_step")["rows"]
    classes = load("equivalence")["classes"]
    ours = [row for row in classes if row["who"].startswith("ours")]
    worst = max(row["gradient"] for row in ours if row["gradient"] is not None)
    ranks = find(load("balance")["balance"], lengths="longctx_100k", max_length=131072, ranks=8)
    cost = load("trainer_cost")["trainers"]

    def tokens(lengths: str, layout: str) -> str:
        return f"{find(steps, lengths=lengths, layout=layout)['tokens/s']:,}"

    rows = [
        ("", "hf_packing", "beside it", "measured by"),
        ("---", "---", "---", "---"),
        (
            "planning 1,000,000 GSM8K-like sequences at 2,048",
            f"{plan['ours ms']:.0f} ms",
            f"TRL {plan['trl s']:.1f} s",
            "plan_speed.py",
        ),
        (
            f"plans at their proven bound, `optimal`, {len(proven)} length sets",
            f"{sum(row['optimal gap'] == 0 for row in proven)}, in {slowest:.2f} s at most",
            "",
            "plan_quality.py",
        ),
        (
            "tokenised dataset to first batch, 50,000 sequences",
            f"{batch['ours']:.1f} ms",
            f"TRL {batch['trl']:.0f} ms",
            "data_speed.py",
        ),
        (
            "reading and collating packs, million tokens/s",
            f"{collate['ours']:.0f}",
            f"TRL {collate['trl']:.1f}",
            "data_speed.py",
        ),
        (
            "writing a packed dataset, million tokens/s",
            f"{written['ours']:.0f}",
            f"TRL {written['trl']:.0f}",
            "data_speed.py",
        ),
        *(
            (
                f"training step on a CPU core, {name} lengths, tokens/s",
                tokens(lengths, "ours, packed_varlen"),
                f"TRL's packing on sdpa {tokens(lengths, 'trl packing, sdpa')}, padded "
                f"{tokens(lengths, 'padded, sdpa')}, equal lengths {tokens(lengths, 'equal lengths, sdpa')}",
                "train_step.py",
            )
            for name, lengths in (("GSM8K", "gsm8k_train"), ("Dolly", "dolly_hhrlhf_small"))
        ),
        (
            f"gradient error against one sequence at a time, worst of {len(ours)} classes",
            f"{worst:.0e}",
            "[what TRL and Trainer get](benchmarks/results/equivalence.json)",
            "equivalence.py",
        ),
        (
            "peak memory of an SFT step, same packs, both on sdpa",
            f"{cost['hf_packing (sdpa)']['peak_mb']:.0f} MB",
            f"TRL {cost['trl (sdpa)']['peak_mb']:.0f} MB",
            "trainer_cost.py",
        ),
        (
            "slowest of 8 ranks, Σl² over the mean, long-context mix (modelled)",
            f"{ranks['ours']['max_over_mean']:.2f}",
            f"random packs {ranks['random']['max_over_mean']:.2f}",
            "balance.py",
        ),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    print(figures())
