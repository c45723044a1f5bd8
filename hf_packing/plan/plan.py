"""PackPlan: which piece of which sequence goes where, with its ledger and its proof.

Shape legend: M pieces, P packs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PackingError
from .bounds import BoundCertificate
from .ledger import TokenLedger


__all__ = ["PackPlan"]

FORMAT = 1
_ARRAYS = ("sequence_ids", "starts", "lengths", "pack_offsets")
_SETTINGS = ("max_length", "multiple_of", "max_sequences", "strategy", "overflow")
_PROOF_ARRAYS = ("sizes", "counts", "weights")
_PROOF_VALUES = ("kind", "capacity", "max_sequences", "pack_weight", "own_packs")


@dataclass(frozen=True, kw_only=True, eq=False)
class PackPlan:
    """P packs of M pieces. Pack i holds the pieces pack_offsets[i] : pack_offsets[i + 1], in that order.

    The arrays cannot be written to. Two plans are equal when their content is, and equal plans have equal fingerprints
    on every machine.

    Example:

        >>> from hf_packing.plan import plan_packs
        >>> plan = plan_packs([5, 2, 3, 1], max_length=6)
        >>> [plan[i][0].tolist() for i in range(plan.num_packs)]
        [[2, 1, 3], [0]]
        >>> plan.lengths.tolist(), plan.pack_offsets.tolist(), plan.gap
        ([3, 2, 1, 5], [0, 3, 4], 0)
    """

    max_length: int
    """Slots of a pack."""
    sequence_ids: NDArray[np.int64]
    """`[M]`: the sequence a piece is cut from."""
    starts: NDArray[np.int64]
    """`[M]`: first token of the piece within its sequence."""
    lengths: NDArray[np.int64]
    """`[M]`: tokens of the piece."""
    pack_offsets: NDArray[np.int64]
    """`[P + 1]`."""
    ledger: TokenLedger
    """Where every token went."""
    certificate: BoundCertificate
    """The proof of `lower_bound`."""
    multiple_of: int = 1
    """Every piece occupies a multiple of this many slots."""
    max_sequences: int | None = None
    """Most pieces in a pack."""
    strategy: str = "bfd"
    overflow: str = "error"

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            getattr(self, name).flags.writeable = False

    @cached_property
    def lower_bound(self) -> int:
        """Fewest packs any plan for these pieces can have, proven by `certificate`."""
        return self.certificate.bound

    @property
    def num_packs(self) -> int:
        """P."""
        return self.pack_offsets.size - 1

    @property
    def fill(self) -> float:
        """Real tokens over slots, 0 to 1; 1.0 for an empty plan."""
        return self.ledger.fill

    @property
    def gap(self) -> int:
        """Packs above the proven lower bound; 0 means that no plan has fewer."""
        return self.num_packs - self.lower_bound

    @property
    def pack_sizes(self) -> NDArray[np.int64]:
        """`[P]`: pieces in each pack."""
        return np.diff(self.pack_offsets)

    @property
    def pack_tokens(self) -> NDArray[np.int64]:
        """`[P]`: real tokens in each pack."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        return np.diff(ends[self.pack_offsets])

    def __len__(self) -> int:
        return self.num_packs

    def __getitem__(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(sequence_ids, starts, lengths) of one pack; negative numbers count from the end."""
        if not -self.num_packs <= index < self.num_packs:
            raise IndexError(f"pack {index} of a plan of {self.num_packs} packs")
        index %= self.num_packs
        piece = slice(int(self.pack_offsets[index]), int(self.pack_offsets[index + 1]))
        return self.sequence_ids[piece], self.starts[piece], self.lengths[piece]

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        return (self[index] for index in range(self.num_packs))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackPlan):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits over the packs, the settings and the ledger; read once, about a second a GiB."""
        digest = hashlib.sha256(json.dumps(self._settings(), sort_keys=True).encode())
        for name in _ARRAYS:
            digest.update(np.ascontiguousarray(getattr(self, name), dtype="<i8").data)
        return digest.hexdigest()[:32]

    def __getstate__(self) -> dict[str, Any]:
        # What is cached stays out: datasets hashes a pickle, which must not depend on what was read before.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def _settings(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return {"format": FORMAT, **settings, "ledger": self.ledger.to_dict()}

    def save(self, path: str | PathLike[str]) -> None:
        """Writes one .npz file under exactly this name."""
        proof = {name: getattr(self.certificate, name) for name in _PROOF_VALUES}
        header = json.dumps({**self._settings(), "proof": proof, "fingerprint": self.fingerprint})
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {f"proof_{name}": getattr(self.certificate, name) for name in _PROOF_ARRAYS}
        with open(path, "wb") as file:
            np.savez(file, header=np.frombuffer(header.encode(), dtype=np.uint8), **arrays)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> PackPlan:
        """Reads what `save` wrote.

        Raises:
            PackingError: for another file, another format, or content that does not match its fingerprint.
        """
        with open(path, "rb") as opened:
            if opened.read(2) != b"PK":  # what a zip archive, which an .npz is, begins with
                raise PackingError(f"{path} is not a saved plan: it is no .npz file. Write it with PackPlan.save.")
        with np.load(path, allow_pickle=False) as file:
            if "header" not in file:
                raise PackingError(f"{path} is not a saved plan: it has no header. Write it with PackPlan.save.")
            header = json.loads(file["header"].tobytes())
            if header.get("format") != FORMAT:
                raise PackingError(
                    f"{path} is a plan of format {header.get('format')}, this version reads {FORMAT}; plan again."
                )
            arrays = {name: file[name] for name in _ARRAYS}
            proof = {name: file[f"proof_{name}"] for name in _PROOF_ARRAYS}
        plan = cls(
            **arrays,
            **{name: header[name] for name in _SETTINGS},
            ledger=TokenLedger(**header["ledger"]),
            certificate=BoundCertificate(**proof, **header["proof"]),
        )
        if plan.fingerprint != header["fingerprint"]:
            raise PackingError(f"{path} does not match its fingerprint {header['fingerprint']}: it is damaged.")
        return plan

    def describe(self) -> str:
        """A few readable lines: packs, fill, bound, and where every token went.

        Example:

            >>> from hf_packing.plan import plan_packs
            >>> print(plan_packs([5, 2, 3, 1], max_length=6).describe())
            2 packs of 6 (bfd), 91.67 % full, proven minimum 2 (size)
            sequences: 4 in = 4 packed + 0 dropped + 0 empty
            tokens:    11 in = 11 packed + 0 truncated + 0 dropped; 12 slots hold 1 padding
        """
        gap = f"{self.gap:,} above the proven minimum" if self.gap else "proven minimum"
        head = (
            f"{self.num_packs:,} packs of {self.max_length:,} ({self.strategy}), {self.fill:.2%} full, "
            f"{gap} {self.lower_bound:,} ({self.certificate.kind})"
        ).replace("%", " %")
        return f"{head}\n{self.ledger.describe()}"
