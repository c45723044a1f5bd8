"""One plan for the whole dataset, columns that fit, and no stale cache (051, 055, 059)."""

import pytest
from datasets import Dataset, load_from_disk

from hf_packing.data import PackingTransform, PaddingFreeCollator, pack_dataset
from hf_packing.errors import PackingError


def test_case_051_no_poor_row_a_batch():
    dataset = Dataset.from_dict({"input_ids": [[number % 50] * 10 for number in range(3000)]})
    packed, plan = pack_dataset(dataset, 8192, return_plan=True, desc=None)
    assert len(packed) == 4 and plan.gap == 0
    assert pack_dataset(dataset, 8192, num_proc=4, desc=None)[:] == packed[:]
    transform = PackingTransform(8192)
    whole = dataset.map(transform, batched=True, batch_size=None, remove_columns=["input_ids"])
    assert len(whole) == 4
    assert len(dataset.map(transform, batched=True, batch_size=1000, remove_columns=["input_ids"])) == 6
    assert "91.55 % full" in plan.describe()


def test_case_055_a_column_of_another_length_is_named():
    rows = [{"input_ids": [1] * 5, "labels": [1] * 5} for _ in range(3)]
    rows[2]["labels"] = [1] * 4
    with pytest.raises(PackingError, match=r"Column 'labels', row 2 has 4 entries, 'input_ids' has 5"):
        pack_dataset(Dataset.from_list(rows), 16)
    with pytest.raises(PackingError, match=r"Column 'labels', row 2 of the batch has 4 entries"):
        PaddingFreeCollator()(rows)
    with pytest.raises(ValueError, match="'labels', row 2"):
        Dataset.from_list(rows).map(PackingTransform(16), batched=True, remove_columns=["input_ids", "labels"])


def test_case_059_other_settings_are_another_result(tmp_path):
    Dataset.from_dict({"input_ids": [[5, 6, 7], [8, 9], [4, 5, 6, 7, 8]]}).save_to_disk(tmp_path / "data")
    dataset = load_from_disk(tmp_path / "data")
    settings = [
        {"max_length": 8},
        {"max_length": 16},
        {"max_length": 16, "ensure_eos": 2},
        {"max_length": 16, "ensure_eos": 3},
        {"max_length": 16, "isolate": False},
        {"max_length": 16, "eos_token_id": 7, "mask_eos_loss": True},
    ]
    for pack in (
        lambda options: pack_dataset(dataset, desc=None, **options),
        lambda options: dataset.map(
            PackingTransform(**options), batched=True, batch_size=None, remove_columns=["input_ids"]
        ),
    ):
        results = [pack(options) for options in settings]
        assert len({result._fingerprint for result in results}) == len(settings)
        files = [result.cache_files[0]["filename"] for result in results]
        assert len(set(files)) == len(settings)
        assert max(map(len, results[0]["input_ids"])) <= 8 < max(map(len, results[1]["input_ids"]))
        again = pack(settings[1])
        assert again._fingerprint == results[1]._fingerprint and again.cache_files == results[1].cache_files
    assert len(pack_dataset(dataset.select([0, 1]), 8, desc=None)) == 1  # another dataset, the same directory
