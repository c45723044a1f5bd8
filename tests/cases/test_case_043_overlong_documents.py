"""Documents longer than a row: what is kept is exact, what is lost is said (043, 046, 047)."""

import pytest
from datasets import Dataset

from hf_packing.data import PackedStream, pack_dataset


def packed_rows(columns, limit, **options):
    """The same documents through the dataset and through the stream."""
    dataset = Dataset.from_dict(columns)
    packed, plan = pack_dataset(dataset, limit, return_plan=True, desc=None, **options)
    stream = PackedStream(list(dataset), limit, **options)
    names = ("input_ids", "labels", "seq_lengths")
    streamed = sorted([row[name].tolist() for name in names] for row in stream)
    stored = sorted([row[name] for name in names] for row in packed)
    assert streamed == stored
    ledger, other = plan.ledger.to_dict(), stream.ledger.to_dict()
    assert ledger == other
    return stored, plan.ledger


def test_case_043_split_truncate_drop():
    columns = {"input_ids": [list(range(100, 121))]}
    rows, ledger = packed_rows(columns, 8, overflow="split")
    assert sorted(lengths for _, _, lengths in rows) == [[5], [8], [8]] and ledger.tokens_packed == 21
    rows, ledger = packed_rows(columns, 8, overflow="truncate")
    assert [lengths for _, _, lengths in rows] == [[8]] and ledger.tokens_truncated == 13
    rows, ledger = packed_rows(columns, 8, overflow="drop")
    assert rows == [] and (ledger.sequences_dropped, ledger.tokens_dropped) == (1, 21)


@pytest.mark.parametrize("labels", [[11, 12, 13, 14, 15, 16, 2], [-100] * 5 + [16, 2]])
def test_case_046_a_truncated_document_gets_its_end_back(labels):
    columns = {"input_ids": [[11, 12, 13, 14, 15, 16, 2]], "labels": [labels]}
    rows, ledger = packed_rows(columns, 5, overflow="truncate", ensure_eos=2)
    ids, row_labels, _ = rows[0]
    assert ids == [11, 12, 13, 14, 2] and row_labels[-1] == 2
    assert row_labels[:-1] == [-100, *labels[1:4]]
    assert ledger.sequences_truncated == 1 and ledger.tokens_truncated == 2


def test_case_047_a_document_without_any_target_left_is_dropped_and_counted(caplog):
    columns = {
        "input_ids": [[1, 2, 3, 4, 5, 6, 7, 8], [5, 6, 7]],
        "completion_mask": [[0] * 6 + [1] * 2, [0, 1, 1]],
    }
    rows, ledger = packed_rows(columns, 4, overflow="truncate")
    assert [ids for ids, _, _ in rows] == [[5, 6, 7]]
    assert ledger.sequences_dropped == 1
    assert ledger.tokens_truncated + ledger.tokens_dropped == 8
    assert "without a target" in caplog.text
