"""The length sets of benchmarks/data, and the record that every planning benchmark leaves."""

from __future__ import annotations

import json
import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np

from hf_packing.plan.lengths import LengthHistogram, histogram


HERE = Path(__file__).resolve().parent


def load(name: str) -> np.ndarray:
    """`[N]` lengths in the order of their source."""
    return np.load(HERE / "data" / f"{name}.npy")


def load_histogram(name: str, max_length: int) -> LengthHistogram:
    """The set counted, longer sequences truncated to `max_length`."""
    values = load(name)
    if not name.endswith("_hist"):
        return histogram(np.minimum(values, max_length))
    present = np.flatnonzero(values)
    return LengthHistogram(present + 1, values[present].astype(np.int64))


def resample(name: str, number: int, max_length: int, seed: int = 1) -> np.ndarray:
    """`[number]` lengths like those of the set: drawn with replacement, each varied by 3 %."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(load(name), number)
    varied = np.rint(drawn * np.exp(0.03 * rng.standard_normal(number)))
    return np.clip(varied, 1, max_length).astype(np.int64)


def in_order(name: str, max_length: int, number: int = 100_000, seed: int = 0) -> np.ndarray:
    """Lengths truncated to `max_length`; a histogram is turned into `number` draws from it."""
    values = load(name)
    if name.endswith("_hist"):
        values = np.random.default_rng(seed).choice(np.arange(1, values.size + 1), number, p=values / values.sum())
    return np.minimum(values, max_length).astype(np.int64)


def record(name: str, rows: list[dict]) -> None:
    """Writes benchmarks/results/<name>.json with the environment the rows were measured in."""
    packages = ("numpy", "scipy", "trl", "transformers", "pyarrow")
    environment = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "versions": {package: version(package) for package in packages},
    }
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
    print(f"\nwritten to {path.relative_to(HERE.parent)}")


def print_table(rows: list[dict]) -> None:
    """A table with one line a row; every row has the keys of the first."""
    cells = [[str(key) for key in rows[0]]] + [[_text(value) for value in row.values()] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.5g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
