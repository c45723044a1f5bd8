"""PackedStream: packs from data that comes one row at a time, in bounded memory, resumable at every row."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from ..errors import PackingError
from ..plan import TokenLedger
from ..plan.pieces import cut_overflow
from ..plan.policy import Overflow, parse_overflow
from ..plan.stream import StreamPacker
from .packed_row import PackedRow
from .preparation import Preparation
from .rows import IGNORE_INDEX
from .sequence import Sequence
from .stream_account import StreamAccount, decode_array, encode_array
from .upstream import Upstream


__all__ = ["PackedStream"]

logger = logging.getLogger(__name__)

_STATE_VERSION = 1


class PackedStream(IterableDataset[PackedRow]):
    """Packed rows, as `PackedDataset` gives them, from a `datasets.IterableDataset` or any iterable of rows.

    Sequences wait in a buffer of `buffer_size` and leave it in packs, nearly in the order they came; the last packs of
    a pass are given too, however full. Each iteration is one pass. Memory: the waiting sequences.

    `sequence_ids` number the rows of a pass from 0. `ledger` accounts for every row of the pass so far.

    Args:
        rows: rows with `input_ids` and what `PaddingFreeCollator` reads of a plain row.
        max_length (`int`): most tokens in a pack.
        buffer_size (`int`, *optional*, defaults to `1024`): sequences that wait; more of them fill packs better.
        method (`"auto"`, `"fill"` or `"rolling"`, *optional*): how packs are chosen, see `hf_packing.plan.stream`.
        overflow, max_sequences, multiple_of: as in `plan_packs`.
        share (`(int, int)`, *optional*, defaults to `(0, 1)`): (rank, ranks): only every ranks-th row, beginning with
            number rank; for rows that cannot be split otherwise (`datasets.distributed.split_dataset_by_node`).
        options: `column`, `ensure_bos`, `ensure_eos`, `bos_token_id`, `eos_token_id`, `mask_eos_loss`, `isolate`, as
        in
            `pack_dataset`.

    Raises:
        PackingError: bad settings at once, bad rows when they come.

    Example:

        >>> stream = PackedStream([{"input_ids": list(range(n))} for n in (3, 5, 2, 6)], 8)
        >>> [row["seq_lengths"].tolist() for row in stream]
        [[3, 5], [2, 6]]
        >>> rows = iter(stream)
        >>> state = [next(rows), stream.state_dict()][1]
        >>> stream.load_state_dict(state)
        >>> [row["sequence_ids"].tolist() for row in stream]
        [[2, 3]]
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        max_length: int,
        *,
        buffer_size: int = 1024,
        method: str = "auto",
        overflow: str = "error",
        max_sequences: int | None = None,
        multiple_of: int = 1,
        share: tuple[int, int] = (0, 1),
        **options: Any,
    ) -> None:
        self.max_length, self.multiple_of = max_length, multiple_of
        self.overflow = parse_overflow(overflow)
        self.preparation = Preparation.resolve(overflow=overflow, **options)
        self._packer_settings: dict[str, Any] = {
            "buffer_size": buffer_size,
            "method": method,
            "max_sequences": max_sequences,
            "multiple_of": multiple_of,
        }
        self._upstream = Upstream(rows, share)
        self._epoch = 0
        self._resumes = False
        self._begin()

    def _begin(self) -> None:
        self._packer = StreamPacker(self.max_length, **self._packer_settings)
        self._pieces: dict[int, _Piece] = {}
        self._ready: deque[list[int]] = deque()
        self._account = StreamAccount()
        self._next_piece = 0
        self._over = False
        self._columns: list[str] | None = None

    @property
    def ledger(self) -> TokenLedger:
        """The account of this pass up to the last row given; tokens that still wait are not in it."""
        return self._account.ledger()

    def set_epoch(self, epoch: int) -> None:
        """Passed on to rows that shuffle by epoch; takes effect with the next pass."""
        self._epoch = int(epoch)
        self._upstream.set_epoch(self._epoch)

    def __iter__(self) -> Iterator[PackedRow]:
        if not self._resumes:
            self._begin()
        self._resumes = False
        yield from self._give()
        if not self._over:
            for number, row in self._upstream:
                self._take(number, row)
                yield from self._give()
            self._over = True
            self._ready.extend(self._packer.flush())
            yield from self._give()
        self._account.log_total()

    def _give(self) -> Iterator[PackedRow]:
        while self._ready:
            yield self._row(self._ready.popleft())

    def _take(self, number: int, given: Mapping[str, Any]) -> None:
        """Prepares and cuts one row, and lets its pieces wait."""
        sequence = Sequence.read(given, number, self.preparation)
        tokens = len(sequence)
        if tokens <= self.max_length:
            cuts = [(0, tokens)] if tokens else []
        elif self.overflow is Overflow.ERROR:
            raise PackingError(
                f"Row {number} of the stream has {tokens} tokens, above max_length={self.max_length}; choose "
                "overflow= (truncate, truncate_left, split, drop, own_pack), or raise max_length."
            )
        else:
            cut = cut_overflow(np.array([tokens]), self.max_length, self.overflow)
            cuts = list(zip(cut.start_of(np.arange(cut.lengths.size)).tolist(), cut.lengths.tolist()))
        pieces = [sequence.piece(start, length, self.preparation) for start, length in cuts]
        trained = [piece for piece in pieces if piece.targets]
        self._account.take(number, tokens, [len(piece) for piece in pieces], [len(piece) for piece in trained])
        targets = sum(piece.targets for piece in trained) if len(trained) > 1 else -1
        for piece in trained:
            self._wait(_Piece(number, targets, self._same_columns(piece, number)))

    def _wait(self, piece: _Piece) -> None:
        own = self._next_piece
        self._next_piece += 1
        self._pieces[own] = piece
        if len(piece.sequence) > self.max_length:
            self._ready.append([own])
        else:
            self._ready.extend(self._packer.push(own, len(piece.sequence)))

    def _same_columns(self, piece: Sequence, number: int) -> Sequence:
        """Packs along what the first row has with one number a token, as long as every row has it."""
        if self._columns is None:
            self._columns = sorted(piece.aligned)
        missing = [name for name in self._columns if name not in piece.aligned]
        if missing:
            logger.warning(
                "Row %s of the stream has no %s with one number a token; the column is left out from here on.",
                number,
                ", ".join(missing),
            )
            self._columns = [name for name in self._columns if name not in missing]
        return piece

    def _row(self, pack: list[int]) -> PackedRow:
        pieces = [self._pieces.pop(number) for number in pack]
        columns = {"input_ids": [piece.sequence.input_ids for piece in pieces]}
        columns["labels"] = [piece.sequence.labels for piece in pieces]
        for name in self._columns or ():
            if all(name in piece.sequence.aligned for piece in pieces):
                columns[name] = [piece.sequence.aligned[name] for piece in pieces]
        row = {name: np.concatenate(values) for name, values in columns.items()}
        lengths = np.array([len(piece.sequence) for piece in pieces])
        self._account.give([piece.sequence_id for piece in pieces], lengths, self.max_length, self.multiple_of)
        if not self.preparation.isolate:
            row["labels"][0] = IGNORE_INDEX
        row["seq_lengths"] = lengths if self.preparation.isolate else lengths.sum(keepdims=True)
        row["sequence_ids"] = np.array([piece.sequence_id for piece in pieces])
        if self.overflow is Overflow.SPLIT:
            row["sequence_targets"] = np.array([piece.targets for piece in pieces])
        return PackedRow.of_arrays(row)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on behind the last row given: the waiting sequences, and the place of the rows.

        Whole numbers, text, lists and dicts of them (JSON), as far as the state of the rows is.
        """
        return {
            "version": _STATE_VERSION,
            "epoch": self._epoch,
            "over": self._over,
            "upstream": self._upstream.state_dict(),
            "packer": self._packer.state_dict(),
            "ready": [list(pack) for pack in self._ready],
            "next_piece": self._next_piece,
            "pieces": {str(number): piece.state_dict() for number, piece in self._pieces.items()},
            "columns": self._columns,
            "account": self._account.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state` was taken, as often as that is done.

        Raises:
            PackingError: a state of other settings or another version.
        """
        if state.get("version") != _STATE_VERSION:
            raise PackingError(f"The state has version {state.get('version')}, this stream reads {_STATE_VERSION}.")
        self._begin()
        self._packer.load_state_dict(state["packer"])
        self.set_epoch(state["epoch"])
        self._over = state["over"]
        self._upstream.load_state_dict(state["upstream"])
        self._ready.extend(list(pack) for pack in state["ready"])
        self._next_piece = state["next_piece"]
        self._pieces = {int(number): _Piece.from_state(piece) for number, piece in state["pieces"].items()}
        self._columns = state["columns"]
        self._account = StreamAccount.from_state(state["account"])
        self._resumes = True


@dataclass(frozen=True, slots=True)
class _Piece:
    """What waits: a sequence or a piece of one, the row it came from, and that row's targets (-1: it is the whole)."""

    sequence_id: int
    targets: int
    sequence: Sequence

    def state_dict(self) -> dict[str, Any]:
        columns = {name: encode_array(values) for name, values in self.sequence.columns.items()}
        return {"sequence_id": self.sequence_id, "targets": self.targets, "columns": columns}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Piece:
        columns = {name: decode_array(values) for name, values in state["columns"].items()}
        sequence = Sequence(columns.pop("input_ids"), columns.pop("labels"), columns)
        return cls(state["sequence_id"], state["targets"], sequence)
