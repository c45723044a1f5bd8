"""The command line: hf-packing report | pack | check | train."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ..errors import ContaminationError, PackingError
from . import check, pack, report, train


__all__ = ["main"]

EXIT_CODES = "exit codes: 0 done; 1 a model leaks between packed sequences; 2 bad input, settings or usage"

EPILOG = f"""\
examples:
  hf-packing report chats.jsonl --tokenizer ./my-model --max-length 2048 --html bill.html
  hf-packing pack tokens.parquet packed/ --max-length 2048 --overflow truncate
  hf-packing check ./my-model
  hf-packing train --config recipes/quickstart.yaml

{EXIT_CODES}
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-packing",
        description="What padding costs, packs without leaks, and training on them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="report | pack | check | train")
    for command in (report, pack, check, train):
        command.add_parser(commands)
    return parser


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done, 1 leak, 2 bad input), errors as one line on stderr.

    Args:
        argv (`[str]`, *optional*): arguments without the program's name; defaults to `sys.argv[1:]`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    show = arguments[:1] == ["--traceback"]
    # `train` hands everything behind it to the recipe's own parser, which knows TRL's several hundred options.
    if arguments[show:][:1] == ["train"]:
        args = argparse.Namespace(run=train.run, rest=arguments[show + 1 :], traceback=show)
    else:
        args = _parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("hf-packing: interrupted", file=sys.stderr)
        return 130
    # ValueError is what Transformers and TRL raise for settings they refuse.
    except (ValueError, OSError) as error:
        if args.traceback:
            raise
        hint = "" if isinstance(error, PackingError | OSError) else " (hf-packing --traceback ... shows where)"
        print(f"hf-packing: {_one_line(error)}{hint}", file=sys.stderr)
        return 1 if isinstance(error, ContaminationError) else 2
