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


EXAMPLES = """\
examples:
  hf-packing train --config recipes/quickstart.yaml
  hf-packing train --config recipe.yaml --learning_rate 1e-5 --max_steps 100     # options win over the file
  torchrun --nproc_per_node 8 -m hf_packing.cli train --config recipe.yaml
"""


def _recipe() -> Callable[[list[str]], Any]:
    from ..train.run import main

    return main


def run(args: argparse.Namespace) -> int:
    """Hand the arguments to the recipe."""
    if {"-h", "--help"} & set(args.rest):
        print(EXAMPLES)
    _recipe()(args.rest)
    return 0
