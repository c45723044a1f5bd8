"""pack_dataset, PackedDataset and PackingTransform give the same rows, for every shape of dataset."""

import logging

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from hf_packing.data import PackedDataset, PackingTransform, dataset_lengths, pack_dataset, plan_dataset
from hf_packing.data.packs import needs_64_bits
from hf_packing.errors import PackingError
from hf_packing.plan import plan_packs
from tests.data.plain_packing import check_rows, prepare


def columns_equal(a, b):
    # A numpy or torch format hands floats to map in single precision.
    return set(a) == set(b) and all(np.allclose(np.asarray(a[name]), np.asarray(b[name])) for name in a)


@pytest.mark.parametrize("overflow", ["truncate", "split", "truncate_left", "drop"])
def test_every_shape_of_dataset_gives_the_tokens_it_holds(any_dataset, overflow):
    rows = list(any_dataset.with_format(None))
    assert dataset_lengths(any_dataset).tolist() == [len(row["input_ids"]) for row in rows]
    packed, plan = pack_dataset(any_dataset, 24, overflow=overflow, return_plan=True, desc=None)
    stored_rows = list(packed.with_format(None))
    checked = check_rows(stored_rows, rows, overflow=overflow)
    assert checked == plan.ledger.tokens_packed
    assert plan.ledger.tokens_in == sum(len(row["input_ids"]) for row in rows)
    assert (checked > 0) == (plan.num_packs > 0) and (checked > 0 or len(rows) < 2)
    assert packed.format["type"] == any_dataset.format["type"]

    lazy = PackedDataset(any_dataset, plan)
    assert len(lazy) == len(packed) == plan.num_packs
    for stored_row, row in zip(stored_rows, lazy[:], strict=True):
        assert columns_equal(stored_row, row)
    mapped = any_dataset.map(
        PackingTransform(24, overflow=overflow),
        batched=True,
        batch_size=None,
        with_indices=True,
        remove_columns=any_dataset.column_names,
    )
    if len(rows):  # map returns an empty dataset as it is
        for stored_row, row in zip(stored_rows, mapped.with_format(None), strict=True):
            assert columns_equal(stored_row, row)


def test_columns_with_one_number_a_token_are_packed_along(stored, caplog):
    with caplog.at_level(logging.INFO):
        packed = pack_dataset(stored, 64, desc=None)
    assert "scores, text" in caplog.text
    assert sorted(packed.column_names) == ["input_ids", "labels", "seq_lengths", "sequence_ids", "weights"]
    checked = 0
    for row in packed:
        weights = [weight for sequence in row["sequence_ids"] for weight in stored[sequence]["weights"]]
        assert row["weights"] == weights
        checked += len(weights)
    assert checked > 1000


def test_the_result_does_not_depend_on_batch_size_or_processes(stored):
    reference = pack_dataset(stored, 48, desc=None)
    for options in ({"batch_size": 3}, {"batch_size": 1000}, {"num_proc": 2}, {"num_proc": 4, "batch_size": 5}):
        other = pack_dataset(stored, 48, load_from_cache_file=False, desc=None, **options)
        assert other[:] == reference[:], options
        assert other._fingerprint == reference._fingerprint


def test_a_plan_can_be_brought_along(stored):
    plan = plan_packs(dataset_lengths(stored), 64)
    packed, same = pack_dataset(stored, 64, plan=plan, return_plan=True, desc=None)
    assert same is plan and len(packed) == plan.num_packs
    with pytest.raises(PackingError, match="plan is for max_length=64, asked is max_length=65"):
        pack_dataset(stored, 65, plan=plan)


def test_an_in_memory_dataset_is_packed_in_memory():
    packed = pack_dataset(Dataset.from_dict({"input_ids": [[1, 2], [3, 4, 5]]}), 5, desc=None)
    assert packed.cache_files == [] and packed[0]["input_ids"] == [3, 4, 5, 1, 2]


def test_an_empty_dataset_gives_an_empty_one():
    packed, plan = pack_dataset(Dataset.from_dict({"input_ids": [[], []]}), 8, return_plan=True, desc=None)
    assert len(packed) == 0 and plan.ledger.sequences_empty == 2
    assert "seq_lengths" in packed.column_names
    assert len(PackedDataset(Dataset.from_dict({"input_ids": [[], []]}), plan)) == 0


