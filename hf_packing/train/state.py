"""What a checkpoint needs beyond Trainer's own files: the counters, and where each rank's stream stands."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from ..errors import PackingError


__all__ = ["last_checkpoint", "load_run_state", "save_run_state"]

logger = logging.getLogger(__name__)

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


def last_checkpoint(
    output_dir: str | os.PathLike[str], rank: int, gather: Callable[[list[set[int]]], list[set[int]]]
) -> str | None:
    """The newest checkpoint that every rank finished writing, the same on all ranks; collective.

    A run that is killed while it writes leaves a checkpoint with some files only. The state of a rank is the last file
    it writes, so a checkpoint with all of them is whole. Where no checkpoint has any (another trainer wrote them, or
    other ranks did), it is the last one, as in Transformers.

    Args:
        output_dir: where checkpoints lie; each rank looks for its own file, so disks need not be shared.
        rank (`int`): of this process.
        gather: a list of one thing a rank, given this rank's.
    """
    files = Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*/{_path('', rank).name}")
    steps = [path.parent.name.rpartition("-")[2] for path in files]
    whole = set.intersection(*gather([{int(step) for step in steps if step.isdigit()}]))
    last = get_last_checkpoint(str(output_dir)) if Path(output_dir).is_dir() else None
    if not whole:
        return last
    found = str(Path(output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{max(whole)}")
    if last is not None and Path(last) != Path(found):
        logger.warning("%s was not finished when the run ended; resuming from %s.", last, found)
    return found
