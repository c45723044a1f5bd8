"""`hf-packing report`: what padding costs and what packing saves, for a file of text, chats or tokens."""

from __future__ import annotations

import argparse


__all__ = ["add_parser", "run"]

EPILOG = """\
examples:
  hf-packing report chats.jsonl --tokenizer ./my-model --max-length 2048
  hf-packing report tokens.parquet --batch-size 16 --html bill.html --json bill.json
  hf-packing report stanfordnlp/imdb --split train --tokenizer gpt2 --limit 10000 --json
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    from .source import add_source_arguments

    parser = commands.add_parser(
        "report",
        help="what padding costs and what packing saves",
        description="Compare layouts of the same rows: padded, length-grouped, padding-free, packed.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source_arguments(parser)
    parser.add_argument("--max-length", type=int, default=2048, help="capacity of a row in tokens (default: 2048)")
    parser.add_argument("--batch-size", type=int, default=8, help="rows a batch (default: 8)")
    parser.add_argument("--overflow", default="truncate", help="what happens to longer rows (default: truncate)")
    parser.add_argument("--strategies", help="comma-separated strategies to compare (default: all)")
    parser.add_argument("--seed", type=int, help="shuffle the padded batches (default: the order of the rows)")
    parser.add_argument("--hidden-size", type=int, default=2048, help="width of the model, for guessed times")
    parser.add_argument("--eos-token-id", type=int, nargs="+", help="EOS to look for (default: the tokenizer's)")
    parser.add_argument("--bos-token-id", type=int, help="BOS to look for (default: the tokenizer's)")
    parser.add_argument("--html", metavar="FILE", help="write the report as one page")
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", help="write the figures; without FILE, print")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, tokenise, count, print."""
    from ..report import padding_report
    from .source import load_rows
    from .tokens import load_tokenizer, tokenise

    rows = load_rows(args.source, split=args.split, config=args.config, limit=args.limit)
    tokenizer = load_tokenizer(args.tokenizer, args.gguf_file) if args.tokenizer else None
    tokens = tokenise(rows, tokenizer, text_column=args.text_column, num_proc=args.num_proc)
    bill = padding_report(
        tokens,
        max_length=args.max_length,
        batch_size=args.batch_size,
        seed=args.seed,
        overflow=args.overflow,
        strategies=tuple(args.strategies.split(",")) if args.strategies else None,
        hidden_size=args.hidden_size,
        tokenizer=tokenizer,
        eos_token_id=args.eos_token_id,
        bos_token_id=args.bos_token_id,
    )
    if args.json == "-":
        print(bill.to_json())
    else:
        print(bill.to_text())
    if args.json and args.json != "-":
        bill.to_json(args.json)
        print(f"figures: {args.json}")
    if args.html:
        written = bill.to_html(args.html)
        if args.json != "-":
            print(f"page: {written}")
    return 0
