"""Packing with a bounded buffer: for data that arrives one sequence at a time, in nearly the order it arrived.

The mental model, three lines: sequences wait in a buffer; when it is full, packs leave it; nobody waits longer than
two buffers. What decides which packs leave is the method:

    fill     the oldest waiting sequence, and the best subset of the next ones (exact subset sum on big-int bitsets).
             Best where a pack holds many sequences, and closest to the order of arrival.
    rolling  best-fit decreasing on the whole buffer; the fullest quarter of the packs leaves, the rest waits on.
             Best where a pack holds one or two sequences.
    auto     fill, until the first 8,192 lengths are there; then whichever packs those better.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from typing import Any

from ..errors import PackingError
from .subset import best_subset


__all__ = ["StreamPacker", "better_method"]

METHODS = ("auto", "fill", "rolling")
BUFFER_SIZE = 1024
SAMPLE = 8192
"""Lengths that decide the method."""
WINDOW = 128
"""Waiting sequences looked at for one pack; a hit usually comes within the first twenty."""
STATE_VERSION = 1


class StreamPacker:
    """Packs sequences as they arrive; its state is a small dictionary, so that a stream resumes exactly.

    Memory: `buffer_size` waiting sequences (of each its id, slots and time of arrival), and up to 8,192 lengths until
    `auto` has decided. A sequence is in a pack at the latest when 2 · `buffer_size` others have arrived after it.

    Args:
        max_length (`int`): slots of a pack.
        buffer_size (`int`, *optional*, defaults to `1024`): sequences that wait; more of them fill packs better and
            hold more tokens in memory.
        method (`str`, *optional*, defaults to `"auto"`): `fill`, `rolling` or `auto`, see the module's first lines.
        max_sequences (`int`, *optional*): most sequences in a pack.
        multiple_of (`int`, *optional*, defaults to `1`): a sequence occupies a multiple of this many slots; it
            divides `max_length`.

    Raises:
        PackingError: for settings out of range, and from `push` for a length below 1 or above `max_length`.

    Example:

        >>> packer = StreamPacker(10, buffer_size=3)
        >>> [packer.push(sequence, length) for sequence, length in enumerate([7, 5, 3, 5])]
        [[], [], [[0, 2]], []]
        >>> resumed = StreamPacker(10, buffer_size=3)
        >>> resumed.load_state_dict(packer.state_dict())
        >>> resumed.flush() == packer.flush() == [[1, 3]]
        True
    """

    def __init__(
        self,
        max_length: int,
        *,
        buffer_size: int = BUFFER_SIZE,
        method: str = "auto",
        max_sequences: int | None = None,
        multiple_of: int = 1,
    ) -> None:
        if buffer_size < 1:
            raise PackingError(f"buffer_size={buffer_size}; at least one sequence has to wait.")
        if method not in METHODS:
            raise PackingError(f"method={method!r} is not known; choose one of {', '.join(METHODS)}.")
        if max_length < 1 or multiple_of < 1 or max_length % multiple_of:
            raise PackingError(f"multiple_of={multiple_of} does not divide max_length={max_length}, both at least 1.")
        if max_sequences is not None and max_sequences < 1:
            raise PackingError(f"max_sequences={max_sequences}; a pack holds at least one sequence.")
        self.max_length = max_length
        self.buffer_size = buffer_size
        self.max_sequences = max_sequences
        self.multiple_of = multiple_of
        self.method = method
        self._capacity = max_length // multiple_of
        self._sample: list[int] = []
        self._arrived = 0
        # The buffer in order of arrival: (size in units of multiple_of, id, time of arrival).
        self._waiting: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        """Sequences that wait."""
        return len(self._waiting)

    def push(self, sequence_id: int, length: int) -> list[list[int]]:
        """Takes one sequence in; returns the packs that are ready, each a list of sequence ids (often none)."""
        size = -(-length // self.multiple_of)
        if not 1 <= size <= self._capacity:
            raise PackingError(
                f"Sequence {sequence_id} has {length} tokens; a stream packs sequences of 1 to max_length="
                f"{self.max_length} tokens. Leave empty ones out and cut or drop long ones first."
            )
        self._arrived += 1
        waiting = self._waiting
        waiting.append((size, sequence_id, self._arrived))
        if self.method == "auto":
            self._decide(size)
        packs: list[list[int]] = []
        while len(waiting) >= self.buffer_size or (waiting and self._arrived - waiting[0][2] >= 2 * self.buffer_size):
            packs += [self._next_pack()] if self.method != "rolling" else self._fullest_packs()
        return packs

    def flush(self) -> list[list[int]]:
        """The packs of all sequences that still wait; the packer is empty afterwards and can be used again."""
        packs = []
        if self.method == "rolling":
            packs = [[self._waiting[index][1] for index in pack] for _, pack in self._packs_of_buffer()]
            self._waiting.clear()
        while self._waiting:
            packs.append(self._next_pack())
        return packs

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on: whole numbers, text and lists of them, ready for JSON."""
        return {
            "version": STATE_VERSION,
            "settings": self._settings(),
            "method": self.method,
            "sample": list(self._sample),
            "arrived": self._arrived,
            "waiting": [list(entry) for entry in self._waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where the packer that gave `state` stood.

        Raises:
            PackingError: if that packer had other settings, because the packs would not be those it would have made.
        """
        if state.get("version") != STATE_VERSION:
            raise PackingError(f"The state has version {state.get('version')}, this packer reads {STATE_VERSION}.")
        if state["settings"] != self._settings():
            raise PackingError(
                f"The state comes from a packer with {state['settings']}, this one has {self._settings()}; give both "
                "the same settings, or start without the state."
            )
        self.method = state["method"]
        self._sample = list(state["sample"])
        self._arrived = state["arrived"]
        self._waiting[:] = [(size, sequence_id, time) for size, sequence_id, time in state["waiting"]]

    def _settings(self) -> dict[str, int | None]:
        names = ("max_length", "buffer_size", "max_sequences", "multiple_of")
        return {name: getattr(self, name) for name in names}

    def _decide(self, size: int) -> None:
        self._sample.append(size)
        if len(self._sample) == SAMPLE:
            self.method = better_method(self._sample, self._capacity, self.buffer_size, self.max_sequences)
            self._sample = []

    def _next_pack(self) -> list[int]:
        """The oldest sequence and the best subset of the next ones."""
        waiting = self._waiting
        room = self._capacity - waiting[0][0]
        most = None if self.max_sequences is None else self.max_sequences - 1
        if most is not None and most >= room // min(size for size, _, _ in waiting[:WINDOW]):
            most = None  # the room runs out first, and counting the sequences would cost time
        chosen = best_subset((size for size, _, _ in islice(waiting, 1, WINDOW)), room, most)
        pack = [waiting[0][1], *(waiting[index + 1][1] for index in chosen)]
        for index in reversed(chosen):
            del waiting[index + 1]
        del waiting[0]
        return pack

    def _fullest_packs(self) -> list[list[int]]:
        """The full packs, at least the fullest quarter, and those with a sequence that has waited 3/2 of a buffer."""
        by_room = self._packs_of_buffer()
        number = max(1, len(by_room) // 4)
        limit = self._arrived - self.buffer_size * 3 // 2
        waiting = self._waiting
        leaving = [
            pack
            for place, (room, pack) in enumerate(by_room)
            if place < number or not room or any(waiting[index][2] <= limit for index in pack)
        ]
        packs = [[waiting[index][1] for index in pack] for pack in leaving]
        gone = {index for pack in leaving for index in pack}
        waiting[:] = [entry for index, entry in enumerate(waiting) if index not in gone]
        return packs

    def _packs_of_buffer(self) -> list[tuple[int, list[int]]]:
        """Best-fit decreasing over the buffer: (room left, indices) of each pack, the fullest first.

        One sequence at a time: in a buffer most lengths occur once, where counting them first does not pay.
        """
        most = self.max_sequences or self._capacity
        rooms: list[int] = []
        waiting: dict[int, list[list[int]]] = {}
        closed: list[tuple[int, list[int]]] = []
        sizes = [size for size, _, _ in self._waiting]
        for index in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
            size = sizes[index]
            place = bisect_left(rooms, size)
            if place < len(rooms):
                room = rooms[place]
                pack = waiting[room].pop()
                if not waiting[room]:
                    del waiting[room], rooms[place]
            else:
                room, pack = self._capacity, []
            pack.append(index)
            room -= size
            if not room or len(pack) == most:
                closed.append((room, pack))
            elif room in waiting:
                waiting[room].append(pack)
            else:
                waiting[room] = [pack]
                insort(rooms, room)
        packs = closed + [(room, pack) for room in rooms for pack in waiting[room]]
        packs.sort(key=lambda pack: pack[0])
        return packs


def better_method(sizes: list[int], capacity: int, buffer_size: int, max_sequences: int | None = None) -> str:
    """Which method puts these sizes into fewer packs; `fill` where they are equal, because it keeps the order better.

    Example:

        >>> better_method([6, 4] * 50, 10, buffer_size=8)
        'fill'
    """

    def packs(method: str) -> int:
        packer = StreamPacker(capacity, buffer_size=buffer_size, method=method, max_sequences=max_sequences)
        emitted = sum(len(packer.push(index, size)) for index, size in enumerate(sizes))
        return emitted + len(packer.flush())

    by_fill = packs("fill")
    if by_fill * capacity < sum(sizes) + capacity:
        return "fill"  # no packs can be fewer
    return "rolling" if packs("rolling") < by_fill else "fill"
