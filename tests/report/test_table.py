"""The plain text table."""

from __future__ import annotations

from hf_packing.report import text_table


def test_columns_line_up():
    lines = text_table(["name", "n", "x"], [["a", 12345, 0.5], ["longer name", 1, "–"]], indent=2).splitlines()
    assert lines == [
        "  name              n    x",
        "  -----------  ------  ---",
        "  a            12,345  0.5",
        "  longer name       1    –",
    ]


def test_no_rows():
    assert text_table(["a", "b"], []) == "a  b\n-  -"
