"""`hf-packing pack`: write a packed dataset and the plan it follows."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import PackingError


__all__ = ["add_parser", "run"]

EPILOG = """\
examples:
  hf-packing pack tokens.parquet packed/ --max-length 2048 --overflow truncate
  hf-packing pack chats.jsonl packed/ --tokenizer ./my-model --max-length 4096 --overflow split --drop-duplicates

The folder holds the packed dataset (datasets.load_from_disk) and plan.npz (hf_packing.PackPlan.load).
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    from .source import add_source_arguments

    parser = commands.add_parser(
        "pack",
        help="write a packed dataset and its plan",
        description="Tokenise rows where needed, plan packs, and write them with their plan.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source_arguments(parser)
    parser.add_argument("output", help="folder to write; it must not exist or be empty")
    parser.add_argument("--max-length", type=int, required=True, help="capacity of a pack in tokens")
    parser.add_argument("--strategy", default="auto", help="auto, bfd, optimal, stream, sequential, wrapped")
    parser.add_argument("--overflow", default="error", help="error, truncate, truncate_left, split, drop, own_pack")
    parser.add_argument("--max-sequences", type=int, help="most sequences in a pack")
    parser.add_argument("--multiple-of", type=int, default=1, help="slots a sequence occupies (context parallelism)")
    parser.add_argument("--seed", type=int, help="shuffle the packs")
    parser.add_argument("--ensure-eos", action="store_true", help="add the tokenizer's EOS where it is missing")
    parser.add_argument("--ensure-bos", action="store_true", help="add the tokenizer's BOS where it is missing")
    parser.add_argument("--drop-duplicates", action="store_true", help="keep the first of rows with equal tokens")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, tokenise, plan, write."""
    from ..data import pack_dataset
    from .source import load_rows
    from .tokens import load_tokenizer, tokenise

    output = Path(args.output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise PackingError(f"{output} exists and is not an empty folder; name another one, nothing was overwritten.")
    rows = load_rows(args.source, split=args.split, config=args.config, limit=args.limit)
    tokenizer = load_tokenizer(args.tokenizer, args.gguf_file) if args.tokenizer else None
    tokens = tokenise(rows, tokenizer, text_column=args.text_column, num_proc=args.num_proc)
    packed, plan = pack_dataset(
        tokens,
        max_length=args.max_length,
        strategy=args.strategy,
        overflow=args.overflow,
        max_sequences=args.max_sequences,
        multiple_of=args.multiple_of,
        seed=args.seed,
        drop_duplicates=args.drop_duplicates,
        ensure_eos=args.ensure_eos,
        ensure_bos=args.ensure_bos,
        eos_token_id=None if tokenizer is None else tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id if tokenizer is not None and args.ensure_bos else None,
        num_proc=args.num_proc,
        return_plan=True,
    )
    packed.save_to_disk(str(output))
    plan.save(output / "plan.npz")
    print(plan.describe())
    print(f"{plan.ledger.sequences_in:,} rows -> {plan.num_packs:,} packs in {output} (plan: {output / 'plan.npz'})")
    return 0
