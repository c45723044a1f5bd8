"""From a tokenised dataset on disk to batches: hf_packing beside TRL's pack_dataset and collator, on one core.

    python benchmarks/data_speed.py            # about a minute, and 100 M tokens on disk for the memory figures
    python benchmarks/data_speed.py --quick    # without the memory figures

50,000 sequences with the lengths of GSM8K (benchmarks/data/README.md says where they come from), packed to 2,048.
`ours` and `trl` are CPU seconds of the process (both use one thread), the best of several runs each; `times` is how
many times faster ours is. What is compared, line by line:

    first batch          dataset_lengths, plan_packs(strategy="bfd"), PackedDataset, 8 rows collated; TRL: pack_dataset
                         (nothing cached), 8 rows collated
    read + collate       random rows in batches of 8, `ds[i]` row by row, and all rows of a batch together (as torch's
                         DataLoader asks for them)
    materialise          pack_dataset to Arrow files on disk; ours writes labels and provenance besides
    peak memory          of a fresh process that materialises 100 M tokens (int32): all resident pages (files that are
                         mapped count), and the anonymous ones alone
    loader wait          longest time a training step waits for the next batch at 2 workers (4 packs of 1,024, steps
                         of 0.1 s: a fifth of the 2-layer model's on this CPU), after the first
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset, load_from_disk
from length_sets import print_table, record, resample
from torch.utils.data import DataLoader
from trl import pack_dataset as trl_pack_dataset
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_packing.data import PackedDataset, PaddingFreeCollator, dataset_lengths, pack_dataset
from hf_packing.plan import plan_packs


MAX_LENGTH = 2048
ROWS_A_BATCH = 8
FRESH = {"load_from_cache_file": False}


def store(path: Path, lengths: np.ndarray, seed: int = 0) -> int:
    """A tokenised dataset on disk, input_ids as int32; returns its tokens."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = rng.integers(0, 32_000, offsets[-1], dtype=np.int32)
    table = pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))})
    Dataset(table, fingerprint=f"benchmark{offsets[-1]}").save_to_disk(path)
    return int(offsets[-1])


