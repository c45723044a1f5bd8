"""Preparation: what happens to a sequence before it is packed, as one frozen set of choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import PackingError


__all__ = ["Preparation"]


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How sequences are read: which column, which special tokens, which labels.

    Every number of tokens (lengths, plans, ledgers) is meant after preparation.
    """

    column: str = "input_ids"
    """Column that holds the token ids; the packed column is always called input_ids."""
    ensure_bos: int | None = None
    """Id put in front of sequences that do not begin with it; after truncate_left it takes the first kept place."""
    bos_id: int | None = None
    """Id that counts as a beginning."""
    ensure_eos: int | None = None
    """Id put behind sequences that end in none of `eos_ids`; after truncate it takes the last kept place."""
    eos_ids: tuple[int, ...] = ()
    """Every id that counts as an end; templates often write another one than the tokenizer's."""
    mask_eos_loss: bool = False
    """Whether the end token of a sequence is no target."""
    isolate: bool = True
    """False: a pack is one continuous text, with one seq_length and attention across all of it."""
    overflow: str = "error"
    """The plan's policy; only a truncated piece gets its end back."""

    def __post_init__(self) -> None:
        if self.mask_eos_loss and not self.eos_ids:
            raise PackingError("mask_eos_loss=True needs the id of the end token; pass eos_token_id.")

    @classmethod
    def resolve(
        cls,
        *,
        column: str = "input_ids",
        ensure_bos: bool | int = False,
        ensure_eos: bool | int = False,
        bos_token_id: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        mask_eos_loss: bool = False,
        isolate: bool = True,
        overflow: str = "error",
    ) -> Preparation:
        """From the options users pass: an id can stand in `ensure_*` itself or in `*_token_id`.

        Several end ids are accepted as ends; the first is the one that is appended.

        Example:

            >>> Preparation.resolve(ensure_eos=True, eos_token_id=[7, 2]).eos_ids
            (7, 2)
            >>> Preparation.resolve(ensure_eos=2).ensure_eos
            2
        """
        eos_ids = _ids(eos_token_id)
        bos = _special("ensure_bos", ensure_bos, _ids(bos_token_id), "bos_token_id")
        eos = _special("ensure_eos", ensure_eos, eos_ids, "eos_token_id")
        return cls(
            column=column,
            ensure_bos=bos,
            bos_id=bos_token_id if bos is None else bos,
            ensure_eos=eos,
            eos_ids=tuple(dict.fromkeys(([] if eos is None else [eos]) + eos_ids)),
            mask_eos_loss=mask_eos_loss,
            isolate=isolate,
            overflow=str(overflow),
        )


def _ids(given: int | Sequence[int] | None) -> list[int]:
    if given is None:
        return []
    return [given] if isinstance(given, int) else [int(token) for token in given]


def _special(name: str, asked: bool | int, ids: list[int], id_name: str) -> int | None:
    if asked is False or asked is None:
        return None
    if asked is not True:
        return int(asked)
    if not ids:
        raise PackingError(f"{name}=True needs the id of the token; pass {id_name}, or the id itself as {name}.")
    return ids[0]
