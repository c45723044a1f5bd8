"""The report's page: self-contained, escaped, and looked at in a real browser."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest
from datasets import Dataset

from hf_packing.report import padding_report

from .browser import measure, screenshot


# Chromium is installed where the slow tests run (.ci/run); `make test` on a fresh machine does without it.
needs_browser = pytest.mark.slow


@pytest.fixture(scope="module")
def bill():
    lengths = np.minimum(np.random.default_rng(0).lognormal(5.5, 1, 3000).astype(int) + 1, 6000)
    return padding_report(lengths, max_length=2048, batch_size=8, strategies=("sequential", "bfd", "optimal"))


@pytest.fixture(scope="module")
def page(bill, tmp_path_factory):
    return bill.to_html(tmp_path_factory.mktemp("page") / "bill.html")


def test_page_needs_nothing_else(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"<(?:script|link|img|iframe)\b|@import|url\(|https?://", text)
    assert len(text) < 150_000
    assert text.count("<svg") == 4
    assert text.count("<html") == text.count("</html>") == 1


def test_page_says_what_the_figures_say(bill, page):
    text = unescape(page.read_text(encoding="utf-8"))
    assert bill.verdict in text
    for layout in bill.layouts.values():
        assert f"{layout.slots:,}" in text
    for row in bill.horizons:
        assert f"{row.packs:,}" in text


def test_drawn_packs_are_packs_of_the_plan(bill, page):
    text = page.read_text(encoding="utf-8")
    drawn = [
        (int(pack), int(sequence), int(length.replace(",", "")))
        for pack, sequence, length in re.findall(r"pack (\d+): sequence (\d+), ([\d,]+) tokens", text)
    ]
    assert len({pack for pack, _, _ in drawn}) == 14
    for pack, sequence, length in drawn:
        ids, _, lengths = bill.plan[pack]
        assert length == lengths[ids.tolist().index(sequence)]


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_browser_shows_it_without_sideways_scroll(page, tmp_path, width):
    size = measure(page, tmp_path, width)
    assert size["client_width"] == width
    assert size["scroll_width"] <= width and size["right"] <= width, size
    assert size["height"] > 1000
    assert size["smallest_letters"] >= 12  # readable: letters do not shrink with the width


@needs_browser
def test_screenshot_has_the_colours_of_the_drawing(page, tmp_path):
    image = tmp_path / "bill.png"
    screenshot(page, image, 390, 2400)
    pixels = pytest.importorskip("matplotlib.image").imread(image)[:, :390, :3]
    shades = {tuple(pixel) for pixel in (255 * pixels).round().astype(int)[::2, ::2].reshape(-1, 3)}
    for colour in ((0x3F, 0x7F, 0xD0), (0xE0, 0x8A, 0x2E), (0x2F, 0x9E, 0x78)):  # .c0 .c1 .c2: the packs' blocks
        assert colour in shades


def test_page_of_a_dataset_says_what_its_tokens_show(tmp_path):
    rows = Dataset.from_dict({"input_ids": [[5, 2], [5, 2], [6, 7]]})
    bill = padding_report(rows, 8, eos_token_id=2)
    text = unescape(bill.to_html(tmp_path / "bill.html").read_text(encoding="utf-8"))
    assert len(bill.findings.lines()) == 3
    for line in bill.findings.lines():
        assert f"<li>{line}</li>" in text and line in bill.to_text()


def test_empty_data_make_a_page(tmp_path):
    page = padding_report([], max_length=8).to_html(tmp_path / "empty.html")
    text = page.read_text(encoding="utf-8")
    assert "nothing to pack" in text and "<svg" not in text


@needs_browser
@pytest.mark.parametrize("lengths", [[], [1], [10**9 + row for row in range(300)]], ids=["none", "one", "billions"])
def test_browser_shows_odd_data_without_sideways_scroll(lengths, tmp_path):
    bill = padding_report(lengths, max_length=2048, overflow="own_pack", strategies=("bfd",))
    page = bill.to_html(tmp_path / "odd.html")
    for width in (390, 961):  # the narrowest phone, and the narrowest desk that gets a table
        assert measure(page, tmp_path, width)["scroll_width"] <= width


@pytest.mark.parametrize(
    ("lengths", "max_length"),
    [([1], 1), ([5] * 10, 32768), ([100_000, 3, 70], 512), ([1, 1, 1], 2), (list(range(1, 3000)), 100)],
)
def test_odd_data_make_a_page(lengths, max_length, tmp_path):
    text = padding_report(lengths, max_length).to_html(tmp_path / "odd.html").read_text(encoding="utf-8")
    assert "nan" not in text.lower().replace("nanogpt", "") and "inf%" not in text
    for left, width in re.findall(r'x="([\d.-]+)%" y="[\d.]+" width="([\d.-]+)%"', text):
        assert float(left) >= -0.01 and float(width) > 0 and float(left) + float(width) <= 100.5
