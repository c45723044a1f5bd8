"""Every sequence and every token accounted for, from what came in to the slots of the packs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ..errors import PackingError


__all__ = ["TokenLedger"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLedger:
    """Where every sequence and token went. Counts are whole numbers; three identities always hold:

        tokens_in == tokens_packed + tokens_truncated + tokens_dropped
        slots == tokens_packed + tokens_padding
        sequences_in == sequences_packed + sequences_dropped + sequences_empty

    Raises:
        PackingError: if the counts given do not obey them.

    Example:

        >>> a = TokenLedger(sequences_in=2, sequences_packed=2, tokens_in=9, tokens_packed=8, tokens_truncated=1,
        ...                 sequences_truncated=1, tokens_padding=8, slots=16)
        >>> (a + a).slots
        32
    """

    sequences_in: int = 0
    """Sequences given."""
    sequences_packed: int = 0
    """Sequences of which at least one token is in a pack."""
    sequences_truncated: int = 0
    """Sequences that lost tokens to a truncation."""
    sequences_split: int = 0
    """Sequences cut into more than one piece."""
    sequences_dropped: int = 0
    """Sequences left out whole: too long under `drop`, or without any target."""
    sequences_empty: int = 0
    """Sequences of no tokens."""
    tokens_in: int = 0
    """Tokens given."""
    tokens_packed: int = 0
    """Tokens in packs."""
    tokens_truncated: int = 0
    """Tokens cut off by a truncation."""
    tokens_dropped: int = 0
    """Tokens of dropped sequences and dropped pieces."""
    tokens_padding: int = 0
    """Slots without a real token: the ends of packs and the filler of `multiple_of`."""
    slots: int = 0
    """Sum over packs of max(max_length, slots occupied)."""

    def __post_init__(self) -> None:
        identities = {
            "tokens_in == tokens_packed + tokens_truncated + tokens_dropped": self.tokens_in
            - (self.tokens_packed + self.tokens_truncated + self.tokens_dropped),
            "slots == tokens_packed + tokens_padding": self.slots - (self.tokens_packed + self.tokens_padding),
            "sequences_in == sequences_packed + sequences_dropped + sequences_empty": self.sequences_in
            - (self.sequences_packed + self.sequences_dropped + self.sequences_empty),
        }
        for identity, difference in identities.items():
            if difference:
                raise PackingError(f"The ledger does not balance: {identity} is off by {difference} in {self}.")

    def __add__(self, other: TokenLedger) -> TokenLedger:
        """The ledger of two shards together."""
        mine, theirs = asdict(self), asdict(other)
        return TokenLedger(**{name: mine[name] + theirs[name] for name in mine})

    @property
    def fill(self) -> float:
        """Real tokens over slots (η); 1.0 where there are no slots, because nothing is wasted."""
        return self.tokens_packed / self.slots if self.slots else 1.0

    @property
    def tokens_lost(self) -> int:
        """Tokens that came in and are in no pack."""
        return self.tokens_truncated + self.tokens_dropped

    def to_dict(self) -> dict[str, int]:
        """The twelve counts by name."""
        return asdict(self)

    def describe(self) -> str:
        """Two or three readable lines.

        Example:

            >>> print(TokenLedger(sequences_in=1, sequences_packed=1, tokens_in=6, tokens_packed=6, tokens_padding=2,
            ...                   slots=8).describe())
            sequences: 1 in = 1 packed + 0 dropped + 0 empty
            tokens:    6 in = 6 packed + 0 truncated + 0 dropped; 8 slots hold 2 padding
        """
        lines = [
            f"sequences: {self.sequences_in:,} in = {self.sequences_packed:,} packed + {self.sequences_dropped:,} "
            f"dropped + {self.sequences_empty:,} empty",
            f"tokens:    {self.tokens_in:,} in = {self.tokens_packed:,} packed + {self.tokens_truncated:,} truncated "
            f"+ {self.tokens_dropped:,} dropped; {self.slots:,} slots hold {self.tokens_padding:,} padding",
        ]
        if self.sequences_truncated or self.sequences_split:
            lines.append(f"cut:       {self.sequences_truncated:,} truncated, {self.sequences_split:,} split")
        return "\n".join(lines)
