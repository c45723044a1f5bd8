"""Rows from a file, a folder or the Hub, as a dataset."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import PackingError


if TYPE_CHECKING:
    from datasets import Dataset


__all__ = ["add_source_arguments", "load_rows"]

BUILDERS = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".txt": "text",
}


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say what to read and how to tokenise it, shared by `report` and `pack`."""
    parser.add_argument(
        "source",
        help="a json, jsonl, parquet, arrow, csv or txt file, a folder (save_to_disk too), a Hub name, or "
        "package:python",
    )
    parser.add_argument("--config", help="configuration of a Hub dataset")
    parser.add_argument("--split", default="train", help="split to read (default: train)")
    parser.add_argument("--limit", type=int, help="read only the first N rows")
    parser.add_argument("--tokenizer", help="folder or Hub name; needed unless the rows have input_ids")
    parser.add_argument("--gguf-file", help="read the tokenizer from this GGUF file of the folder")
    parser.add_argument("--text-column", default="text", help="column of plain text (default: text)")
    parser.add_argument("--num-proc", type=int, help="processes that tokenise")


def _load_folder(path: Path, split: str) -> Dataset:
    from datasets import DatasetDict, load_dataset, load_from_disk

    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        loaded = load_from_disk(str(path))
        if not isinstance(loaded, DatasetDict):
            return loaded
        if split not in loaded:
            raise PackingError(f"{path} has the splits {sorted(loaded)}, not {split!r}; choose one with --split.")
        return loaded[split]
    return load_dataset(str(path), split=split)


def load_rows(source: str, *, split: str = "train", config: str | None = None, limit: int | None = None) -> Dataset:
    """Read a local file or folder, or a dataset of the Hub.

    Args:
        source: path or Hub name, a path that exists wins; `package:python` is docstring-to-code pairs of the standard
            library.
        split: split of a folder or Hub dataset; a single file has one split.
        config: configuration of a Hub dataset.
        limit: first rows to keep.

    Raises:
        PackingError: a path that does not exist, an unknown file type, an unknown split, or a file that is not what
            its name says.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    from ..train.bundled import PREFIX, python_library_pairs

    path = Path(source)
    try:
        if source == f"{PREFIX}python":
            rows = python_library_pairs()
        elif path.is_file():
            builder = BUILDERS.get(path.suffix.lower())
            if builder is None:
                raise PackingError(f"{source} ends in {path.suffix!r}; known are {', '.join(BUILDERS)}.")
            rows = load_dataset(builder, data_files=str(path), split="train")
        elif path.is_dir():
            rows = _load_folder(path, split)
        elif path.suffix.lower() in BUILDERS or source.startswith((".", "/", "~")) or os.sep * 2 in source:
            raise PackingError(f"There is no file or folder {source}.")
        else:
            rows = load_dataset(source, config, split=split)
    except PackingError:
        raise
    except DatasetGenerationError as error:
        raise PackingError(f"{source} could not be read: {error.__cause__ or error}") from error
    except (ConnectionError, DatasetNotFoundError, FileNotFoundError) as error:
        raise PackingError(f"There is no file or folder {source}, and the Hub did not give it: {error}") from error
    except ValueError as error:  # an unknown split or configuration; the text lists the known ones
        raise PackingError(f"{source}: {error}") from error
    return rows.select(range(min(limit, len(rows)))) if limit is not None else rows
