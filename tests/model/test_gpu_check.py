"""The GPU script's dry run: every section runs, covers what it says, and notices what is wrong."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from hf_packing.model import kernels


PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"


@pytest.fixture(name="script")
def load_script(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("gpu_check", PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)
    spec.loader.exec_module(module)
    return module


def test_the_dry_run_covers_every_section(script, capsys):
    sections = script.run(dry=True)
    assert sections["right"] and "all right" in capsys.readouterr().out
    named = {row["kernel"] for row in sections["kernels"]}
    assert named == set(kernels.KERNELS)
    ran = [row for row in sections["kernels"] if row["note"] == "ran"]
    assert {row["window"] for row in ran} == {0, 16} and all(row["forward error"] < 2e-2 for row in ran)
    elsewhere = {row["kernel"] for row in sections["kernels"] if "CUDA" in row["note"]}
    assert elsewhere >= {"torch_varlen", "flex_attention"}
    assert len({row["family"] for row in sections["isolation"]}) == 10
    assert {row["lengths"] for row in sections["training"]} == {"flanlike_100k", "orcamathlike_100k"}
    assert len(sections["training"]) == 6


def test_a_wrong_kernel_and_a_wrong_loss_are_noticed(script, monkeypatch):
    scale = script.Scale.of(dry=True)
    wrong = kernels.Kernel(lambda call, hardware: None, lambda q, k, v, segments, options: q * 1.0 + k.sum() + v.sum())
    monkeypatch.setitem(kernels.KERNELS, "torch_varlen", wrong)
    kernels._choose.cache_clear()
    rows = script.kernel_rows(scale)
    kernels._choose.cache_clear()
    assert [row["right"] for row in rows if row["kernel"] == "torch_varlen"] == [False] * 4
    losses = [{"lengths": "a", "loss": 5.0}, {"lengths": "a", "loss": 5.1}]
    assert not script.same_losses(losses, torch.float32) and not script.same_losses(losses, torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_on_this_gpu(script):
    rows = script.kernel_rows(script.Scale.of(dry=False))
    assert all(row["right"] for row in rows), rows
