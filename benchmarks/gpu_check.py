"""Everything about packing that only a GPU can show, in one script of under eight minutes; flash-attn is not needed.

    python benchmarks/gpu_check.py             # on a CUDA machine; writes benchmarks/results/gpu_check.json
    python benchmarks/gpu_check.py --dry-run   # the same code in small sizes on a CPU, a minute; writes nothing

1. Kernels: each one that can run here is forced in turn (the one meant for a T4 too) and compared with an fp32
   reference, forward and backward, with grouped heads, with and without a window.
2. Isolation: check_isolation of ten families on packed_varlen.
3. Training: tokens/s and peak memory of a Llama of about 0.7 B parameters (0.1 B below 24 GB of GPU memory), packed on
   packed_varlen beside padded on sdpa, the same sequences, lengths like FLAN's and OrcaMath's.
4. Boundaries: step time with position_ids only and with explicit boundaries.

Exits with 1 where a kernel is wrong, a family leaks, or packed and padded training have different losses.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch


sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from families import build  # noqa: E402 - the checkout goes first
from length_sets import load, print_table, record  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from hf_packing.data.collator import PaddingFreeCollator  # noqa: E402
from hf_packing.errors import PackingError  # noqa: E402
from hf_packing.model.call import Options  # noqa: E402
from hf_packing.model.isolation import check_isolation  # noqa: E402
from hf_packing.model.kernels import KERNELS, force_kernel, hardware_of, varlen_attention  # noqa: E402
from hf_packing.model.segments import Segments  # noqa: E402
from hf_packing.model.sequence_kernel import per_sequence  # noqa: E402
from hf_packing.plan import plan_packs  # noqa: E402


BUDGET = 450
"""Seconds after which no further measurement starts."""

FAMILIES = ["llama", "mistral", "qwen3", "gemma2", "gpt2", "gpt_neox", "phi3", "mixtral", "olmo2", "opt"]


@dataclass(frozen=True)
class Scale:
    """Sizes of one machine."""

    device: torch.device
    dtype: torch.dtype
    tokens: int
    capacity: int
    packs: int
    steps: int
    model: dict[str, int]

    @classmethod
    def of(cls, dry: bool) -> Scale:
        tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        if dry:
            tiny |= {"num_key_value_heads": 2, "vocab_size": 256}
            return cls(torch.device("cpu"), torch.float32, 300, 128, 2, 1, tiny)
        device = torch.device("cuda", torch.cuda.current_device())
        dtype = torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
        big = torch.cuda.get_device_properties(device).total_memory > 24 * 2**30
        sizes = (1536, 4096, 20, 24, 8) if big else (768, 2048, 8, 12, 4)
        names = (*tiny, "num_key_value_heads")
        model = {**dict(zip(names, sizes)), "vocab_size": 32_000}
        return cls(device, dtype, 8192, 2048, 8 if big else 2, 8, model)


def lengths_like(name: str, tokens: int, longest: int) -> list[int]:
    drawn: list[int] = []
    for length in np.clip(np.random.default_rng(0).permutation(load(name)), 2, longest).tolist():
        drawn.append(min(length, tokens - sum(drawn)))
        if sum(drawn) >= tokens - 1:
            break
    return drawn


def seconds_of(call: Callable[[], Any], device: torch.device, times: int) -> float:
    """Wall seconds of one call, the mean of several after a first one; waits for the GPU."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    for _ in range(times):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) / times


def _relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    return float(((ours.float() - reference).norm() / reference.norm()).detach())


