"""What the ranks run: a small model through the real trainers, with everything written down that must agree.

The first token of every sequence is its own (100 + its number), so the tokens of a batch tell which sequences it
holds, whatever the layout.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)

from hf_packing import (
    PackingError,
    PackingSFTConfig,
    PackingSFTTrainer,
    PackingTrainer,
    PackingTrainingArguments,
    pack_dataset,
)
from hf_packing.data import PackedStream
from hf_packing.train import arrange


FIRST = 100
VOCABULARY = FIRST + 200


def rows(count: int, longest: int = 30, seed: int = 7) -> list[dict[str, list[int]]]:
    """Sequences of 2 to `longest` tokens; every other one has a masked prompt."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = int(rng.integers(2, longest + 1))
        ids = [FIRST + number, *rng.integers(3, FIRST, length - 1).tolist()]
        prompt = length // 3 if number % 2 else 0
        made.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return made


def build_model(family: str = "llama", **extra: Any) -> torch.nn.Module:
    torch.manual_seed(11)
    if family == "mamba":  # carries its state across the sequences of a pack
        return MambaForCausalLM(
            MambaConfig(vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2, pad_token_id=0)
        )
    settings = dict(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.1, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**(settings | extra)))


def tokenizer() -> PreTrainedTokenizerFast:
    """For a trainer that insists on one; it never reads a word."""
    words = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")), pad_token="<pad>", eos_token="<eos>"
    )


def arguments(out: str, config: type = PackingTrainingArguments, **extra: Any) -> Any:
    """SGD without anything that changes a gradient."""
    base = dict(
        output_dir=out, optim="sgd", learning_rate=0.05, lr_scheduler_type="constant", max_grad_norm=0.0,
        weight_decay=0.0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        bf16=False, gradient_checkpointing=False, seed=3, max_length=48, per_device_train_batch_size=1,
    )  # fmt: skip
    return config(**(base | extra))


class Rows:
    """An iterable that knows nothing but its rows."""

    def __init__(self, made: list[dict[str, list[int]]]) -> None:
        self.made = made

    def __iter__(self) -> Any:
        return iter(self.made)


def dataset(kind: str, count: int, longest: int = 30, shards: list[int] | None = None, seed: int = 7) -> Any:
    """`rows` as a dataset, as packs (`packed`, `single`: one sequence each), or as a stream.

    Streams: `stream` with `shards` (numbers of sequences in each), `shuffled` with a shuffle buffer, `iterable`
    without anything but rows, `packed stream` packed before the trainer sees it.
    """
    made = rows(count, longest, seed)
    if kind == "rows":
        return Dataset.from_list(made)
    if kind in ("packed", "single"):
        return pack_dataset(
            Dataset.from_list(made), max_length=48, max_sequences=1 if kind == "single" else None, desc=None
        )
    if kind == "iterable":
        return Rows(made)
    ends = np.cumsum(shards).tolist() if shards else [count]
    parts = [made[end - size : end] for size, end in zip(shards or [count], ends)]
    stream = IterableDataset.from_generator(stream_rows, gen_kwargs={"parts": parts})
    if kind == "shuffled":
        return stream.shuffle(seed=1, buffer_size=8)
    return PackedStream(stream, 48) if kind == "packed stream" else stream


def stream_rows(parts: list[list[dict[str, list[int]]]]) -> Any:
    for part in parts:
        yield from part


