"""The logits of a whole batch are never there at once on the default path of PackingSFTTrainer."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

from benchmarks.memory_watch import MemoryWatch
from hf_packing import PackingSFTConfig, PackingSFTTrainer
from tests.equivalence import trajectory
from tests.train import tiny


VOCABULARY, TOKENS, HIDDEN = 3989, 256, 32
LOGITS = (TOKENS - 1) * VOCABULARY


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """The fused head's tiles are larger than a whole test; here they are 64 tokens by 512 words."""
    monkeypatch.setattr(trl_utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", 512)
    monkeypatch.setattr(chunked_logprob, "TOKEN_CHUNK_SIZE", 64)


def build():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, pad_token_id=0, attn_implementation="eager",
        )
    )  # fmt: skip


def watched_step(trainer):
    """Peak bytes and largest tensor of the training steps of a run."""
    watch = MemoryWatch()
    original = trainer.training_step

    def step(*args, **kwargs):
        with watch:
            return original(*args, **kwargs)

    trainer.training_step = step
    trainer.train()
    assert watch.peak > 0
    return watch


def arguments(config, out, **extra):
    settings = {"max_length": TOKENS, "packing": True, "per_device_train_batch_size": 1, "max_steps": 1, **extra}
    return config(**trajectory.settings(str(out), **settings))


def rows():
    return Dataset.from_list(tiny.words(100, 70, 50, 36))


def ours(out, **extra):
    given = {"compute_loss_func": extra.pop("compute_loss_func")} if "compute_loss_func" in extra else {}
    return PackingSFTTrainer(
        build(), arguments(PackingSFTConfig, out, attention="keep", isolation_check="off", **extra),
        train_dataset=rows(), processing_class=trajectory.tokenizer(), **given,
    )  # fmt: skip


@pytest.mark.parametrize("loss_type", ["nll", "dft"])
def test_logits_are_never_there_at_once(tmp_path, loss_type):
    watch = watched_step(ours(tmp_path, loss_type=loss_type))
    assert 0 < watch.largest <= LOGITS / 4


@pytest.mark.parametrize("normalization", ["token", "sequence"])
def test_nor_with_either_normalization(tmp_path, normalization):
    assert watched_step(ours(tmp_path, loss_normalization=normalization)).largest <= LOGITS / 4


def test_nor_in_evaluation(tmp_path):
    trainer = ours(tmp_path)
    with MemoryWatch() as watch:
        trainer.evaluate(rows())
    assert 0 < watch.largest <= LOGITS / 4


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["label smoothing", "compute_loss_func"])
def test_the_watch_sees_full_logits(tmp_path, capsys, name):
    """Guards the tests above: where the full logits are needed they are seen, and the log says so."""
    given = {"label_smoothing_factor": 0.1}
    if name == "compute_loss_func":
        given = {"compute_loss_func": lambda outputs, labels, num_items_in_batch: outputs["logits"].mean()}
    watch = watched_step(ours(tmp_path, **given))
    assert watch.largest >= LOGITS
    assert f"{name} needs the full logits, so the fused head is not used" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_no_more_than_trl_on_the_same_batch(tmp_path):
    theirs = SFTTrainer(
        build(), arguments(SFTConfig, tmp_path / "trl"), train_dataset=rows(), processing_class=trajectory.tokenizer()
    )
    expected = watched_step(theirs)
    found = watched_step(ours(tmp_path))
    assert found.peak <= 1.02 * expected.peak
