"""What a training step costs on a CPU: packs on packed_varlen beside TRL's packing on sdpa and beside padded batches.

    python benchmarks/train_step.py          # the table, a few minutes
    python benchmarks/train_step.py --quick  # one length set, fewer sequences

Every layout trains the same sequences (forward, loss, backward, AdamW step) with the same 2-layer Llama, one thread,
CPU seconds, the mean of two passes after a first one, each layout in a process of its own, so that its
peak memory is its own.
`tokens/s` counts real tokens; the loss is Σ NLL / Σ targets over all of them and must be the same in every layout.
`peak MB` is the process's, less what it was before the first step.

Layouts
- trl packing, sdpa: bfd packs of 1,024 by TRL, four a batch, flattened by TRL's own collator to `[1, T]`.
- padded, sdpa: random batches of as many sequences as four packs hold on average, padded to their longest.
- ours, rows, sdpa: the same packs as `[4, 1024]`, for models whose attention cannot be replaced.
- ours, packed_varlen: four packs a batch as `[1, T]`.
- equal lengths, sdpa: the same number of tokens in batches without any padding: what perfect data would give.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from length_sets import load, print_table, record
from transformers import LlamaConfig, LlamaForCausalLM

import hf_packing.model.attention  # noqa: F401 - registers packed_varlen
from hf_packing.data.collator import PaddingFreeCollator
from hf_packing.plan import plan_packs


CAPACITY = 1024
PACKS = 4
VOCABULARY = 4096
SETS = ("gsm8k_train", "dolly_hhrlhf_small")
LAYOUTS = ("trl packing, sdpa", "padded, sdpa", "ours, rows, sdpa", "ours, packed_varlen", "equal lengths, sdpa")


def sequences(name: str, number: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.permutation(load(name))[:number], 2, CAPACITY)
    return [rng.integers(3, VOCABULARY, length) for length in lengths]


def model_for(layout: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=VOCABULARY,
        attn_implementation="packed_varlen" if layout.endswith("packed_varlen") else "sdpa",
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def our_packs(rows: list[np.ndarray]) -> list[dict[str, Any]]:
    plan = plan_packs([len(row) for row in rows], CAPACITY)
    packs = []
    for number in range(plan.num_packs):
        ids, _, lengths = plan[number]
        packs.append({"input_ids": np.concatenate([rows[i] for i in ids]), "seq_lengths": lengths.tolist()})
    return packs


def trl_batches(rows: list[np.ndarray]) -> Iterator[dict[str, torch.Tensor]]:
    from datasets import Dataset
    from trl.data_utils import pack_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    data = Dataset.from_dict({"input_ids": [row.tolist() for row in rows]})
    packed = pack_dataset(data, CAPACITY, "bfd").with_format(None)
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    examples = list(packed)
    for start in range(0, len(examples), PACKS):
        yield collate(examples[start : start + PACKS])


def padded_batches(rows: list[np.ndarray]) -> Iterator[dict[str, torch.Tensor]]:
    size = round(len(rows) / len(our_packs(rows)) * PACKS)
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        longest = max(len(row) for row in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(batch):
            ids[place, : len(row)] = torch.from_numpy(row)
            mask[place, : len(row)] = 1
        yield {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def equal_batches(rows: list[np.ndarray]) -> Iterator[dict[str, torch.Tensor]]:
    total = sum(len(row) for row in rows)
    length = total // len(rows)
    tokens = torch.from_numpy(np.concatenate(rows))
    size = PACKS * CAPACITY // length
    for start in range(0, total - size * length + 1, size * length):
        ids = tokens[start : start + size * length].reshape(size, length)
        yield {"input_ids": ids, "labels": ids}


def batches(layout: str, rows: list[np.ndarray]) -> Iterable[dict[str, Any]]:
    if layout.startswith("trl"):
        return trl_batches(rows)
    if layout.startswith("padded"):
        return padded_batches(rows)
    if layout.startswith("equal"):
        return equal_batches(rows)
    packs = our_packs(rows)
    collate = PaddingFreeCollator(layout="rows" if "rows" in layout else "flat")
    return [collate(packs[start : start + PACKS]) for start in range(0, len(packs), PACKS)]


def one_pass(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, data: list[dict[str, Any]]
) -> dict[str, float]:
    nll, targets, tokens = 0.0, 0, 0
    started = time.process_time()
    for batch in data:
        labels = batch["labels"]
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "seq_lengths")}
        logits = model(**inputs).logits[:, :-1]
        wanted = labels[:, 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
        count = int((wanted != -100).sum())
        (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()
        nll, targets = nll + loss.item(), targets + count
        mask = batch.get("attention_mask")
        tokens += int(mask.sum()) if mask is not None else batch["input_ids"].numel() - _pads(batch)
    return {"seconds": time.process_time() - started, "loss": nll / targets, "tokens": tokens, "targets": targets}


def _pads(batch: Any) -> int:
    layout = getattr(batch, "layout", None)
    return batch["input_ids"].numel() - int(layout.real.sum()) if layout is not None else 0


def measure(layout: str, name: str, number: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = sequences(name, number)
    data = list(batches(layout, rows))
    model = model_for(layout)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # No learning: every pass, and every layout, meets the same weights and must give the same loss.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    passes = [one_pass(model, optimizer, data) for _ in range(3)][1:]
    seconds = statistics.mean(entry["seconds"] for entry in passes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "lengths": name,
        "layout": layout,
        "batches": len(data),
        "slots": sum(batch["input_ids"].numel() for batch in data),
        "tokens": passes[0]["tokens"],
        "tokens/s": round(passes[0]["tokens"] / seconds),
        "peak MB": round((peak - before) / 1024),
        "loss": passes[0]["loss"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("LAYOUT", "SET", "NUMBER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        layout, name, number = arguments.one
        print(json.dumps(measure(layout, name, int(number))))
        return
    table = []
    for name in SETS[:1] if arguments.quick else SETS:
        rows = []
        for layout in LAYOUTS:
            command = [sys.executable, __file__, "--one", layout, name, "32" if arguments.quick else "80"]
            answer = subprocess.run(command, capture_output=True, text=True)
            if answer.returncode:
                raise SystemExit(answer.stderr)
            rows.append(json.loads(answer.stdout.splitlines()[-1]))
        ours = next(row for row in rows if row["layout"] == "ours, packed_varlen")
        for row in rows:
            row["ours / it"] = round(ours["tokens/s"] / row["tokens/s"], 2)
            if not row["layout"].startswith("equal") and not math.isclose(row["loss"], ours["loss"], rel_tol=1e-5):
                raise SystemExit(f"{row['layout']} trains something else: loss {row['loss']} against {ours['loss']}.")
        table += rows
    print_table(table)
    if not arguments.quick:
        record("train_step", table)


if __name__ == "__main__":
    main()
