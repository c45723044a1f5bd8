"""What `hf-packing train` and recipes/sft.py run: a TRL-style recipe, from a YAML file or options, to a model."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import (
    DatasetMixtureConfig,
    ModelConfig,
    ScriptArguments,
    TrlParser,
    get_dataset,
    get_peft_config,
    get_quantization_config,
)

from ..data import dataset_lengths
from ..errors import PackingError
from ..report import padding_report, text_table
from .bundled import PREFIX, load_package_model, python_library_pairs
from .config import PackingSFTConfig
from .sft_trainer import PackingSFTTrainer


__all__ = ["PackingScriptArguments", "main"]

_FILES = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".arrow": "arrow", ".csv": "csv"}


@dataclass
class PackingScriptArguments(ScriptArguments):
    """TRL's script arguments, and what a run shows besides training."""

    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many rows."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many rows."})
    max_characters: int | None = field(
        default=None, metadata={"help": "With dataset_name=package:python: leave out pairs longer than this."}
    )
    compare_padded: bool = field(
        default=False,
        metadata={
            "help": "Train the same sequences in padded batches first, from the same weights, and print both side by "
            "side."
        },
    )
    ask: str | None = field(
        default=None, metadata={"help": "A question for the saved model, loaded again, when training is done."}
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """One pass over the training set, as it was measured."""

    layout: str
    steps: int
    slots: int
    tokens: int
    seconds: float
    loss: float


def main(argv: Sequence[str] | None = None) -> None:
    """Parse, train, evaluate, save.

    Args:
        argv (*optional*): options, `--config recipe.yaml` among them; the command line when not given.
    """
    parser = TrlParser(
        (PackingScriptArguments, PackingSFTConfig, ModelConfig, DatasetMixtureConfig), prog="hf-packing train"
    )
    script, training, model_config, mixture = parser.parse_args_and_config(args=None if argv is None else list(argv))
    started = time.perf_counter()
    train_set, eval_set = _datasets(script, training, mixture)
    model, tokenizer = _model(model_config, training)
    trainer = _trainer(model, training, train_set, eval_set, tokenizer, model_config)
    say = trainer.accelerator.print
    _print_bill(trainer)
    measured = []
    if script.compare_padded:
        measured.append(_padded(trainer, model, training, train_set, tokenizer))
    measured.append(_train(trainer, "packed" if training.packing else "as given"))
    if training.eval_strategy == "no" and eval_set is not None:
        say(f"eval_loss {trainer.evaluate()['eval_loss']:.4f}")
    trainer.save_model(training.output_dir)
    say(f"Saved to {training.output_dir}")
    if script.ask and trainer.is_world_process_zero():
        print(f"Q: {script.ask}\nA: {_answer(training.output_dir, script.ask)}")
    if script.compare_padded:
        say(_table(measured))
    say(f"Done in {time.perf_counter() - started:.0f} s")
    if training.push_to_hub:
        trainer.push_to_hub(dataset_name=script.dataset_name)
    trainer.end()


def _datasets(script: Any, training: Any, mixture: Any) -> tuple[Any, Any]:
    wants_eval = training.eval_strategy != "no" or script.max_eval_samples is not None
    name = script.dataset_name
    if name == f"{PREFIX}python":
        pairs = python_library_pairs(training.seed, script.max_characters)
        held_out = min(script.max_eval_samples or 64, len(pairs) // 10)
        train_set, eval_set = pairs.select(range(held_out, len(pairs))), pairs.select(range(held_out))
    elif mixture.datasets:
        splits = get_dataset(mixture)
        train_set, eval_set = splits[script.dataset_train_split], splits.get(script.dataset_test_split)
    elif name:
        splits = _load(name, script)
        train_set, eval_set = splits[script.dataset_train_split], splits.get(script.dataset_test_split)
    else:
        raise PackingError(
            "No dataset: set dataset_name (a hub name, a file, package:python) or datasets in the recipe."
        )
    if wants_eval and eval_set is None:
        raise PackingError(
            f"eval_strategy={str(training.eval_strategy)!r} needs a split {script.dataset_test_split!r}, which "
            f"{name or 'the mixture'} does not have; set dataset_test_split, or eval_strategy: 'no'."
        )
    return _first(train_set, script.max_train_samples), _first(
        eval_set, script.max_eval_samples
    ) if wants_eval else None


def _load(name: str, script: Any) -> Any:
    kind = _FILES.get(Path(name).suffix)
    if kind is not None:
        if not Path(name).exists():
            raise PackingError(f"dataset_name={name!r}: there is no such file.")
        return load_dataset(kind, data_files={script.dataset_train_split: name}, streaming=script.dataset_streaming)
    return load_dataset(name, name=script.dataset_config, streaming=script.dataset_streaming)


def _first(dataset: Any, rows: int | None) -> Any:
    if dataset is None or rows is None:
        return dataset
    return dataset.select(range(min(rows, len(dataset)))) if isinstance(dataset, Dataset) else dataset.take(rows)


def _model(config: Any, training: Any) -> tuple[Any, Any]:
    """A model from an installed package, or what TRL's trainer loads by name with the recipe's settings."""
    name = config.model_name_or_path
    if name is None:
        raise PackingError("No model: set model_name_or_path in the recipe.")
    if name.startswith(PREFIX):
        model, tokenizer = load_package_model(name.removeprefix(PREFIX))
        if config.attn_implementation is not None:
            model.set_attn_implementation(config.attn_implementation)
        return model, tokenizer
    given = dict(training.model_init_kwargs or {})
    training.model_init_kwargs = {
        "revision": config.model_revision,
        "attn_implementation": config.attn_implementation,
        "dtype": config.dtype,
        **given,
    }
    return name, None


def _trainer(
    model: Any, training: Any, train_set: Any, eval_set: Any, tokenizer: Any, config: Any
) -> PackingSFTTrainer:
    return PackingSFTTrainer(
        model=model,
        args=training,
        train_dataset=train_set,
        eval_dataset=eval_set,
        processing_class=tokenizer,
        quantization_config=get_quantization_config(config),
        peft_config=get_peft_config(config),
    )


def _print_bill(trainer: PackingSFTTrainer) -> None:
    """What padding these sequences would cost, and what the packs save."""
    plan = getattr(trainer.train_dataset, "plan", None)
    if plan is None:
        trainer.accelerator.print("The padding bill needs all lengths before training; a stream has none.")
        return
    bill = padding_report(
        dataset_lengths(trainer.train_dataset.dataset),
        max_length=plan.max_length,
        batch_size=trainer.args.per_device_train_batch_size,
        overflow=plan.overflow,
    )
    trainer.accelerator.print(bill.to_text())
    tokens = plan.ledger.tokens_packed
    trainer.accelerator.print(f"Budget: {tokens:,} real tokens a pass, {trainer.args.num_train_epochs:g} passes.")


def _train(trainer: PackingSFTTrainer, layout: str) -> _Measured:
    resume = trainer.args.resume_from_checkpoint
    before, started = trainer.state.global_step, time.perf_counter()
    result = trainer.train(resume_from_checkpoint=resume)
    run = trainer.meter.run
    return _Measured(
        layout=layout,
        steps=result.global_step - before,
        slots=run.slots,
        tokens=run.tokens,
        seconds=time.perf_counter() - started,
        loss=result.training_loss,
    )


def _padded(trainer: PackingSFTTrainer, model: Any, training: Any, train_set: Any, tokenizer: Any) -> _Measured:
    """The same sequences in padded batches from the same weights, as without packing; the weights are put back."""
    if isinstance(model, str) or training.max_steps > 0:
        raise PackingError(
            "compare_padded trains one model twice: it needs model_name_or_path=package:… and no max_steps."
        )
    kept = copy.deepcopy(model.state_dict())
    padded_args = copy.deepcopy(training)
    padded_args.packing, padded_args.eval_strategy, padded_args.save_strategy = False, "no", "no"
    attention = model.config._attn_implementation
    padded = PackingSFTTrainer(model=model, args=padded_args, train_dataset=train_set, processing_class=tokenizer)
    measured = _train(padded, "padded")
    model.load_state_dict(kept)
    model.set_attn_implementation(attention)
    return measured


def _answer(folder: str, question: str) -> str:
    """Load what was saved and ask it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        tokens = model.generate(**prompt, max_new_tokens=24, do_sample=False)
    return tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def _table(rows: list[_Measured]) -> str:
    header = ["measured", "steps", "slots", "real tokens", "fill", "seconds", "real tokens/s", "loss"]
    body = [
        [
            row.layout,
            f"{row.steps:,}",
            f"{row.slots:,}",
            f"{row.tokens:,}",
            f"{row.tokens / max(row.slots, 1):.1%}",
            f"{row.seconds:.1f}",
            f"{row.tokens / row.seconds:.1f}",
            f"{row.loss:.4f}",
        ]
        for row in rows
    ]
    return text_table(header, body)
