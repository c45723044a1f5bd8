"""PackedDataset: rows on access, new neighbours each epoch, and any number of processes."""

import pickle
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from torch.utils.data import DataLoader

from hf_packing.data import (
    FACTS_KEY,
    PackBatchSampler,
    PackedDataset,
    PaddingFreeCollator,
    dataset_lengths,
    plan_dataset,
    unpack_by_row,
)
from hf_packing.errors import PackingError
from hf_packing.plan import plan_packs
from tests.data.plain_packing import check_rows


def same_rows(first, second):
    return all(
        set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)
        for a, b in zip(first, second, strict=True)
    )


def neighbours(packed):
    return {frozenset(row["sequence_ids"].tolist()) for row in packed[:]}


def test_indexing(stored):
    packed = PackedDataset(stored, plan_dataset(stored, 64))
    assert same_rows([packed[2]], [packed[2 - len(packed)]])
    assert same_rows(packed[1:7:2], [packed[1], packed[3], packed[5]])
    assert same_rows(packed[[5, 0, -1]], [packed[5], packed[0], packed[len(packed) - 1]])
    assert same_rows(packed[np.array([3])], [packed[np.int64(3)]])
    assert packed[3:3] == [] and packed[[]] == []
    with pytest.raises(IndexError, match=f"Pack {len(packed)} is out of range"):
        packed[len(packed)]
    assert len(list(packed)) == len(packed)


def test_rows_are_fresh_and_cannot_harm_the_dataset(stored):
    packed = PackedDataset(stored, plan_dataset(stored, 64))
    before = pickle.dumps(packed[0])
    for values in packed[0].values():
        if values.flags.writeable:
            values[:] = 0
    assert pickle.dumps(packed[0]) == before


@pytest.mark.parametrize("overflow", ["truncate", "split"])
def test_epochs_have_other_neighbours_and_the_same_tokens(stored, overflow):
    plan = plan_dataset(stored, 30, overflow=overflow)
    packed = PackedDataset(stored, plan, seed=3)
    rows = list(stored)
    seen = [neighbours(packed)]
    tokens = Counter(np.concatenate([row["input_ids"] for row in packed[:]]).tolist())
    sizes = [row["seq_lengths"].tolist() for row in packed[:]]
    for epoch in (1, 2):
        packed.set_epoch(epoch)
        given = packed[:]
        assert check_rows(given, rows, overflow=overflow) == plan.ledger.tokens_packed
        assert Counter(np.concatenate([row["input_ids"] for row in given]).tolist()) == tokens
        assert [row["seq_lengths"].tolist() for row in given] == sizes
        assert all(len(set(row["sequence_ids"].tolist())) == row["sequence_ids"].size for row in given)
        seen.append(neighbours(packed))
    assert seen[0] != seen[1] != seen[2] != seen[0]
    again = PackedDataset(stored, plan, seed=3)
    again.set_epoch(2)
    assert same_rows(again[:], packed[:])
    packed.set_epoch(0)
    assert neighbours(packed) == seen[0]


