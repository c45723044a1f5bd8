"""Every Python block of the pages on packing runs, top to bottom, and every link between pages leads somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest


DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("loss.md", "packing.md", "troubleshooting.md")


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 3 or page == "troubleshooting.md"
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def test_figures_of_the_page_are_those_of_the_benchmark():
    """The table of layouts in packing.md is benchmarks/results/padding_bill.json, row by row."""
    rows = json.loads((DOCS.parent / "benchmarks" / "results" / "padding_bill.json").read_text(encoding="utf-8"))[
        "rows"
    ]
    table = re.findall(r"^\| [\w ,-]+ \| ([\d,]+) \| (.*) \|$", (DOCS / "packing.md").read_text("utf-8"), re.MULTILINE)
    assert len(table) == len(rows) > 5
    for (max_length, cells), row in zip(table, rows):
        assert int(max_length.replace(",", "")) == row["max_length"]
        shown = [cell.removesuffix(", proven").replace(">99.9", "100.0") for cell in cells.split(" | ")]
        names = ("max", "batch", "grouped", "buckets 50", "sequential", "bfd", "optimal")
        assert shown == [row[name] for name in names], row["set"]
        assert row["gap"] == 0 and cells.endswith(", proven")


def anchors(text: str) -> set[str]:
    """What GitHub makes of headings: lower case, no punctuation, dashes for spaces."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", text)
    assert links or page == "loss.md"
    for target, anchor in links:
        path = DOCS / target if target else DOCS / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{page} links to {target}#{anchor}"


def test_settings_named_in_the_pages_exist():
    """A page that names a setting in code style with a value must name one that the trainers have."""
    from hf_packing import PackingSFTConfig, pack_dataset
    from hf_packing.train.config import PackingTrainingArguments

    known = {
        *PackingSFTConfig.__dataclass_fields__,
        *PackingTrainingArguments.__dataclass_fields__,
        *pack_dataset.__code__.co_varnames[
            : pack_dataset.__code__.co_argcount + pack_dataset.__code__.co_kwonlyargcount
        ],
        *("attn_implementation", "strategy", "loss_is_scaled_for_ga", "batch_size", "boundaries", "layout"),
    }
    named = set()
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
        named |= set(re.findall(r"`(?:[^`]*[ (])?(\w+)=[^`]+`", prose))
    assert len(named) > 8
    assert named <= known, named - known
