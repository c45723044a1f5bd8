"""What a checkpoint needs beyond Trainer's own files: the counters, and where each rank's stream stands."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import PackingError


__all__ = ["load_run_state", "save_run_state"]

_VERSION = 1


def _path(checkpoint: str | os.PathLike[str], rank: int) -> Path:
    return Path(checkpoint) / f"packing_state_{rank}.json"


def save_run_state(checkpoint: str | os.PathLike[str], rank: int, ranks: int, state: dict[str, Any]) -> None:
    """Write this rank's state beside Trainer's files; a reader sees all of it or nothing."""
    path = _path(checkpoint, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps({"version": _VERSION, "ranks": ranks, **state}))
    unfinished.replace(path)


def load_run_state(checkpoint: str | os.PathLike[str], rank: int, ranks: int, needed: bool) -> dict[str, Any] | None:
    """This rank's state of a checkpoint, `None` where another trainer wrote it and nothing in it is needed.

    Raises:
        PackingError: the state is needed (a stream) and missing, or was written by another number of ranks.
    """
    path = _path(checkpoint, rank)
    if not path.exists():
        if needed:
            raise PackingError(
                f"{path} is missing, so the place in the stream is not known and resuming would repeat sequences. "
                "Resume from an earlier checkpoint that has it (the run may have ended while this one was written)."
            )
        return None
    state = json.loads(path.read_text())
    if needed and state["ranks"] != ranks:
        raise PackingError(
            f"{path} was written by {state['ranks']} ranks, this run has {ranks}; the places in the streams of other "
            f"ranks cannot be taken over. Resume with {state['ranks']} ranks."
        )
    return state
