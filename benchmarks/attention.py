"""What attention alone costs on a CPU: one causal call a sequence beside a dense mask, padding, and flex_attention.

    python benchmarks/attention.py

Forward and backward of 8 heads (4 of keys and values) of 64 numbers over sequences of real lengths, one thread, CPU
seconds (the least of a few), and the most memory torch allocated during the call beyond its inputs. `scores` counts
what each layout computes: pairs of tokens, thousands.

Layouts
- packed_varlen: this package's attention function, boundaries from position_ids.
- dense mask: SDPA with the block-diagonal causal mask that Transformers builds for packed batches (`[1, 1, T, T]`).
- padded: SDPA over `[B, longest]` with the padding mask that Transformers builds.
- flex (not compiled), forward: torch has no backward pass for it on CPUs, and compiling it needs a C++ compiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from length_sets import load, print_table, record
from torch.profiler import ProfilerActivity, profile

from hf_packing.model.attention import packed_varlen_attention
from hf_packing.model.call import Options
from hf_packing.model.gpu_kernels import flex_attention
from hf_packing.model.segments import Segments


HEADS, GROUPS, SIZE = 8, 4, 64
SETS = ("gsm8k_train", "dolly_hhrlhf_small", "flanlike_100k")
TOKENS = 4096


def lengths_of(name: str) -> list[int]:
    """Random sequences of the set until 4,096 tokens are full, each at most 1,024."""
    drawn: list[int] = []
    for length in np.clip(np.random.default_rng(0).permutation(load(name)), 1, 1024).tolist():
        if sum(drawn) + length > TOKENS:
            break
        drawn.append(length)
    return drawn


def inputs(rows: int, length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(rows, length, heads, SIZE, generator=generator).transpose(1, 2).requires_grad_()
        for heads in (HEADS, GROUPS, GROUPS)
    ]


def grouped(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """SDPA as Transformers calls it with a mask: keys and values repeated."""
    repeat = HEADS // GROUPS
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def ways(lengths: list[int]) -> dict[str, tuple[Callable[[], Any], int]]:
    """name -> (a call that runs forward and backward, pairs of tokens it scores)."""
    total, longest = sum(lengths), max(lengths)
    positions = torch.tensor([[place for length in lengths for place in range(length)]])
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    dense = ((index[:, None] == index[None, :]) & torch.ones(total, total, dtype=torch.bool).tril())[None, None]
    real = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    padding = (real[:, None, :] & torch.ones(longest, longest, dtype=torch.bool).tril()).unsqueeze(1)
    flat, padded = inputs(1, total), inputs(len(lengths), longest)
    module = torch.nn.Module()
    offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)

    def packed() -> None:
        # A new tensor each time, as each batch brings one: finding the boundaries is part of the call.
        out, _ = packed_varlen_attention(module, *flat, None, position_ids=positions.clone())
        out.sum().backward()

    def flex() -> None:
        with torch.no_grad():
            tokens = [x.transpose(1, 2).flatten(0, 1) for x in flat]
            flex_attention(*tokens, Segments(offsets, longest), Options())

    return {
        "packed_varlen": (packed, sum(n * (n + 1) // 2 for n in lengths)),
        "dense mask": (lambda: grouped(*flat, dense).sum().backward(), total * total),
        "padded": (lambda: grouped(*padded, padding).sum().backward(), len(lengths) * longest * longest),
        "flex (not compiled), forward": (flex, total * total),
    }


def peak_megabytes(call: Callable[[], Any]) -> float:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def main() -> None:
    torch.set_num_threads(1)
    table = []
    for name in SETS:
        lengths = lengths_of(name)
        rows = []
        for way, (call, scores) in ways(lengths).items():
            call()
            seconds = []
            for _ in range(3):
                started = time.process_time()
                call()
                seconds.append(time.process_time() - started)
            rows.append(
                {
                    "lengths": name,
                    "layout": way,
                    "sequences": len(lengths),
                    "tokens": sum(lengths),
                    "scores": scores // 1000,
                    "ms": round(1000 * min(seconds), 1),
                    "peak MB": round(peak_megabytes(call), 1),
                }
            )
        for row in rows:
            row["times ours"] = round(row["ms"] / rows[0]["ms"], 1)
        table += rows
    print_table(table)
    record("attention", table)


if __name__ == "__main__":
    main()
