"""Does a step train what its definition says? The same classes on TRL or Transformers alone, and on this package.

    python benchmarks/equivalence.py             # the table, 2 minutes on one core

Twelve sequences of 2 to 31 tokens, a third of the labels masked; two-layer models in float32 on the CPU. The
reference runs each sequence alone and adds gradients up (tests/equivalence/trajectory.py), so the definition alone
decides: the mean over all targets of the step. `gradient` is the relative error of the whole gradient, `loss` the
absolute error of the logged loss (of `eval_loss` in evaluation), both the largest over the steps of the class. Numbers
that are no losses (counters, rows that metrics see) stand at the end of the line.

What is right today on the other side is in the table like what is not.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import accelerate
import datasets
import torch
import transformers
import trl
from datasets import Dataset, IterableDataset
from peft import LoraConfig, get_peft_model
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer


HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import hf_packing  # noqa: E402 (found beside this folder)
from hf_packing import (  # noqa: E402
    PackingSFTConfig,
    PackingSFTTrainer,
    PackingTrainer,
    PackingTrainingArguments,
)
from tests.equivalence import trajectory as t  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class Row:
    """One class on one side."""

    name: str
    who: str
    gradient: float | None = None
    loss: float | None = None
    found: str = ""


ROWS = t.sequences()
WHOLE = {"gradient_accumulation_steps": 50, "num_train_epochs": 1}


def train(cls: Any, config: Any, model: Any, rows: Any, settings: dict[str, Any], **given: Any) -> tuple[Any, Any]:
    """The trainer after its run, and its trajectory."""
    record = t.Record()
    if issubclass(cls, SFTTrainer):
        given.setdefault("processing_class", t.tokenizer())
    elif cls is Trainer or config is TrainingArguments:
        given.setdefault("data_collator", DataCollatorForSeq2Seq(t.tokenizer(), padding=True))
    rows = Dataset.from_list(rows) if isinstance(rows, list) else rows
    with tempfile.TemporaryDirectory() as out:
        args = config(**t.settings(out, **settings))
        trainer = cls(model, args, train_dataset=rows, callbacks=[record], **given)
        if settings.get("num_train_epochs") == 1 and settings.get("gradient_accumulation_steps") == 50:
            args.gradient_accumulation_steps = len(trainer.get_train_dataloader())
        trainer.train()
    return trainer, record.trajectory


def distance(name: str, who: str, found: Any, expected: Any) -> Row:
    errors = t.distance(found, expected)
    return Row(name=name, who=who, gradient=errors["gradient"], loss=errors["loss"])


def with_mean(base: type) -> type:
    class Mean(base):  # type: ignore[misc, valid-type]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    return Mean


class WithoutLossArguments(GPT2LMHeadModel):
    """A head that takes no loss arguments, as older and private models."""

    accepts_loss_kwargs = False


def gpt2() -> Any:
    model = t.build("gpt2")
    model.__class__ = WithoutLossArguments
    return model


SIDES = {
    "trl": (SFTTrainer, SFTConfig),
    "transformers": (Trainer, TrainingArguments),
    "ours, over trl": (PackingSFTTrainer, PackingSFTConfig),
    "ours, over transformers": (PackingTrainer, PackingTrainingArguments),
}
SFT = ("trl", "ours, over trl")
PLAIN = ("transformers", "ours, over transformers")


def a_step(
    name: str,
    sides: tuple[str, ...],
    build: Callable[[], Any] = t.build,
    theirs: dict[str, Any] | None = None,
    ours: dict[str, Any] | None = None,
    smoothing: float = 0.0,
    normalization: str = "token",
    **settings: Any,
) -> list[Row]:
    """One step over the whole set on each side; `theirs` and `ours` are settings of one side only."""
    expected = t.reference(build(), ROWS, 1, normalization, smoothing)
    out = []
    for who in sides:
        cls, config = SIDES[who]
        own = dict((ours if who.startswith("ours") else theirs) or {})
        given = {key: own.pop(key) for key in ("cls", "compute_loss_func", "data_collator") if key in own}
        cls = given.pop("cls", lambda base: base)(cls)
        _, found = train(cls, config, build(), ROWS, {**WHOLE, **settings, **own}, **given)
        out.append(distance(name, who, found, expected))
    return out


def unpacked(**extra: Any) -> dict[str, Any]:
    return {"packing": False, **extra}


def steps() -> list[Row]:
    packed = {"packing": True, "max_length": 48, "per_device_train_batch_size": 1}
    flat = {"data_collator": DataCollatorWithFlattening()}
    rows = []
    for batch in (1, 3, 12):
        rows += a_step(f"padded rows, {batch} a micro-batch", SFT, packing=False, per_device_train_batch_size=batch)
    rows += a_step("packed, one pack a micro-batch", SFT, **packed)
    rows += a_step("packed, two packs a micro-batch", SFT, **{**packed, "per_device_train_batch_size": 2})
    rows += a_step("flattened, 3 sequences a micro-batch", PLAIN, theirs=flat, ours=unpacked(padding_free=True),
                   per_device_train_batch_size=3)  # fmt: skip
    rows += a_step("Qwen3, packed", SFT, lambda: t.build("qwen3"), **packed)
    rows += a_step("LoRA, packed", SFT, lora, **packed)
    rows += a_step("label smoothing, packed", SFT, smoothing=0.1, label_smoothing_factor=0.1, **packed)
    rows += a_step("label smoothing, padded", PLAIN, ours=unpacked(), smoothing=0.1, label_smoothing_factor=0.1,
                   per_device_train_batch_size=3)  # fmt: skip
    rows += a_step("a model without loss arguments, padded", PLAIN, gpt2, ours=unpacked(),
                   per_device_train_batch_size=3)  # fmt: skip
    mean = {"cls": with_mean}
    rows += a_step("compute_loss that returns a mean, padded", PLAIN, theirs=mean, ours={**mean, "packing": False},
                   per_device_train_batch_size=3)  # fmt: skip
    function = {"compute_loss_func": by_count}
    rows += a_step("compute_loss_func by the count, packed", SFT, theirs=function, ours=function, **packed)
    rows += a_step("every sequence weighs the same, packed", ("ours, over trl",), normalization="sequence",
                   loss_normalization="sequence", **packed)  # fmt: skip
    return rows


def lora() -> Any:
    torch.manual_seed(5)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return get_peft_model(t.build(), config)


def by_count(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    logits = outputs["logits"][:, :-1].float().flatten(0, 1)
    total = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    return total / (num_items_in_batch if num_items_in_batch is not None else (labels[:, 1:] != -100).sum())


def masked_language_model() -> list[Row]:
    """RobertaForMaskedLM takes **kwargs and drops the count: 3 and 1 targets in two micro-batches."""

    def build() -> Any:
        torch.manual_seed(3)
        small = dict(vocab_size=61, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
        small |= dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return RobertaForMaskedLM(RobertaConfig(**small, initializer_range=0.2))

    rows = [
        {"input_ids": [4, 5, 6, 7], "labels": [-100, 5, 6, 7]},
        {"input_ids": [8, 9, 4, 5], "labels": [-100] * 3 + [5]},
    ]
    model, total = build(), 0.0
    for row in rows:
        logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0]
        total = total + torch.nn.functional.cross_entropy(logits, torch.tensor(row["labels"]), reduction="sum")
    (total / 4).backward()
    expected = t.Trajectory([total.item() / 4], [t.flat_gradient(model)])
    out = []
    for who, extra in zip(PLAIN, ({}, {"packing": False})):
        settings = {**WHOLE, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 1, **extra}
        _, found = train(*SIDES[who], build(), rows, settings)
        out.append(distance("a head that drops the count, 2 micro-batches", who, found, expected))
    return out


def balancing_term() -> list[Row]:
    """Four equal sequences, so that the nonlinear term is the same for every split; coefficient 0.3."""

    def build() -> Any:
        return t.build("mixtral", router_aux_loss_coef=0.3, output_router_logits=True)

    rows, model = [ROWS[0]] * 4, build()
    ids = torch.tensor([rows[0]["input_ids"]])
    outputs = model(input_ids=ids, labels=ids, use_cache=False)
    outputs.loss.backward()
    out = []
    for name, sides, extra in (
        ("balancing term of a mixture, 4 micro-batches, SFT", SFT, {"packing": False}),
        ("balancing term of a mixture, 4 micro-batches, Trainer", PLAIN, {}),
    ):
        for who in sides:
            own = {"packing": False} if who.startswith("ours") else extra
            settings = {**WHOLE, "gradient_accumulation_steps": 4, "per_device_train_batch_size": 1, **own}
            _, found = train(*SIDES[who], build(), rows, settings)
            expected = t.flat_gradient(model)
            error = ((found.gradients[0] - expected).norm() / expected.norm()).item()
            out.append(Row(name=name, who=who, gradient=error))
    return out


def windows() -> list[Row]:
    """Five rows, two a step: the third step is the fifth row alone."""
    rows = [row for row in ROWS if len(row["input_ids"]) > 10][:5]
    out = []
    for kind in ("dataset", "stream"):
        for who in ("trl", "transformers", "ours, over trl", "ours, over transformers"):
            data = Dataset.from_list(rows) if kind == "dataset" else IterableDataset.from_generator(lambda: iter(rows))
            own = {"packing": False} if who.startswith("ours") else {}
            settings = {
                "gradient_accumulation_steps": 2, "per_device_train_batch_size": 1, "max_steps": 5,
                "learning_rate": 0.0, **own,
            }  # fmt: skip
            if kind == "dataset":
                settings["train_sampling_strategy"] = "sequential"
            _, found = train(*SIDES[who], t.build(), data, settings)
            parts = [rows[0:2], rows[2:4], rows[4:5]]
            expected = t.Trajectory()
            for part in [*parts, *parts[:2]]:
                one = t.reference(t.build(), part, 1)
                expected.losses += one.losses
                expected.gradients += one.gradients
            out.append(distance(f"5 rows, 2 a step, 5 steps, {kind}", who, found, expected))
    return out


def evaluation() -> list[Row]:
    """eval_loss against the sum over the sum, for batches of 1, 2 and 5 of five sequences; rows that metrics see."""
    rows = [ROWS[i] for i in (1, 3, 6, 9, 11)]
    model = t.build().eval()
    with torch.no_grad():
        expected = sum(t.nll_sum(model, row).item() for row in rows) / sum(map(t.targets, rows))
    out = []
    for name, sides, extra in (
        ("eval_loss, padded, batches of 1, 2, 5", SFT, {"packing": False}),
        ("eval_loss, packed, batches of 1, 2, 5", SFT, {"packing": True, "max_length": 32}),
        ("eval_loss, padded, batches of 1, 2, 5, Trainer", PLAIN, {}),
    ):
        for who in sides:
            cls, config = SIDES[who]
            own = {"packing": False} if who == PLAIN[1] and not extra else {}
            worst, seen = 0.0, []
            for size in (1, 2, 5):
                with tempfile.TemporaryDirectory() as folder:
                    args = config(**t.settings(folder, per_device_eval_batch_size=size, **extra, **own))
                    given: dict[str, Any] = {"processing_class": t.tokenizer()}
                    if who == "transformers":
                        given["data_collator"] = DataCollatorForSeq2Seq(t.tokenizer(), padding=True)
                    data = Dataset.from_list(rows)
                    trainer = cls(t.build(), args, train_dataset=data, eval_dataset=data, **given)
                    trainer.compute_metrics = lambda prediction: {"rows": len(prediction.label_ids)}
                    metrics = trainer.evaluate()
                    worst = max(worst, abs(metrics["eval_loss"] - expected))
                    seen.append(metrics["eval_rows"])
            out.append(Row(name=name, who=who, loss=worst, found=f"metrics see {seen} rows of 5"))
    return out


def counters() -> list[Row]:
    """Tokens seen, where the pad token is the end token and every sequence ends with it."""
    tokenizer = t.tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    rows = [{"input_ids": [*row["input_ids"][:-1], tokenizer.eos_token_id]} for row in ROWS]
    tokens = sum(len(row["input_ids"]) for row in rows)
    out = []
    for who in SFT:
        settings = {**WHOLE, "packing": True, "max_length": 48, "include_num_input_tokens_seen": "non_padding",
                    "pad_to_multiple_of": 16, "per_device_train_batch_size": 1}  # fmt: skip
        trainer, _ = train(*SIDES[who], t.build(), rows, settings, processing_class=tokenizer)
        logged = [entry["num_tokens"] for entry in trainer.state.log_history if "num_tokens" in entry][-1]
        found = f"num_tokens {logged:.0f}, num_input_tokens_seen {trainer.state.num_input_tokens_seen}, right {tokens}"
        out.append(Row(name="counters of a packed run with pads", who=who, found=found))
    return out


def environment() -> dict[str, Any]:
    modules = (hf_packing, torch, transformers, trl, accelerate, datasets)
    versions = {module.__name__: module.__version__ for module in modules}
    return versions | {"python": platform.python_version(), "cores": os.cpu_count(), "date": date.today().isoformat()}


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    rows: list[Row] = []
    with contextlib.redirect_stdout(io.StringIO()):
        for part in (steps, masked_language_model, balancing_term, windows, evaluation, counters):
            rows += part()
    print(f"{'class':<55}{'who':<25}{'gradient':>10}{'loss':>10}")
    for row in rows:
        numbers = "".join(f"{'':>10}" if value is None else f"{value:>10.1e}" for value in (row.gradient, row.loss))
        print(f"{row.name:<55}{row.who:<25}{numbers}  {row.found}".rstrip())
    path = HERE / "results" / "equivalence.json"
    results = {"environment": environment(), "classes": [asdict(row) for row in rows]}
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
