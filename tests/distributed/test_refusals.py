"""Parallelism that packing is not proven right under is refused by name and reason, before anything is computed."""

import pytest
from datasets import Dataset

from hf_packing import PackingError, PackingTrainer
from tests.distributed import scenarios


@pytest.mark.parametrize("size", ["cp_size", "sp_size"])
@pytest.mark.parametrize("how", [{}, {"packing": False, "padding_free": True}])
def test_context_and_sequence_parallelism(tmp_path, monkeypatch, size, how):
    monkeypatch.setattr(PackingTrainer, f"get_{size}", lambda self: 2)
    args = scenarios.arguments(str(tmp_path), **how)
    with pytest.raises(PackingError, match=rf"{size}=2: .*packed sequences would see each other.*Set {size}=1"):
        PackingTrainer(scenarios.build_model(), args, train_dataset=Dataset.from_list(scenarios.rows(4)))


@pytest.mark.parametrize("size", ["cp_size", "sp_size"])
def test_padded_rows_are_not_refused(tmp_path, monkeypatch, size):
    monkeypatch.setattr(PackingTrainer, f"get_{size}", lambda self: 2)
    args = scenarios.arguments(str(tmp_path), packing=False, eval_packing=False)
    PackingTrainer(scenarios.build_model(), args, train_dataset=Dataset.from_list(scenarios.rows(4)))


@pytest.mark.parametrize("request_", ["even_batches", "dispatch_batches", "split_batches"])
def test_loaders_that_repeat_or_cut(tmp_path, request_):
    with pytest.raises(PackingError, match=f"{request_}=True"):
        scenarios.arguments(str(tmp_path), accelerator_config={request_: True})
