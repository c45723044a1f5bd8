"""What the tokens show: EOS, BOS, and repeated rows, on every shape a dataset can have."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, Features, LargeList, List, Value, concatenate_datasets

from hf_packing.errors import PackingError
from hf_packing.report import padding_report


ROWS = [[1, 5, 2], [1, 5, 2], [1, 1, 7, 2, 2], [5, 6], [], [2], [1], [1, 5, 2]]


def counted(rows, eos, bos):
    """The same counts in plain Python."""
    full = [row for row in rows if row]
    return (
        sum(row[-1] != eos for row in full),
        sum(row[-2:] == [eos, eos] for row in full),
        sum(row[0] != bos for row in full),
        sum(row[:2] == [bos, bos] for row in full),
        len(full) - len({tuple(row) for row in full}),
    )


def find(dataset, **ids):
    return padding_report(dataset, 64, strategies=("bfd",), max_lengths=(), **ids).findings


def found(dataset, **ids):
    findings = find(dataset, **ids)
    return (
        findings.without_eos,
        findings.doubled_eos,
        findings.without_bos,
        findings.doubled_bos,
        findings.duplicates,
    )


def test_counts_by_hand():
    findings = find(Dataset.from_dict({"input_ids": ROWS}), eos_token_id=2, bos_token_id=1)
    assert (findings.rows, findings.without_eos, findings.doubled_eos) == (7, 2, 1)
    assert (findings.without_bos, findings.doubled_bos) == (2, 1)
    assert (findings.duplicates, findings.duplicate_tokens) == (2, 6)


@pytest.mark.parametrize(
    "shape",
    [
        lambda rows: rows,
        lambda rows: rows.select(range(2, 7)),
        lambda rows: rows.shuffle(seed=3),
        lambda rows: rows.filter(lambda row: len(row["input_ids"]) != 3),
        lambda rows: concatenate_datasets([rows, rows.select([0, 5])]),
        lambda rows: rows.cast(Features({"input_ids": List(Value("int32"))})),
        lambda rows: rows.cast(Features({"input_ids": LargeList(Value("int64"))})),
        lambda rows: rows.with_format("torch"),
    ],
    ids=["plain", "sliced", "shuffled", "filtered", "concatenated", "int32", "large", "torch"],
)
def test_every_shape_of_dataset(shape):
    dataset = shape(Dataset.from_dict({"input_ids": ROWS}))
    rows = [list(map(int, row)) for row in dataset.with_format(None)["input_ids"]]
    assert len(rows) > 3
    assert found(dataset, eos_token_id=2, bos_token_id=1) == counted(rows, 2, 1)


def test_many_rows_at_random():
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 3, rng.integers(0, 5)).tolist() for _ in range(500)]
    expected = counted(rows, 2, 1)
    assert min(expected) > 0
    assert found(Dataset.from_dict({"input_ids": rows}), eos_token_id=2, bos_token_id=1) == expected


def test_a_null_row_is_named():
    table = pa.table({"input_ids": pa.array([[1, 2], None, [3, 2]], pa.list_(pa.int64()))})
    with pytest.raises(PackingError, match=r"row 1\b"):
        find(Dataset(table), eos_token_id=2)


def test_pads_are_not_ends():
    rows = Dataset.from_dict(
        {"input_ids": [[5, 2, 0, 0], [6, 7, 2, 0]], "attention_mask": [[1, 1, 0, 0], [1, 1, 1, 0]]}
    )
    bill = padding_report(rows, 8, eos_token_id=2)
    assert (bill.tokens, bill.findings.without_eos) == (5, 0)


def test_sequences_without_targets_are_dropped_from_every_plan():
    rows = {"input_ids": [[1, 2, 3], [4, 5, 6], [7, 8, 9]], "completion_mask": [[0, 1, 1], [0, 0, 0], [0, 0, 1]]}
    bill = padding_report(Dataset.from_dict(rows), 2, strategies=("bfd", "optimal"))  # the third loses its target
    assert {layout.sequences for layout in bill.layouts.values()} == {1}
    assert (bill.plan.ledger.sequences_dropped, bill.plan.ledger.tokens_dropped) == (2, 4)
    assert bill.plan.ledger.tokens_truncated == 3


def test_several_ends_and_a_template_that_closes_with_another_token():
    dataset = Dataset.from_dict({"input_ids": [[5, 7], [6, 7], [4, 2]]})
    assert find(dataset, eos_token_id=[2, 7]).without_eos == 0
    findings = find(dataset, eos_token_id=2)
    assert (findings.without_eos, findings.common_end) == (2, 7)
    assert findings.common_end_share == pytest.approx(2 / 3)
    assert any("end in id 7" in line and "EOS to train" in line for line in findings.lines())


def test_end_of_turn_with_a_line_break_behind_it():
    findings = find(Dataset.from_dict({"input_ids": [[5, 2, 9], [6, 2, 9], [4, 3, 9], [2]]}), eos_token_id=2)
    assert (findings.without_eos, findings.eos_then_one, findings.common_end) == (3, 2, 9)
    assert any("2 of 4 rows (50.0 %) end in EOS and one more token" in line for line in findings.lines())


def test_lines_say_what_is_right_too():
    lines = find(Dataset.from_dict({"input_ids": [[5, 2], [6, 2]]}), eos_token_id=2).lines()
    assert lines == [
        "0 of 2 rows do not end in EOS (id 2)",
        "0 of 2 rows end in EOS (id 2) twice",
        "0 of 2 rows repeat an earlier row token by token",
    ]
    unknown = find(Dataset.from_dict({"input_ids": [[5, 2]]})).lines()
    assert any("not looked for" in line for line in unknown)


def test_no_rows():
    empty = Dataset.from_dict({"input_ids": []}, features=Features({"input_ids": List(Value("int64"))}))
    findings = find(empty, eos_token_id=2)
    assert (findings.rows, findings.without_eos, findings.duplicates) == (0, 0, 0)
    findings.lines()
