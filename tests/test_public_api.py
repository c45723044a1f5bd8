"""The names others call, with the arguments they call them by."""

from __future__ import annotations

import inspect

import pytest

import hf_packing


def test_all_is_sorted_and_importable():
    assert hf_packing.__all__ == sorted(hf_packing.__all__)
    missing = [name for name in hf_packing.__all__ if not hasattr(hf_packing, name)]
    assert not missing


KEYWORDS = {
    "plan_packs": "strategy overflow max_sequences multiple_of seed count_targets",
    "pack_dataset": "plan strategy overflow num_proc return_plan ensure_bos ensure_eos mask_eos_loss isolate "
    "drop_duplicates",
    "PaddingFreeCollator": "boundaries layout pad_to_multiple_of multiple_of pad_token_id max_sequences "
    "position_ids_start",
    "PackBatchSampler": "batch_size max_tokens num_replicas rank seed balance cost window drop_last",
    "check_isolation": "boundaries layout raise_on_leak",
    "padding_report": "max_length batch_size seed",
    "PackedStream": "buffer_size",
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_keyword_arguments(name):
    parameters = inspect.signature(getattr(hf_packing, name)).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    missing = [key for key in KEYWORDS[name].split() if key not in parameters]
    assert not missing or takes_any, missing


FIELDS = [
    "overflow",
    "max_sequences_per_pack",
    "loss_normalization",
    "isolation_check",
    "balance_ranks",
    "repack_each_epoch",
    "match_sequences_per_step",
    "min_fill",
    "attention",
    "packing",
    "packing_strategy",
    "eval_packing",
    "max_length",
]


@pytest.mark.parametrize("config", ["PackingTrainingArguments", "PackingSFTConfig"])
def test_config_fields_and_defaults(config, tmp_path):
    args = getattr(hf_packing, config)(str(tmp_path), use_cpu=True)
    values = {name: getattr(args, name) for name in FIELDS}
    assert values["overflow"] == "truncate" and values["loss_normalization"] == "token"
    assert values["isolation_check"] == "error" and values["attention"] == "auto"
    assert values["min_fill"] == 0.97 and values["balance_ranks"] and values["repack_each_epoch"]
    assert values["packing"] is (config == "PackingTrainingArguments")


def test_errors_are_one_family():
    assert issubclass(hf_packing.PackingError, ValueError)
    assert issubclass(hf_packing.ContaminationError, hf_packing.PackingError)


def test_every_public_name_is_documented():
    undocumented = [name for name in hf_packing.__all__ if not (getattr(hf_packing, name).__doc__ or "").strip()]
    assert not undocumented
