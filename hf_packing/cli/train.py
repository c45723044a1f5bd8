"""`hf-packing train`: supervised fine-tuning on packs, from the same YAML and options as `trl sft`."""

from __future__ import annotations

import argparse


__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Name the command in the list; its options are the recipe's own."""
    commands.add_parser(
        "train", help="train on packs: --config recipe.yaml, and every option of `trl sft`", add_help=False
    )


def run(args: argparse.Namespace) -> int:
    """Hand the arguments to the recipe."""
    from ..train.run import main

    main(args.rest)
    return 0