def cpu_seconds(run: Callable[[], object], repeats: int) -> float:
    """The fastest of several runs."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times)


def our_first_batch(dataset: Dataset) -> None:
    packed = PackedDataset(dataset, plan_packs(dataset_lengths(dataset), MAX_LENGTH, strategy="bfd"))
    PaddingFreeCollator(boundaries="explicit")([packed[number] for number in range(ROWS_A_BATCH)])


def trl_first_batch(dataset: Dataset) -> None:
    packed = trl_pack_dataset(dataset, MAX_LENGTH, "bfd", map_kwargs=FRESH)
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    collate([packed[number] for number in range(ROWS_A_BATCH)])


def read_and_collate(packed, collate, batches: int, together: bool) -> tuple[Callable[[], None], list[int]]:
    """A run over `batches` random batches, and where it counts the tokens."""
    order = np.random.default_rng(1).permutation(len(packed))[: batches * ROWS_A_BATCH].tolist()
    tokens: list[int] = []

    def run() -> None:
        tokens.clear()
        for start in range(0, len(order), ROWS_A_BATCH):
            some = order[start : start + ROWS_A_BATCH]
            batch = collate(packed.__getitems__(some) if together else [packed[number] for number in some])
            tokens.append(batch["input_ids"].numel())

    return run, tokens


def rate(packed, collate, batches: int, repeats: int, together: bool = False) -> float:
    """Tokens a CPU second, read and collated."""
    run, tokens = read_and_collate(packed, collate, batches, together)
    seconds = cpu_seconds(run, repeats)
    return sum(tokens) / seconds


def loader_wait(dataset: Dataset) -> float:
    """Longest wait for a batch behind steps of 0.1 s, in milliseconds."""
    packed = PackedDataset(dataset, plan_packs(dataset_lengths(dataset), 1024))
    loader = DataLoader(packed, batch_size=4, shuffle=True, num_workers=2, collate_fn=PaddingFreeCollator())
    batches = iter(loader)
    next(batches)
    waits = []
    for _ in range(20):
        time.sleep(0.1)
        started = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - started)
    del batches
    return 1000 * max(waits)


def line(what: str, unit: str, ours: float, trl: float | None, higher_is_better: bool) -> dict:
    times = None if trl is None else (ours / trl if higher_is_better else trl / ours)
    return {
        "figure": what,
        "unit": unit,
        "ours": ours,
        "trl": "" if trl is None else trl,
        "times": "" if times is None else round(times, 1),
    }


def speed(folder: Path) -> list[dict]:
    tokens = store(folder / "speed", resample("gsm8k_train", 50_000, MAX_LENGTH))
    dataset = load_from_disk(folder / "speed")
    print(f"50,000 sequences, {tokens:,} tokens, capacity {MAX_LENGTH:,}\n")
    rows = [
        line(
            "first batch",
            "cpu ms",
            1000 * cpu_seconds(lambda: our_first_batch(dataset), 15),
            1000 * cpu_seconds(lambda: trl_first_batch(dataset), 4),
            False,
        )
    ]
    ours = PackedDataset(dataset, plan_packs(dataset_lengths(dataset), MAX_LENGTH))
    theirs = trl_pack_dataset(dataset, MAX_LENGTH, "bfd", map_kwargs=FRESH)
    their_rate = rate(theirs, DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True), 10, 10) / 1e6
    explicit, plain = PaddingFreeCollator(boundaries="explicit"), PaddingFreeCollator()
    for what, collate, together in (
        ("read + collate, row by row", plain, False),
        ("read + collate, together", plain, True),
        ("the same with offsets", explicit, True),
    ):
        rows.append(line(what, "Mtok/cpu s", rate(ours, collate, 200, 25, together) / 1e6, their_rate, True))
    our_time = cpu_seconds(lambda: pack_dataset(dataset, MAX_LENGTH, strategy="bfd", desc=None, **FRESH), 9)
    their_time = cpu_seconds(lambda: trl_pack_dataset(dataset, MAX_LENGTH, "bfd", map_kwargs=FRESH), 5)
    rows.append(line("materialise", "Mtok/cpu s", tokens / our_time / 1e6, tokens / their_time / 1e6, True))
    rows.append(line("loader wait, 2 workers", "ms", loader_wait(dataset), None, False))
    return rows


def watch_anonymous(peak: list[int], stop: threading.Event) -> None:
    """Largest RssAnon seen, in KiB."""
    while not stop.wait(0.01):
        for text in Path("/proc/self/status").read_text().splitlines():
            if text.startswith("RssAnon:"):
                peak[0] = max(peak[0], int(text.split()[1]))


def materialise_in_this_process(path: Path, who: str) -> None:
    """Prints peak resident and peak anonymous memory in MiB, before and after."""
    datasets.disable_progress_bars()
    dataset = load_from_disk(path)
    peak, stop = [0], threading.Event()
    threading.Thread(target=watch_anonymous, args=(peak, stop), daemon=True).start()
    if who == "ours":
        packed = pack_dataset(dataset, MAX_LENGTH, strategy="bfd", desc=None, **FRESH)
    else:
        packed = trl_pack_dataset(dataset, MAX_LENGTH, "bfd", map_kwargs=FRESH)
    stop.set()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"RESULT {resident / 1024:.0f} {peak[0] / 1024:.0f} {len(packed)}")


def memory(folder: Path) -> list[dict]:
    lengths = resample("gsm8k_train", 540_000, MAX_LENGTH)
    tokens = store(folder / "memory", lengths)
    rows = []
    found = {}
    for who in ("ours", "trl"):
        command = [sys.executable, __file__, "--materialise", str(folder / "memory"), who]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[who] = [float(number) for number in text.split("RESULT ")[1].split()]
    for at, what in enumerate(("peak memory, resident", "peak memory, anonymous")):
        name = f"{what}, {tokens / 1e6:.0f} M tokens"
        rows.append(line(name, "MiB", found["ours"][at], found["trl"][at], False))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the memory figures")
    parser.add_argument("--materialise", nargs=2, metavar=("PATH", "WHO"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.materialise:
        return materialise_in_this_process(Path(options.materialise[0]), options.materialise[1])
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        rows = speed(Path(folder))
        if not options.quick:
            rows += memory(Path(folder))
    print_table(rows)
    if not options.quick:
        record("data_speed", rows)
    return None


if __name__ == "__main__":
    main()
