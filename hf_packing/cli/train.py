"""`hf-packing train`: supervised fine-tuning on packs, from the same YAML and options as `trl sft`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Name the command in the list; its options are the recipe's own."""
    commands.add_parser(
        "train", help="train on packs: --config recipe.yaml, and every option of `trl sft`", add_help=False
    )


def _recipe() -> Callable[[list[str]], Any]:
    from ..train.run import main

    return main


def run(args: argparse.Namespace) -> int:
    """Hand the arguments to the recipe."""
    _recipe()(args.rest)
    return 0
