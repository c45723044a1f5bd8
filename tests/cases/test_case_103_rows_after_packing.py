"""Packing that silently does not happen shows in the count of rows alone: every report states it."""

from __future__ import annotations

import re

from datasets import Dataset

from hf_packing.cli import main
from hf_packing.report import padding_report


LENGTHS = [20 + 7 * row % 25 for row in range(256)]
LIMIT = 512


def test_case_103_the_report_states_rows_before_and_after():
    bill = padding_report(LENGTHS, max_length=LIMIT, batch_size=8)
    packs = -(-sum(LENGTHS) // LIMIT)
    assert bill.layouts["padded_batch"].rows == 256
    assert bill.layouts[bill.best].rows == bill.plan.num_packs == packs < 20
    assert f"{packs} packs" in bill.verdict


def test_case_103_the_command_states_rows_before_and_after(tmp_path, capsys):
    source = tmp_path / "rows.parquet"
    Dataset.from_dict({"input_ids": [[1] * length for length in LENGTHS]}).to_parquet(source)
    assert main(["pack", str(source), str(tmp_path / "packed"), "--max-length", str(LIMIT)]) == 0
    before, after = map(int, re.search(r"(\d+) rows -> (\d+) packs", capsys.readouterr().out).groups())
    assert (before, after) == (256, -(-sum(LENGTHS) // LIMIT))