@pytest.mark.parametrize("strategy", ["sequential", "wrapped"])
def test_plans_that_keep_the_order_keep_it_in_every_epoch(stored, strategy):
    packed = PackedDataset(stored, plan_packs(dataset_lengths(stored), 64, strategy=strategy))
    first = packed[:]
    packed.set_epoch(5)
    assert same_rows(first, packed[:])


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_workers_read_the_same_and_follow_set_epoch(stored, context):
    plan = plan_dataset(stored, 64)
    packed = PackedDataset(stored, plan)
    collate = PaddingFreeCollator(facts=True)
    loader = DataLoader(
        packed,
        batch_sampler=PackBatchSampler(plan, batch_size=2),
        collate_fn=collate,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    found = []
    for epoch in (0, 1):
        packed.set_epoch(epoch)
        rows = {}
        for batch in loader:
            rows |= unpack_by_row(batch["input_ids"], batch)
            assert batch[FACTS_KEY][:, 2].tolist() == batch.sequence_ids.tolist()
        assert {row: ids.tolist() for row, ids in rows.items()} == {
            row: stored[row]["input_ids"] for row in plan.sequence_ids.tolist()
        }
        found.append(list(rows))
    assert found[0] != found[1]


def test_it_travels_without_its_tokens(stored):
    packed = PackedDataset(stored, plan_dataset(stored, 64))
    packed.set_epoch(2)
    text = pickle.dumps(packed)
    assert stored.cache_files[0]["filename"].encode() in text
    twin = pickle.loads(text)
    assert twin.epoch == 2 and same_rows(twin[:], packed[:])


def test_a_plan_for_other_data_is_refused(stored):
    plan = plan_packs([9, 9, 9], 10)
    with pytest.raises(PackingError, match="names row 2 of a dataset with 2 rows"):
        PackedDataset(Dataset.from_dict({"input_ids": [[1] * 9] * 2}), plan)
    with pytest.raises(PackingError, match="takes tokens up to 9 from row 1, which has 8"):
        PackedDataset(Dataset.from_dict({"input_ids": [[1] * 9, [1] * 8, [1] * 9]}), plan)


def test_what_the_plan_does_not_know_is_refused():
    dataset = Dataset.from_dict({"input_ids": [[5, 6, 7, 0]], "attention_mask": [[1, 1, 1, 0]]})
    with pytest.raises(PackingError, match="takes tokens up to 4 from row 0, which has 3 after its pads"):
        PackedDataset(dataset, plan_packs(dataset_lengths(dataset), 8))
    longer = plan_dataset(dataset, 8, ensure_eos=2)
    with pytest.raises(PackingError, match=r"Plan this dataset with the same options"):
        PackedDataset(dataset, longer)
    assert PackedDataset(dataset, longer, ensure_eos=2)[0]["input_ids"].tolist() == [5, 6, 7, 2]


def test_no_token_is_copied_when_it_is_opened(tmp_path):
    """Opening a view over 8 million tokens takes memory for the lengths alone."""
    import tracemalloc

    rows, length = 20_000, 400
    Dataset.from_dict({"input_ids": [list(range(length))]}).select([0] * rows).save_to_disk(tmp_path / "big")
    dataset = Dataset.load_from_disk(tmp_path / "big")
    plan = plan_packs(dataset_lengths(dataset), 2048)
    tracemalloc.start()
    packed = PackedDataset(dataset, plan)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert packed[0]["input_ids"].size == 2000
    assert peak < 100 * rows  # a few numbers a row; the tokens are 1,600 bytes a row


@pytest.mark.parametrize("options", [{}, {"ensure_eos": 2, "mask_eos_loss": True}, {"isolate": False}])
@pytest.mark.parametrize("overflow", ["truncate", "split"])
@pytest.mark.parametrize("layout", ["flat", "rows"])
def test_rows_collate_alike_looked_into_or_not(stored, options, overflow, layout):
    """Untouched rows go straight into the batch; touched ones, dicts and lists go other ways to the same batch."""
    packed = PackedDataset(stored, plan_dataset(stored, 30, overflow=overflow, **options), **options)
    collate = PaddingFreeCollator(boundaries="explicit", layout=layout, facts=True, pad_to_multiple_of=8)
    checked = 0
    for start in range(0, len(packed), 7):
        untouched = packed[start : start + 7]
        touched = packed[start : start + 7]
        assert [row["input_ids"].size for row in touched]
        lists = [{name: values.tolist() for name, values in row.items()} for row in packed[start : start + 7]]
        expected = collate(untouched)
        for rows in (touched, [dict(row) for row in touched], lists, untouched[:1] + touched[1:]):
            batch = collate(rows)
            assert set(batch) == set(expected) and "weights" in batch
            for name, values in expected.items():
                same = np.allclose(batch[name], values) if name == "weights" else np.array_equal(batch[name], values)
                assert same, name
            assert batch.sequence_ids.tolist() == expected.sequence_ids.tolist()
            checked += 1
    assert checked > 12


def test_a_row_can_be_changed_like_a_dict(stored):
    packed = PackedDataset(stored, plan_dataset(stored, 64))
    row = packed[0]
    labels = row.pop("labels")
    row["labels"] = np.full_like(labels, 7)
    assert (PaddingFreeCollator()([row])["labels"] == 7).sum() == labels.size - row["seq_lengths"].size
    assert "labels" in row and len(row) == len(dict(packed[0])) and "PackedRow({" in repr(row)
    assert (packed[0]["labels"] == labels).all()
