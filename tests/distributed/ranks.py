"""`run_ranks`: functions run on two gloo ranks started by torchrun; a hang counts as a failure.

One torchrun serves many calls, because importing the libraries takes longer than any of them: each rank imports once
and forks a child for every call, with a process group of its own. So a call may also be killed, and the next one
resumes in a fresh process.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock


ROOT = Path(__file__).resolve().parents[2]
HANG = 100
"""Seconds after which a call counts as hanging."""


@dataclass(frozen=True)
class Call:
    """`function(**arguments)` on every rank, or in one process without a process group (`alone`)."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    alone: bool = False
    killed: bool = False
    """Whether the call ends by SIGKILL on every rank; it then has no result."""

    def as_json(self) -> dict[str, Any]:
        name = f"{self.function.__module__}:{self.function.__qualname__}"
        return {"function": name, "arguments": self.arguments, "alone": self.alone, "port": free_port()}


def call(function: Callable[..., Any], /, *, alone: bool = False, killed: bool = False, **arguments: Any) -> Call:
    """A call for `run_ranks`; arguments are JSON-able, `function` is importable by name."""
    return Call(function, arguments, alone, killed)


def run_ranks(*calls: Call, world_size: int = 2, timeout: float = HANG) -> list[Any]:
    """Run the calls one after the other on `world_size` gloo ranks.

    Returns:
        For every call the results of all ranks, `[rank]`; of a call that runs alone, its one result; of a killed call,
        None.
    """
    with tempfile.TemporaryDirectory() as folder:
        jobs, out = Path(folder) / "calls.json", Path(folder)
        jobs.write_text(json.dumps({"timeout": timeout, "calls": [one.as_json() for one in calls]}))
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(world_size)]
        command += ["--master_port", str(free_port()), "-m", "tests.distributed.rank", str(jobs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path_for_children()}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=timeout * len(calls) + HANG)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0] + "\n(torchrun itself did not end)"
        return [collect(out, number, one, world_size, output) for number, one in enumerate(calls)]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """`make(folder)`, run by one worker of pytest-xdist and read by the others, whose tests share a launch."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return make(factory.mktemp(name))
    shared = factory.getbasetemp().parent
    results = shared / f"{name}.pickle"
    with FileLock(f"{results}.lock"):
        if not results.exists():
            folder = shared / name
            folder.mkdir()
            results.write_bytes(pickle.dumps(make(folder)))
        return pickle.loads(results.read_bytes())


def collect(out: Path, number: int, one: Call, world_size: int, output: str) -> Any:
    ranks = [number % world_size] if one.alone else range(world_size)
    results = []
    for rank in ranks:
        path = out / f"{number}-{rank}.pickle"
        ended = pickle.loads(path.read_bytes()) if path.exists() else {"how": "never ran", "result": None}
        expected = "killed" if one.killed else "returned"
        assert ended["how"] == expected, (
            f"call {number} ({one.function.__name__} {one.arguments}) on rank {rank}: {ended['how']}, expected "
            f"{expected}\n{ended['result'] or ''}\n{output[-6000:]}"
        )
        results.append(ended["result"])
    return None if one.killed else results[0] if one.alone else results


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def path_for_children() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