def test_continuous_text_has_one_length_a_pack():
    dataset = Dataset.from_dict({"input_ids": [[1, 2, 3], [4, 5], [6, 7, 8, 9]]})
    packed = pack_dataset(dataset, 4, strategy="wrapped", isolate=False, desc=None)
    assert [row["seq_lengths"] for row in packed] == [[4], [4], [1]] or [r["seq_lengths"] for r in packed] == [
        [4],
        [4],
    ]
    assert packed[0]["labels"] == [-100, 2, 3, 4] and packed[0]["sequence_ids"] == [0, 1]


def test_split_sequences_carry_the_targets_of_the_whole():
    dataset = Dataset.from_dict({"input_ids": [list(range(21)), [1, 2, 3]]})
    rows = list(pack_dataset(dataset, 8, overflow="split", desc=None))
    pieces = {}
    for row in rows:
        for sequence, targets, length in zip(row["sequence_ids"], row["sequence_targets"], row["seq_lengths"]):
            pieces.setdefault(sequence, []).append((length, targets))
    assert sorted(pieces[0]) == [(5, 18), (8, 18), (8, 18)]  # 7 + 7 + 4 tokens are predicted
    assert pieces[1] == [(3, -1)]
    assert "sequence_targets" not in pack_dataset(dataset, 32, desc=None).column_names


@pytest.mark.parametrize("overflow", ["truncate", "truncate_left", "split"])
@pytest.mark.parametrize("mask_eos_loss", [False, True])
def test_special_tokens_and_pads(overflow, mask_eos_loss):
    rng = np.random.default_rng(3)
    rows = []
    for _ in range(200):
        ids = rng.integers(1, 6, rng.integers(1, 14)).tolist()
        left, right = rng.integers(0, 3, 2)
        rows.append(
            {
                "input_ids": [0] * left + ids + [0] * right,
                "attention_mask": [0] * left + [1] * len(ids) + [0] * right,
                "completion_mask": rng.integers(0, 2, left + len(ids) + right).tolist(),
            }
        )
    special = {"bos": 1, "eos": 2, "eos_ids": (2, 3), "mask_eos_loss": mask_eos_loss}
    options = {
        "ensure_bos": 1,
        "ensure_eos": True,
        "eos_token_id": [2, 3],
        "mask_eos_loss": mask_eos_loss,
        "overflow": overflow,
    }
    dataset = Dataset.from_list(rows)
    plan = plan_dataset(dataset, 9, **options)
    assert plan.ledger.tokens_in == sum(len(prepare(row, **special).ids) for row in rows)
    options.pop("overflow")
    packed = list(PackedDataset(dataset, plan, **options)[:])
    assert check_rows(packed, rows, overflow=overflow, **special) == plan.ledger.tokens_packed > 500
    assert all(row["labels"].max() > 0 for row in packed)


def test_sequences_without_a_target_are_dropped_and_counted(caplog):
    rows = {"input_ids": [[1, 2, 3], [4, 5, 6], [7]], "completion_mask": [[0, 1, 1], [0, 0, 0], [1]]}
    packed, plan = pack_dataset(Dataset.from_dict(rows), 8, return_plan=True, desc=None)
    assert packed["sequence_ids"][:] == [[0]]
    assert (plan.ledger.sequences_dropped, plan.ledger.tokens_dropped) == (2, 4)
    assert "leaves out 4 of 7 tokens" in caplog.text and "Rows such as 1, 2." in caplog.text


def test_duplicates_are_dropped_on_request(caplog):
    dataset = Dataset.from_dict(
        {"input_ids": [[1, 2], [3, 4, 5], [1, 2], [1, 2, 0]], "attention_mask": [[1, 1], [1, 1, 1], [1, 1], [1, 1, 0]]}
    )
    _, plan = pack_dataset(dataset, 8, drop_duplicates=True, return_plan=True, desc=None)
    assert sorted(plan.sequence_ids.tolist()) == [0, 1]
    assert plan.ledger.sequences_dropped == 2
    assert "Dropping 2 of 4 sequences as duplicates" in caplog.text


