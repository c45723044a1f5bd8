"""The harness itself: results, failures, kills and hangs are told apart."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import call, run_ranks


def add_up(start):
    dist.init_process_group("gloo")
    total = torch.tensor([start + dist.get_rank()])
    dist.all_reduce(total)
    return int(total)


def world():
    return os.environ.get("WORLD_SIZE", "none")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def fail_on_rank_1():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("rank 1 does not like it")
    dist.barrier()


def hang_on_rank_1():
    if os.environ["RANK"] == "1":
        time.sleep(600)


def test_two_ranks_several_calls():
    results = run_ranks(call(add_up, start=10), call(world, alone=True), call(die, killed=True), call(add_up, start=1))
    assert results == [[21, 21], "none", None, [3, 3]]


@pytest.mark.slow
def test_failures_and_hangs_are_failures():
    with pytest.raises(AssertionError, match=r"rank 1 does not like it|left waiting|on rank 0: raised"):
        run_ranks(call(fail_on_rank_1))
    with pytest.raises(AssertionError, match="on rank 1: hanging after 3 s"):
        run_ranks(call(hang_on_rank_1), timeout=3)
