"""The verdict says whether packing is worth it, and is right about it."""

from __future__ import annotations

import re

import numpy as np

from hf_packing.report import padding_report


def test_short_and_uneven_data_gain():
    lengths = np.minimum(np.random.default_rng(0).lognormal(5, 1, 4000).astype(int) + 1, 2048)
    bill = padding_report(lengths, max_length=2048, batch_size=8, strategies=("bfd",))
    gain = bill.layouts["padded_batch"].slots / bill.layouts["packed_bfd"].slots
    assert gain > 1.5
    stated = float(re.search(r"saves ([\d.]+)× slots", bill.verdict).group(1))
    assert abs(stated - gain) <= 0.05
    assert bill.verdict.count(". ") == 0  # one sentence


def test_near_full_data_gain_nothing():
    lengths = np.random.default_rng(0).integers(2000, 2049, 1000)
    assert "Near-full data" in padding_report(lengths, 2048, strategies=("bfd",)).verdict
    assert "nothing to gain" in padding_report(lengths, 2048, strategies=("bfd",)).verdict


def test_even_but_short_data_gain_no_slots():
    assert padding_report([100] * 800, 2000, strategies=("bfd",)).verdict.startswith("Nothing to gain in slots")


def test_lost_tokens_are_in_the_sentence():
    verdict = padding_report([100, 7, 3, 12, 100, 9] * 20, 20, batch_size=4, strategies=("bfd",)).verdict
    assert re.search(r"69\.3 ?% of the tokens do not fit max_length 20 and are lost", verdict)