def kernel_rows(scale: Scale) -> list[dict[str, Any]]:
    lengths = lengths_like("flanlike_100k", scale.tokens, scale.capacity)
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32, device=scale.device)
    generator = torch.Generator(scale.device).manual_seed(0)
    total = sum(lengths)
    exact = [
        torch.randn(total, heads, 64, generator=generator, device=scale.device, requires_grad=True)
        for heads in (16, 4, 4)
    ]
    weights = torch.randn(total, 16, 64, generator=generator, device=scale.device)
    rows = []
    for window in (None, 256 if scale.device.type == "cuda" else 16):
        options = Options(window=window)
        # fp32 SDPA of whole sequences, without TF32: the same kernel that CPU tests compare with fp64.
        reference = per_sequence(*exact, Segments(offsets, max(lengths)), options)
        expected = torch.autograd.grad(reference, exact, weights)
        for name in KERNELS:
            for dtype in dict.fromkeys((scale.dtype, torch.float16, torch.float32)):
                row = {"kernel": name, "dtype": str(dtype).removeprefix("torch."), "window": window or 0}
                rows.append(
                    row
                    | _kernel_row(
                        name,
                        dtype,
                        exact,
                        weights,
                        Segments(offsets, max(lengths)),
                        options,
                        reference,
                        expected,
                        scale,
                    )
                )
    return rows


def _kernel_row(
    name: str,
    dtype: torch.dtype,
    exact: list[torch.Tensor],
    weights: torch.Tensor,
    segments: Segments,
    options: Options,
    reference: torch.Tensor,
    expected: tuple[torch.Tensor, ...],
    scale: Scale,
) -> dict[str, Any]:
    inputs = [x.detach().to(dtype).requires_grad_() for x in exact]

    def both() -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        out = varlen_attention(*inputs, segments, options)
        return out, torch.autograd.grad(out, inputs, weights.to(dtype))

    empty: dict[str, Any] = {"forward error": 0.0, "backward error": 0.0, "ms": 0.0, "right": True}
    try:
        with force_kernel(name):
            out, gradients = both()
            spent = seconds_of(both, scale.device, 5 if scale.device.type == "cuda" else 1)
    except PackingError as refusal:
        return empty | {"note": str(refusal).rsplit(": ", 1)[-1]}
    except (RuntimeError, NotImplementedError) as failure:
        return empty | {"right": False, "note": f"{type(failure).__name__}: {failure}".splitlines()[0][:100]}
    forward = _relative(out, reference)
    backward = max(_relative(a, b) for a, b in zip(gradients, expected))
    bound = {torch.float32: 2e-3, torch.float16: 5e-3, torch.bfloat16: 2e-2}[dtype]
    return {
        "forward error": forward,
        "backward error": backward,
        "ms": round(1000 * spent, 2),
        "right": forward <= bound and backward <= bound,
        "note": "ran",
    }


def isolation_rows(scale: Scale) -> list[dict[str, Any]]:
    rows = []
    for name in FAMILIES:
        for dtype in dict.fromkeys((torch.float32, scale.dtype)):
            report = check_isolation(build(name, "packed_varlen").to(scale.device, dtype))
            rows.append(
                {
                    "family": name,
                    "dtype": report.precision,
                    "isolated": report.isolated,
                    "leak": report.leak,
                    "mismatch": report.mismatch,
                    "boundaries": str(report.boundaries),
                    "kernel": report.kernel,
                }
            )
    return rows


