"""Sums over a logging window, and what is known of devices."""

from __future__ import annotations

import types

import pytest
import torch

from hf_packing.train.metrics import LossMeter, TrainMeter, flops_per_token, peak_flops
from hf_packing.train.window import BatchCounts, sum_over_ranks
from tests.equivalence import trajectory


ALONE = types.SimpleNamespace(num_processes=1)


class Ranks:
    """An accelerator of two processes that hold the same; reduce doubles."""

    num_processes = 2
    device = torch.device("cpu")

    def reduce(self, values, reduction):
        assert reduction == "sum"
        return values * 2


@pytest.mark.parametrize(
    "name, peak",
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("Tesla T4", 65e12),
        ("NVIDIA GeForce RTX 9999", None),
    ],
)
def test_peaks_by_name(name, peak):
    assert peak_flops(name) == peak


def test_flops_of_a_token():
    """6 a weight that is multiplied with: not the embedding table, but the head, also where it is the same table."""
    untied, tied = trajectory.build(), trajectory.build(tie_word_embeddings=True)
    table = untied.get_input_embeddings().weight.numel()
    weights = sum(p.numel() for p in untied.parameters())
    assert flops_per_token(untied) == 6 * (weights - table)
    assert flops_per_token(tied) == flops_per_token(untied)
    for p in untied.parameters():
        p.requires_grad = False
    assert flops_per_token(untied) == 4 * (weights - table)


def test_counts_add_up_over_ranks():
    counts = BatchCounts(targets=5, weight=2.5, tokens=9, slots=16, sequences=2, packs=1)
    assert (counts + counts).over_ranks(ALONE) == counts + counts
    assert counts.over_ranks(Ranks()) == counts + counts
    assert counts.over_ranks(Ranks(), copies=2) == counts
    assert sum_over_ranks(Ranks(), [1, torch.tensor(2.5)]) == [2.0, 5.0]


def test_a_meter_adds_up_and_starts_over():
    meter = LossMeter()
    meter.add(loss=torch.tensor(2.0), correct=torch.tensor(3))
    meter.add(loss=torch.tensor(1.0, requires_grad=True))
    sums, extra = meter.take(ALONE, [7.0])
    assert sums == {"loss": 3.0, "correct": 3.0} and extra == [7.0]
    assert meter.take(ALONE, [])[0] == {}


def step(meter, targets, loss, tokens=10):
    meter.add_step(BatchCounts(targets=targets, weight=targets, tokens=tokens, slots=20, sequences=2, packs=1))
    if targets:
        meter.losses.add(loss=torch.tensor(loss * targets), correct=torch.tensor(1))


def test_a_window_is_weighted_by_its_targets():
    meter = TrainMeter()
    step(meter, 6, 2.0)
    step(meter, 2, 5.0)
    logs = meter.report(ALONE, 1, None, None)
    assert logs["loss"] == pytest.approx(22 / 8)
    assert logs["mean_token_accuracy"] == 2 / 8
    assert (logs["fill"], logs["packs_per_step"], logs["sequences_per_step"]) == (0.5, 1, 2)
    step(meter, 0, 0.0)
    assert "loss" not in meter.report(ALONE, 1, None, None)
    assert meter.train_loss == pytest.approx(22 / 8)


def test_speed_is_of_real_tokens_and_knows_its_devices(monkeypatch):
    clock = iter([0.0, 2.0, 2.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    meter = TrainMeter()
    step(meter, 6, 2.0, tokens=800)
    logs = meter.report(ALONE, 4, 1e9, 1e12)
    assert (logs["tokens_per_second"], logs["tokens_per_second_per_device"]) == (400, 100)
    assert logs["mfu"] == pytest.approx(100 * 1e9 / 1e12)


def test_counters_go_on_and_losses_start_over():
    meter = TrainMeter()
    step(meter, 6, 2.0)
    other = TrainMeter()
    other.load_state_dict(meter.state_dict())
    other.start_run()
    step(other, 1, 3.0)
    logs = other.report(ALONE, 1, None, None)
    assert (logs["num_tokens"], logs["num_sequences"], logs["loss"]) == (20, 4, 3.0)
    assert other.train_loss == 3.0
