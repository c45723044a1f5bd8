"""One rank under torchrun: imports the libraries once, then forks a child for each call of `run_ranks`."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import hf_packing  # noqa: F401  (imported before the fork, for all children)


GRACE = 10
"""Seconds a rank may go on after another one failed."""


def run_call(call: dict[str, Any], number: int, rank: int, out: Path) -> None:
    """In the child: become this rank of a fresh process group (or no rank at all), call, write the result."""
    if call["alone"]:
        for name in [name for name in os.environ if name.startswith(("TORCHELASTIC", "GROUP_", "ROLE_"))]:
            del os.environ[name]
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
    else:
        # Rank 0 of the call serves the store; torchrun's own one would remember keys of earlier calls.
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(call["port"])}
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    module, name = call["function"].split(":")
    try:
        ended = {"how": "returned", "result": getattr(importlib.import_module(module), name)(**call["arguments"])}
    except BaseException:
        ended = {"how": "raised", "result": traceback.format_exc()}
    write(out / f"{number}-{rank}.pickle", ended)


def write(path: Path, ended: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(pickle.dumps(ended))
    unfinished.replace(path)


def wait(child: int, number: int, out: Path, timeout: float) -> str | None:
    """How a child ended without a result: killed, hanging, or not (None)."""
    deadline, warned = time.monotonic() + timeout, False
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            by_signal = os.WIFSIGNALED(status)
            return (
                ("killed" if os.WTERMSIG(status) == signal.SIGKILL else f"signal {os.WTERMSIG(status)}")
                if by_signal
                else None
            )
        if not warned and any(b"raised" in path.read_bytes() for path in out.glob(f"{number}-*.pickle")):
            deadline, warned = min(deadline, time.monotonic() + GRACE), True
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "left waiting for a rank that raised" if warned else f"hanging after {timeout:.0f} s"
        time.sleep(0.02)


def main() -> None:
    jobs = Path(sys.argv[1])
    given, out = json.loads(jobs.read_text()), jobs.parent
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for call in given["calls"]:
        importlib.import_module(call["function"].split(":")[0])
    for number, call in enumerate(given["calls"]):
        if call["alone"] and number % ranks != rank:
            continue
        child = os.fork()
        if child == 0:
            run_call(call, number, rank, out)
            sys.stdout.flush()
            os._exit(0)
        how = wait(child, number, out, given["timeout"])
        if how is not None:
            write(out / f"{number}-{rank}.pickle", {"how": how, "result": None})


if __name__ == "__main__":
    main()
