"""The padding bill against worked examples, its JSON contract, and its text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from hf_packing.errors import PackingError
from hf_packing.report import padding_report


EXAMPLES = [
    # lengths, max_length, padded: slots, padding, waste %; packed: packs, slots, padding, saved %
    ([2048, 512, 256, 128], 2048, (8192, 5248, 64.1), (2, 4096, 1152, 50.0)),
    ([1024, 768, 512, 256, 96], 2048, (10240, 7584, 74.1), (2, 4096, 1440, 60.0)),
]


@pytest.mark.parametrize(("lengths", "max_length", "padded", "packed"), EXAMPLES)
def test_worked_examples(lengths, max_length, padded, packed):
    bill = padding_report(lengths, max_length=max_length, batch_size=8)
    figures = json.loads(bill.to_json())
    before = figures["layouts"]["padded_max"]
    assert (before["slots"], before["padding"], round(100 * before["waste"], 1)) == padded
    assert figures["lower_bound"] == packed[0]
    for strategy in ("bfd", "optimal"):
        after = figures["layouts"][f"packed_{strategy}"]
        assert (after["rows"], after["slots"], after["padding"], round(100 * after["saved"], 1)) == packed


def test_tail_padding_share_of_example_a():
    bill = padding_report([2048, 512, 256, 128], max_length=2048)
    assert round(100 * bill.layouts["packed_bfd"].waste, 1) == 28.1
    assert bill.layouts["packed_bfd"].causal_scores == 2_269_184
    assert bill.layouts["padded_max"].causal_scores == 8_388_608


def test_capacity_ten_fills_two_packs():
    bill = padding_report([8, 2, 7, 3], max_length=10, batch_size=2)
    packed = bill.layouts["packed_bfd"]
    assert (packed.rows, packed.slots, packed.fill, packed.sum_squares) == (2, 20, 1.0, 126)
    assert packed.rows * 10**2 == 200  # what a dense mask over the same packs computes


def test_layouts_of_four_sequences():
    layouts = json.loads(padding_report([2, 8, 3, 7], max_length=8, batch_size=2).to_json())["layouts"]
    assert {name: layouts[name]["slots"] for name in ("padded_batch", "length_grouped", "padding_free")} == {
        "padded_batch": 30,
        "length_grouped": 22,
        "padding_free": 20,
    }
    assert (layouts["padded_batch"]["sum_squares"], layouts["padding_free"]["sum_squares"]) == (226, 126)


def test_json_keys_are_the_contract():
    figures = json.loads(padding_report([5, 3, 4], max_length=8, batch_size=2).to_json())
    assert figures["sequences"] == 3 and figures["tokens"] == 12
    assert figures["max_length"] == 8 and figures["batch_size"] == 2
    for name in ("padded_max", "padded_batch", "length_grouped", "padding_free", "packed_bfd", "packed_optimal"):
        assert {"slots", "fill", "padding", "rows", "causal_scores", "sum_squares"} <= set(figures["layouts"][name])
    assert {"lower_bound", "ledger", "verdict", "max_lengths", "assumptions"} <= set(figures)
    ledger = figures["ledger"]
    assert ledger["tokens_in"] == ledger["tokens_packed"] + ledger["tokens_truncated"] + ledger["tokens_dropped"]


@pytest.mark.parametrize(
    ("overflow", "rows", "tokens"), [("truncate", 3, 20), ("drop", 2, 12), ("split", 5, 33), ("own_pack", 3, 33)]
)
def test_every_layout_is_made_of_what_overflow_leaves(overflow, rows, tokens):
    bill = padding_report([21, 8, 4], max_length=8, batch_size=1, overflow=overflow, strategies=("bfd", "optimal"))
    assert bill.layouts["padded_max"].rows == rows
    assert {layout.tokens for layout in bill.layouts.values()} == {tokens}


def test_seed_moves_padded_batches_only():
    lengths = np.random.default_rng(0).integers(1, 100, 1000)
    one, two, again = (padding_report(lengths, 128, seed=seed, strategies=("bfd",)) for seed in (1, 2, 1))
    assert one.layouts == again.layouts
    assert one.layouts["padded_batch"].slots != two.layouts["padded_batch"].slots
    assert one.layouts["packed_bfd"].slots == two.layouts["packed_bfd"].slots


def test_steps_and_sequences_a_step():
    bill = padding_report([4] * 64, max_length=16, batch_size=2)
    padded, packed = bill.layouts["padded_batch"], bill.layouts["packed_bfd"]
    assert (padded.steps, padded.sequences_per_step) == (32, 2.0)
    assert (packed.rows, packed.steps, packed.sequences_per_step) == (16, 8, 8.0)


def test_text_shows_every_layout_the_verdict_and_the_table():
    bill = padding_report([2048, 512, 256, 128] * 10, max_length=2048, batch_size=4)
    text = bill.to_text()
    assert bill.verdict in " ".join(text.split())
    for layout in bill.layouts.values():
        assert layout.title in text and f"{layout.slots:,}" in text
    for row in bill.horizons:
        assert f"{row.max_length:,}" in text
    assert max(map(len, text.splitlines())) < 150


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_no_tokens(lengths):
    bill = padding_report(lengths, max_length=8)
    assert bill.verdict == "No tokens: there is nothing to pack."
    assert bill.plan.num_packs == 0
    json.loads(bill.to_json())
    bill.to_text()


def test_a_packed_dataset_is_counted_by_its_sequences():
    rows = Dataset.from_dict({"input_ids": [[1] * 7, [2] * 5], "seq_lengths": [[4, 3], [5]]})
    bill = padding_report(rows, max_length=8, batch_size=2)
    assert (bill.sequences, bill.tokens, bill.findings) == (3, 12, None)


def test_json_can_be_written(tmp_path):
    bill = padding_report([5, 3, 4], max_length=8)
    text = bill.to_json(tmp_path / "bill.json")
    assert json.loads(text) == json.loads((tmp_path / "bill.json").read_text(encoding="utf-8")) == bill.to_dict()


def test_datasets_that_have_to_be_narrowed_down_are_named():
    rows = Dataset.from_dict({"input_ids": [[1, 2]]})
    with pytest.raises(PackingError, match=r"splits \['test', 'train'\]; give one"):
        padding_report(DatasetDict(train=rows, test=rows))
    with pytest.raises(PackingError, match=r"streaming dataset has no end"):
        padding_report(rows.to_iterable_dataset())
    with pytest.raises(PackingError, match="no column 'tokens'"):
        padding_report(rows, column="tokens")


def test_bad_input_is_named():
    with pytest.raises(PackingError, match=r"1-D list of integer lengths or a dataset, got 1 dimension.* of float64"):
        padding_report([1.5, 2.0])
    with pytest.raises(PackingError, match="batch_size is 0"):
        padding_report([1, 2], batch_size=0)
    with pytest.raises(PackingError):
        padding_report([1, -2], max_length=8)