def _model(scale: Scale, attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(**scale.model, attn_implementation=attention, use_cache=False)
    # bf16 weights train as they are; below Ampere, fp32 weights under fp16 autocast, as people run a T4.
    weights = scale.dtype if scale.dtype != torch.float16 else torch.float32
    return LlamaForCausalLM(config).to(scale.device, weights)


def _packed(rows: list[np.ndarray], scale: Scale, boundaries: str) -> list[dict[str, Any]]:
    plan = plan_packs([len(row) for row in rows], scale.capacity)
    packs = []
    for number in range(plan.num_packs):
        ids, _, lengths = plan[number]
        packs.append({"input_ids": np.concatenate([rows[i] for i in ids]), "seq_lengths": lengths.tolist()})
    collate = PaddingFreeCollator(boundaries=boundaries)
    return [dict(collate(packs[n : n + scale.packs])) for n in range(0, len(packs), scale.packs)]


def _padded(rows: list[np.ndarray], size: int) -> list[dict[str, Any]]:
    batches = []
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        longest = max(len(row) for row in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(batch):
            ids[place, : len(row)] = torch.from_numpy(row)
            mask[place, : len(row)] = 1
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return batches


def _moved(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in batch.items()}


def train(scale: Scale, attention: str, batches: list[dict[str, Any]]) -> dict[str, float]:
    """One pass over the batches: seconds, loss over all targets, peak memory."""
    if scale.device.type == "cuda":
        torch.cuda.empty_cache()  # what the layout before held is no part of this one's peak
    model = _model(scale, attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    cuda = scale.device.type == "cuda"
    totals = {"nll": 0.0, "targets": 0}

    def step(batch: dict[str, Any]) -> None:
        batch = _moved(batch, scale.device)
        labels = batch.pop("labels")
        with torch.autocast(scale.device.type, scale.dtype, enabled=scale.dtype == torch.float16):
            logits = model(**batch).logits
        wanted = labels[:, 1:].flatten()
        nll = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), wanted, reduction="sum")
        (nll / (wanted != -100).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        totals["nll"] += nll.item()
        totals["targets"] += int((wanted != -100).sum())

    step(batches[0])
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    totals.update(nll=0.0, targets=0)
    started = time.perf_counter()
    for batch in batches:
        step(batch)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else 0.0
    return {"seconds": seconds, "loss": totals["nll"] / totals["targets"], "peak MB": round(peak)}


def training_rows(scale: Scale) -> list[dict[str, Any]]:
    rows = []
    for name in ("flanlike_100k", "orcamathlike_100k"):
        tokens = scale.packs * scale.capacity * scale.steps
        rng = np.random.default_rng(0)
        data = [
            rng.integers(3, scale.model["vocab_size"], length) for length in lengths_like(name, tokens, scale.capacity)
        ]
        total = sum(len(row) for row in data)
        packed = _packed(data, scale, "explicit")
        size = max(1, round(len(data) / len(packed)))
        ways = {
            "packed, packed_varlen, explicit": ("packed_varlen", packed),
            "packed, packed_varlen, position_ids": ("packed_varlen", _packed(data, scale, "position_ids")),
            "padded, sdpa": ("sdpa", _padded(data, size)),
        }
        for way, (attention, batches) in ways.items():
            found = train(scale, attention, batches)
            rows.append(
                {
                    "lengths": name,
                    "layout": way,
                    "tokens": total,
                    "slots": sum(batch["input_ids"].numel() for batch in batches),
                    "tokens/s": round(total / found["seconds"]),
                    "step ms": round(1000 * found["seconds"] / len(batches), 1),
                    "peak MB": found["peak MB"],
                    "loss": found["loss"],
                }
            )
    return rows


def same_losses(rows: list[dict[str, Any]], dtype: torch.dtype) -> bool:
    """Packed and padded training of a length set have one loss, up to the precision."""
    bound = 1e-5 if dtype == torch.float32 else 5e-3
    for name in {row["lengths"] for row in rows}:
        losses = [row["loss"] for row in rows if row["lengths"] == name]
        if max(losses) - min(losses) > bound * max(losses):
            return False
    return True


def run(dry: bool) -> dict[str, Any]:
    """All sections; prints their tables."""
    scale = Scale.of(dry)
    if scale.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        print(torch.cuda.get_device_name(), hardware_of("cuda", scale.device.index))
    began = time.perf_counter()
    sections: dict[str, Any] = {}
    for title, section in (("kernels", kernel_rows), ("isolation", isolation_rows), ("training", training_rows)):
        if time.perf_counter() - began > BUDGET:
            print(f"{title}: left out, {BUDGET} seconds are over")
            continue
        started = time.perf_counter()
        sections[title] = section(scale)
        print(f"\n{title} ({time.perf_counter() - started:.0f} s)")
        print_table(sections[title])
    sections["right"] = (
        all(row["right"] for row in sections.get("kernels", []))
        and all(row["isolated"] for row in sections.get("isolation", []))
        and same_losses(sections.get("training", []), scale.dtype)
    )
    print("\nall right" if sections["right"] else "\nSOMETHING IS WRONG, see above")
    return sections


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    if not arguments.dry_run and not torch.cuda.is_available():
        raise SystemExit("No CUDA device here; --dry-run runs the same code in small sizes on a CPU.")
    sections = run(arguments.dry_run)
    if not arguments.dry_run:
        record("gpu_check", [{"gpu": torch.cuda.get_device_name(), **sections}])
    raise SystemExit(0 if sections["right"] else 1)


if __name__ == "__main__":
    main()