def test_shares_of_missing_and_doubled_ends_are_reported(caplog):
    dataset = Dataset.from_dict({"input_ids": [[1, 5, 2], [1, 1, 5], [5, 2, 2]]})
    pack_dataset(dataset, 8, bos_token_id=1, eos_token_id=2, desc=None)
    for line in (
        "1 of 3 sequences (33.3 %) do not begin with BOS (1)",
        "1 of 3 sequences (33.3 %) begin with two BOS (1)",
        "1 of 3 sequences (33.3 %) do not end in EOS (2)",
        "1 of 3 sequences (33.3 %) end in two EOS (2)",
    ):
        assert line in caplog.text


def test_64_bit_offsets_where_lists_need_them(stored, monkeypatch):
    monkeypatch.setitem(needs_64_bits.__globals__, "_MOST_IN_32_BITS", 40)
    packed, plan = pack_dataset(stored, 48, keep_in_memory=True, return_plan=True, desc=None)
    assert "LargeList" in str(packed.features["input_ids"])
    assert check_rows(list(packed), list(stored)) == plan.ledger.tokens_packed > 1000
    mapped = stored.map(PackingTransform(48), batched=True, batch_size=None, remove_columns=stored.column_names)
    assert "LargeList" in str(mapped.features["labels"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input_ids": [[1], None, [2]]}, "'input_ids', row 1 is null"),
        ({"input_ids": [[1], [2, None]]}, "'input_ids', row 1 holds a null"),
        ({"input_ids": ["a b", "c"]}, "'input_ids' holds string, not lists of numbers"),
        ({"input_ids": [["a"], ["b"]]}, "'input_ids' holds lists of string"),
        ({"input_ids": [[[1, 2]], [[3]]]}, "'input_ids' holds lists of lists"),
        ({"text": ["a"]}, r"no column 'input_ids' to pack \(the columns: \['text'\]\)"),
        ({"input_ids": [[1, 2]], "labels": [[1]]}, "'labels', row 0 has 1 entries, 'input_ids' has 2"),
        ({"input_ids": [[1, 2]], "labels": [3]}, "'labels' holds int64, not lists of numbers"),
        ({"input_ids": [[1], [1, 2]], "attention_mask": [[1], [1]]}, r"'attention_mask', row 1 .* \(1 such rows\)"),
        ({"input_ids": [[1, 2]], "labels": [None]}, "'labels'"),
        ({"input_ids": [[1, 2]], "seq_lengths": [[2]]}, "packed already"),
        ({"input_ids": [[1] * 9, [1] * 3]}, r"lengths\[0\] is 9, above max_length=8"),
    ],
)
def test_bad_datasets_are_named(columns, message):
    with pytest.raises(PackingError, match=message):
        pack_dataset(Dataset.from_dict(columns), 8)


def test_null_rows_that_were_filtered_away_do_no_harm():
    dataset = Dataset.from_dict({"input_ids": [[1, 2], None, [3, 4], [5, None]]}).select([0, 2])
    assert sorted(row["input_ids"] for row in pack_dataset(dataset, 2, desc=None)) == [[1, 2], [3, 4]]


def test_other_containers_are_refused_with_the_remedy(stored):
    with pytest.raises(PackingError, match="use PackedStream"):
        pack_dataset(stored.to_iterable_dataset(), 8)
    with pytest.raises(PackingError, match="splits of a DatasetDict one by one"):
        pack_dataset(DatasetDict(train=stored), 8)
    with pytest.raises(PackingError, match=r"Expected a datasets\.Dataset, got list"):
        pack_dataset([{"input_ids": [1]}], 8)
    with pytest.raises(PackingError, match="with_transform"):
        pack_dataset(stored.with_transform(lambda batch: batch), 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ensure_eos": True}, "ensure_eos=True needs the id of the token; pass eos_token_id"),
        ({"ensure_bos": True}, "ensure_bos=True needs the id"),
        ({"mask_eos_loss": True}, "mask_eos_loss=True needs the id"),
        ({"column": "ids"}, "no column 'ids'"),
    ],
)
def test_bad_options_are_named(stored, options, message):
    with pytest.raises(PackingError, match=message):
        pack_dataset(stored, 64, **options)
    with pytest.raises(PackingError, match=message):
        stored.map(PackingTransform(64, **options), batched=True)
