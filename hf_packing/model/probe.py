"""The probe of check_isolation: a few short sequences, in the batch form of the run.

The form is PaddingFreeCollator's (data/): restarting position_ids, explicit offsets and seq_idx where asked for, rows
of equal length with pads as one segment of their own where the layout is "rows".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch

from ..data.boundaries import (
    cu_seqlens_from_lengths,
    cu_seqlens_from_position_ids,
    position_ids_from_lengths,
    seq_idx_from_lengths,
)
from ..errors import PackingError


__all__ = ["Probe", "probe_lengths"]

WINDOW_LIMIT = 512
"""Windows and chunks up to this many tokens are crossed by a sequence of the probe."""


def probe_lengths(window: int | None) -> tuple[int, ...]:
    """Lengths with the edges in them: a leading single token, one in the middle, one longer than the window.

    Example:

        >>> probe_lengths(None)
        (1, 6, 1, 13, 5)
        >>> probe_lengths(32)
        (1, 6, 1, 35, 5)
    """
    longest = window + 3 if window is not None and 10 < window <= WINDOW_LIMIT else 13
    return (1, 6, 1, longest, 5)


@dataclass(frozen=True, eq=False)
class Probe:
    """Sequences and the batch they form.

    Args:
        ids (int64 `[T]`): tokens of all segments, pads included.
        lengths: of the segments, in batch order; they tile `ids`.
        rows (`int`): rows of the batch; T is a multiple of it.
        pads: numbers of the segments that hold pads.
        boundaries ("position_ids" | "explicit"), position_ids_start (`int`): as the collator takes them.
        given (`dict`, *optional*): a batch of the user's; only its input_ids are replaced.
    """

    ids: torch.Tensor
    lengths: tuple[int, ...]
    rows: int = 1
    pads: frozenset[int] = frozenset()
    boundaries: str = "position_ids"
    position_ids_start: int = 0
    given: dict[str, Any] | None = None

    @classmethod
    def build(
        cls, lengths: tuple[int, ...], vocabulary: torch.Tensor, *, layout: str, boundaries: str, start: int
    ) -> Probe:
        """A probe with random tokens of `vocabulary`.

        With layout "rows" the last two sequences make the second row, and the shorter row is filled up with pads.
        """
        pads: frozenset[int] = frozenset()
        if layout == "rows":
            first, second = lengths[:-2], lengths[-2:]
            width = max(sum(first), sum(second)) + 2
            lengths = (*first, width - sum(first), *second, width - sum(second))
            pads = frozenset({len(first), len(lengths) - 1})
        probe = cls(torch.empty(0), lengths, 2 if layout == "rows" else 1, pads, boundaries, start)
        return replace(probe, ids=_random_ids(vocabulary, sum(lengths)))

    @classmethod
    def from_batch(cls, batch: dict[str, Any]) -> Probe:
        """A probe in the form of this batch, whatever that is; its sequences are read off offsets or positions."""
        ids = batch.get("input_ids")
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
            raise PackingError("check_isolation(batch=...) needs input_ids [B, L], as a collator gives them.")
        offsets = batch.get("cu_seq_lens_q")
        positions = batch.get("position_ids")
        if offsets is None and (not isinstance(positions, torch.Tensor) or positions.ndim != 2):
            raise PackingError(
                "check_isolation(batch=...) needs position_ids [B, L] or cu_seq_lens_q to know the sequences."
            )
        if offsets is None and positions is not None:
            offsets, _ = cu_seqlens_from_position_ids(positions.expand(ids.shape))
        assert offsets is not None
        lengths = tuple(stop - start for start, stop in pairwise(offsets.tolist()) if stop > start)
        return cls(ids.reshape(-1), lengths, rows=ids.shape[0], given=batch)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """First token and end of each segment."""
        return list(pairwise(accumulate(self.lengths, initial=0)))

    @property
    def sequences(self) -> list[int]:
        """Numbers of the segments that are no pads."""
        return [number for number in range(len(self.lengths)) if number not in self.pads]

    def changed(self, numbers: list[int], vocabulary: torch.Tensor) -> Probe:
        """The same probe with every token of these segments replaced by another token."""
        ids = self.ids.clone()
        for number in numbers:
            start, stop = self.spans[number]
            ids[start:stop] = _other_ids(ids[start:stop], vocabulary)
        return replace(self, ids=ids)

    def batch(self, device: torch.device) -> dict[str, Any]:
        """Arguments of the model's forward."""
        ids = self.ids.reshape(self.rows, -1)
        if self.given is not None:
            moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in self.given.items()}
            moved.pop("labels", None)
            return {**moved, "input_ids": ids.to(device)}
        positions = torch.from_numpy(position_ids_from_lengths(self.lengths, self.position_ids_start))
        batch: dict[str, Any] = {"input_ids": ids.to(device), "position_ids": positions.reshape(ids.shape).to(device)}
        if self.boundaries == "explicit":
            offsets = torch.from_numpy(cu_seqlens_from_lengths(self.lengths)).to(device)
            index = torch.from_numpy(seq_idx_from_lengths(self.lengths)).reshape(ids.shape).to(device)
            longest = max(self.lengths)
            batch |= {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets.clone(), "seq_idx": index}
            batch |= {"max_length_q": longest, "max_length_k": longest}
        return batch

    def alone(self, number: int, device: torch.device) -> dict[str, Any]:
        """One sequence by itself, as anybody would run it: tokens and nothing else."""
        start, stop = self.spans[number]
        return {"input_ids": self.ids[start:stop].reshape(1, -1).to(device)}

    def split(self, per_token: torch.Tensor) -> Iterator[torch.Tensor]:
        """`[B, L, ...]` -> one `[l, ...]` a segment."""
        yield from per_token.flatten(0, 1).split(self.lengths)


def _random_ids(vocabulary: torch.Tensor, count: int) -> torch.Tensor:
    return vocabulary[torch.randint(len(vocabulary), (count,))]


def _other_ids(ids: torch.Tensor, vocabulary: torch.Tensor) -> torch.Tensor:
    new = _random_ids(vocabulary, ids.numel())
    # A token drawn again would change nothing: take the next one of the vocabulary (its neighbour by index).
    place = torch.searchsorted(vocabulary, new)
    following = vocabulary[(place + 1) % len(vocabulary)]
    return torch.where(new == ids.cpu(), following, new)
