"""Settings: read from any configuration, checked against each other, refused by name."""

from __future__ import annotations

import pytest
from transformers import HfArgumentParser, TrainingArguments
from trl import SFTConfig, TrlParser

from hf_packing import PackingSFTConfig, PackingTrainingArguments
from hf_packing.errors import PackingError
from hf_packing.train.config import PackingSettings


CPU = {"use_cpu": True, "bf16": False, "report_to": "none"}


def sft(**given):
    return PackingSettings.from_args(PackingSFTConfig("out", **CPU, **given))


def test_plain_configurations():
    plain = PackingSettings.from_args(TrainingArguments("out", **CPU))
    assert (plain.packing, plain.eval_packing, plain.overflow) == (False, False, "truncate")
    theirs = PackingSettings.from_args(SFTConfig("out", packing=True, max_length=64, **CPU))
    assert (theirs.packing, theirs.eval_packing, theirs.strategy) == (True, True, "bfd")
    assert theirs.loss_normalization == "token" and theirs.isolation_check == "error"


@pytest.mark.parametrize(
    "given, strategy, overflow",
    [
        ({}, "auto", "truncate"),
        ({"truncation_mode": "keep_end"}, "auto", "truncate_left"),
        ({"packing_strategy": "bfd_split"}, "bfd", "split"),
        ({"packing_strategy": "bfd_split", "overflow": "split"}, "bfd", "split"),
        ({"packing_strategy": "wrapped"}, "wrapped", "truncate"),
        ({"overflow": "own_pack", "truncation_mode": "keep_end"}, "auto", "own_pack"),
    ],
)
def test_names_of_trl_map_to_ours(given, strategy, overflow):
    found = sft(packing=True, max_length=64, **given)
    assert (found.strategy, found.overflow) == (strategy, overflow)


@pytest.mark.parametrize("flag, expected", [(None, True), (False, False), (True, True)])
def test_eval_packing_follows_packing(flag, expected):
    assert sft(packing=True, eval_packing=flag).eval_packing is expected


@pytest.mark.parametrize(
    "given, message",
    [
        ({"overflow": "cut"}, "overflow='cut' is not known; choose one of error, truncate"),
        ({"loss_normalization": "mean"}, "loss_normalization='mean' is not known"),
        ({"isolation_check": "yes"}, "isolation_check='yes' is not known"),
        ({"packing_strategy": "ffd"}, "packing_strategy='ffd' is not known.*bfd_split"),
        ({"attention": "flash"}, "attention='flash' is not known; choose one of auto, keep"),
        ({"accelerator_config": {"even_batches": True}}, "even_batches=True repeats sequences"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches=True slices one batch"),
        ({"accelerator_config": {"split_batches": True}}, "split_batches=True slices one batch"),
    ],
)
def test_unknown_values_are_refused_when_they_are_set(given, message):
    with pytest.raises(PackingError, match=message):
        PackingSFTConfig("out", **CPU, **given)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"packing": True, "max_length": None}, "max_length=None: packing needs the capacity"),
        ({"packing": True, "max_tokens_per_batch": 8}, "max_tokens_per_batch=8 is for padding-free batches"),
        ({"packing": False, "max_tokens_per_batch": 8}, "padding_free=True and packing=False"),
        (
            {"packing": True, "packing_strategy": "bfd_split", "overflow": "drop"},
            "packing_strategy='bfd_split' splits long sequences, overflow='drop' does not",
        ),
        (
            {"padding_free": True, "max_tokens_per_batch": 8, "train_sampling_strategy": "sequential"},
            "train_sampling_strategy='sequential' takes a fixed number of rows",
        ),
        ({"average_tokens_across_devices": False}, "average_tokens_across_devices=False normalises each rank"),
    ],
)
def test_contradictions_are_refused(given, message):
    with pytest.raises(PackingError, match=message):
        sft(**given)


def test_fields_are_options_of_the_command_line():
    (args,) = HfArgumentParser(PackingTrainingArguments).parse_args_into_dataclasses(
        ["--output_dir", "out", "--use_cpu", "--overflow", "split", "--min_fill", "0.9", "--max_length", "77"]
    )
    assert (args.overflow, args.min_fill, args.max_length, args.packing) == ("split", 0.9, 77, True)
    (args,) = TrlParser(PackingSFTConfig).parse_args_and_config(
        ["--output_dir", "out", "--use_cpu", "--bf16", "false", "--packing", "--loss_normalization", "sequence"]
    )
    assert (args.packing, args.loss_normalization) == (True, "sequence")


def test_every_field_says_what_it_does():
    for cls in (PackingTrainingArguments, PackingSFTConfig):
        for name, field in cls.__dataclass_fields__.items():
            assert field.metadata.get("help"), name


def test_a_configuration_survives_a_round_trip():
    args = PackingSFTConfig("out", packing=True, overflow="split", max_sequences_per_pack=3, **CPU)
    again = PackingSFTConfig(**{**args.to_dict(), "accelerator_config": None, **CPU})
    assert PackingSettings.from_args(again) == PackingSettings.from_args(args)
