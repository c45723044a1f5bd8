"""Case 102: grouping by length reads the lengths of rows stored as tensors of shape (1, T), and says so with packs."""

import pytest
import torch

from hf_packing import PackingTrainer
from tests.distributed import scenarios


ROWS = [{"input_ids": torch.arange(3, 3 + length)[None]} for length in (5, 9, 3)]


def trainer(tmp_path, rows, **settings):
    args = scenarios.arguments(str(tmp_path), train_sampling_strategy="group_by_length", **settings)
    return PackingTrainer(scenarios.build_model(), args, train_dataset=rows)


def test_case_102_lengths_of_tensor_rows(tmp_path):
    loader = trainer(tmp_path, ROWS, packing=False, eval_packing=False).get_train_dataloader()
    assert sorted(batch["input_ids"].shape[1] for batch in loader) == [3, 5, 9]
    rows = [{"input_ids": torch.arange(3, 3 + length)[None]} for length in (5, 30, 6, 29, 5, 31, 30, 6)]
    grouped = trainer(tmp_path, rows, packing=False, eval_packing=False, per_device_train_batch_size=2)
    widths = []
    for batch in grouped.get_train_dataloader():
        real = batch["attention_mask"].sum(1) if "attention_mask" in batch else (batch["input_ids"] > 0).sum(1)
        widths.append(sorted(real.tolist()))
    assert sorted(widths) == [[5, 5], [6, 6], [29, 30], [30, 31]]


def test_case_102_pointless_with_packs(tmp_path, caplog):
    with caplog.at_level("WARNING"):
        trainer(tmp_path, ROWS).get_train_dataloader()
    assert "group_by_length' has no effect on packs" in caplog.text


@pytest.mark.parametrize("packing", [True, False])
def test_case_102_every_row_once(tmp_path, packing):
    loader = trainer(tmp_path, ROWS, packing=packing, eval_packing=packing).get_train_dataloader()
    tokens = torch.cat([batch["input_ids"].reshape(-1) for batch in loader])
    assert tokens[tokens > 0].numel() == 17