class Watching:
    """Writes down which sequences every micro-batch holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.steps: list[list[int]] = [[]]
        self.micro_batches = 0
        super().__init__(*args, **kwargs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        ids = inputs["input_ids"]
        self.steps[-1] += ids[ids >= FIRST].tolist()
        self.micro_batches += 1
        return super().training_step(model, inputs, num_items_in_batch)


class Watched(Watching, PackingTrainer):
    """Over tokens."""


class WatchedSFT(Watching, PackingSFTTrainer):
    """Over whatever TRL takes."""


class Record(TrainerCallback):
    """Gradients, losses and sequences of every optimizer step; ends the run, or the process, after a step."""

    def __init__(
        self, kill_after: int | None = None, stop_after: int | None = None, kill_at_save: int | None = None
    ) -> None:
        self.stop_after = stop_after
        self.kill_at_save = kill_at_save
        self.losses: list[float] = []
        self.gradients: list[torch.Tensor] = []
        self.evaluations: list[float] = []
        self.kill_after = kill_after
        self.trainer: Watching | None = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        grads = [p.grad.reshape(-1).double() for p in model.parameters() if p.grad is not None]
        if grads:  # DeepSpeed keeps them elsewhere
            self.gradients.append(torch.cat(grads))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # On disk, because a killed process returns nothing.
        with open(f"{args.output_dir}/steps-{args.process_index}.jsonl", "a") as file:
            file.write(json.dumps([state.global_step, self.trainer.steps[-1]]) + "\n")
        self.trainer.steps.append([])
        control.should_training_stop |= state.global_step == self.stop_after

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Between the micro-batches of a step: where a real kill strikes most often.
        if self.kill_after is not None and state.global_step >= self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Trainer has written its files, the states of the ranks are not written yet.
        if state.global_step == self.kill_at_save:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in logs:
            self.losses.append(logs["loss"])
        if "eval_loss" in logs:
            self.evaluations.append(logs["eval_loss"])


def train(
    out: str,
    kind: str = "rows",
    count: int = 14,
    longest: int = 30,
    shards: list[int] | None = None,
    kill_after: int | None = None,
    stop_after: int | None = None,
    kill_at_save: int | None = None,
    resume: bool = False,
    evaluate: int = 0,
    evaluate_kind: str = "rows",
    family: str = "llama",
    trainer_class: str = "plain",
    **settings: Any,
) -> dict[str, Any]:
    """Train; everything that must agree between ranks, or with one process."""
    # A stream's buffer would swallow these few rows at once; so it fills and empties again and again, as in real life.
    PackedStream.__init__.__kwdefaults__["buffer_size"] = 6
    record = Record(kill_after, stop_after, kill_at_save)
    extra: dict[str, Any] = {}
    if trainer_class == "plain":
        cls, args = Watched, arguments(out, **settings)
    else:
        cls, args = WatchedSFT, arguments(out, PackingSFTConfig, **({"packing": True} | settings))
        extra["processing_class"] = tokenizer()
    trainer = cls(
        build_model(family),
        args,
        train_dataset=dataset(kind, count, longest, shards),
        eval_dataset=dataset(evaluate_kind, evaluate, longest, seed=8) if evaluate else None,
        callbacks=[record],
        **extra,
    )
    record.trainer = trainer
    loader = len(trainer.get_train_dataloader()) if kind in ("rows", "packed", "single") else None
    output = trainer.train(resume_from_checkpoint=resume or None)
    return {
        "losses": record.losses,
        "gradients": record.gradients,
        "evaluations": record.evaluations,
        "sequences": trainer.steps[:-1],
        "micro_batches": trainer.micro_batches,
        "steps": trainer.state.global_step,
        "max_steps": trainer.state.max_steps,
        "epoch": trainer.state.epoch,
        "loader": loader,
        "scheduler": trainer.lr_scheduler.last_epoch,
        "train_loss": output.training_loss,
        "weights": torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()]),
    }


def train_with_slow_planning(out: str, seconds: float, **settings: Any) -> dict[str, Any]:
    """Planning takes longer than the ranks wait for each other, and on rank 1 longest."""
    plan = arrange.plan_dataset

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds + 0.5 * int(os.environ.get("RANK", 0)))
        return plan(*args, **kwargs)

    arrange.plan_dataset = slow
    return train(out, **settings)


def train_with_different_plans(out: str, **settings: Any) -> dict[str, Any]:
    """Rank 1 plans otherwise than rank 0, as with another version of the data or the library."""
    plan = arrange.plan_dataset

    def other(*args: Any, **kwargs: Any) -> Any:
        return plan(*args, **(kwargs | {"seed": int(os.environ["RANK"])}))

    arrange.plan_dataset = other
    return train(out, **settings)


def refused(out: str, **settings: Any) -> str:
    """The message a run is refused with before it starts."""
    try:
        train(out, **settings)
    except PackingError as error:
        return str(error)
    return "not refused"
