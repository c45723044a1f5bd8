"""What the packed trainer costs beside TRL's on the same packs: CPU outside forward and backward, and peak memory.

    python benchmarks/trainer_cost.py            # 3 minutes on one core

One Llama (4 layers, hidden 384, vocabulary 16,384, float32), packs of 1,024 tokens from GSM8K-like lengths, one pack a
micro-batch, 2 micro-batches a step, a log line every step. `outside` is the CPU time of a step that is neither in the
model's forward, nor in backward, nor in the optimizer: drawing and collating the batches, counting targets, moving
them, normalising, logging, and Trainer's own loop. Medians over the steps, the first left out. Both trainers get the
same packs (ours, read from disk) and the same attention (sdpa); `packed_varlen` is ours with its default.

Memory is counted, not sampled: bytes of all tensors made in a training step and alive at once (weights and gradients
that were there before are not in it), from torch's dispatcher.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import accelerate
import datasets
import numpy as np
import torch
import transformers
import trl
from datasets import Dataset
from memory_watch import MemoryWatch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

import hf_packing
from hf_packing import PackingSFTConfig, PackingSFTTrainer, pack_dataset


HERE = Path(__file__).resolve().parent
VOCABULARY, MAX_LENGTH, ACCUMULATION, STEPS = 16_384, 1024, 2, 6


def packs() -> Dataset:
    """Packs of random tokens with the lengths of GSM8K, as columns that both trainers read."""
    lengths = np.load(HERE / "data" / "gsm8k_train.npy")[:200].astype(int)
    rng = np.random.default_rng(0)
    rows = Dataset.from_list([{"input_ids": rng.integers(3, VOCABULARY, length).tolist()} for length in lengths])
    return pack_dataset(rows, max_length=MAX_LENGTH, overflow="truncate").select(range(ACCUMULATION * STEPS))


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=384, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=6,
            num_key_value_heads=2, max_position_embeddings=2048, pad_token_id=0, attn_implementation="sdpa",
        )
    )  # fmt: skip


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    made = Tokenizer(WordLevel(words, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def settings(out: str) -> dict[str, Any]:
    return dict(
        output_dir=out, max_length=MAX_LENGTH, per_device_train_batch_size=1, max_steps=STEPS, logging_steps=1,
        gradient_accumulation_steps=ACCUMULATION, save_strategy="no", report_to="none", disable_tqdm=True,
        use_cpu=True, bf16=False, gradient_checkpointing=False, learning_rate=1e-4,
    )  # fmt: skip


def ours(out: str, attention: str) -> SFTTrainer:
    args = PackingSFTConfig(**settings(out), packing=True, attention=attention, min_fill=0.0)
    return PackingSFTTrainer(model(), args, train_dataset=packs(), processing_class=tokenizer())


def theirs(out: str) -> SFTTrainer:
    """TRL on the same packs: with packing=True it would pack them again, so it only flattens them."""
    args = SFTConfig(**{**settings(out), "max_length": None}, packing=False, padding_free=True)
    return SFTTrainer(model(), args, train_dataset=packs(), processing_class=tokenizer())


class Clock(TrainerCallback):
    """CPU seconds of each step, and of the parts of it that are not the trainer's."""

    def __init__(self, trainer: SFTTrainer) -> None:
        self.inside = 0.0
        self.steps: list[tuple[float, float]] = []
        self._since: float | None = None
        inner = trainer.model
        inner.forward = self._timed(inner.forward)
        trainer.accelerator.backward = self._timed(trainer.accelerator.backward)
        self.trainer = trainer

    def _timed(self, function: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside += time.process_time() - started

        return timed

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._optimizer = time.process_time()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.inside += time.process_time() - self._optimizer

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # Once a step, and the last thing of it: from here to here is a whole step, its batches and log line included.
        now = time.process_time()
        if self._since is not None and "loss" in logs:
            self.steps.append((now - self._since, self.inside))
        self._since, self.inside = time.process_time(), 0.0


def timed_run(trainer: SFTTrainer) -> dict[str, float]:
    clock = Clock(trainer)
    trainer.add_callback(clock)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    step = statistics.median(total for total, _ in clock.steps)
    outside = statistics.median(total - inside for total, inside in clock.steps)
    return {"step_s": step, "outside_ms": 1e3 * outside, "outside_share": outside / step}


def peak_run(trainer: SFTTrainer) -> dict[str, float]:
    peaks = []
    original = trainer.training_step

    def step(*args: Any, **kwargs: Any) -> Any:
        with MemoryWatch() as watch:
            result = original(*args, **kwargs)
        peaks.append(watch.peak)
        return result

    trainer.training_step = step
    trainer.args.max_steps = 2
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    # Gradients of the weights are made in the first micro-batch and live on; the second has the activations alone.
    return {"peak_mb": max(peaks[1:]) / 2**20, "peak_first_mb": peaks[0] / 2**20}


def environment() -> dict[str, Any]:
    modules = (hf_packing, torch, transformers, trl, accelerate, datasets)
    versions = {module.__name__: module.__version__ for module in modules}
    return versions | {"python": platform.python_version(), "cores": os.cpu_count(), "date": date.today().isoformat()}


def main() -> None:
    torch.set_num_threads(1)
    makers = {
        "trl (sdpa)": theirs,
        "hf_packing (sdpa)": lambda out: ours(out, "keep"),
        "hf_packing (packed_varlen)": lambda out: ours(out, "auto"),
    }
    rows = {}
    for name, make in makers.items():
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
            rows[name] = timed_run(make(out)) | peak_run(make(out))
    peer = rows["trl (sdpa)"]
    print(f"{'trainer':<28}{'step s':>8}{'outside ms':>12}{'share':>8}{'peak MB':>10}{'of TRL':>8}")
    for name, row in rows.items():
        row["peak_of_trl"] = max(row[key] / peer[key] for key in ("peak_mb", "peak_first_mb"))
        print(
            f"{name:<28}{row['step_s']:>8.2f}{row['outside_ms']:>12.1f}{row['outside_share']:>8.2%}"
            f"{row['peak_mb']:>10.1f}{row['peak_of_trl']:>8.3f}"
        )
    path = HERE / "results" / "trainer_cost.json"
    path.write_text(json.dumps({"environment": environment(), "trainers": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
