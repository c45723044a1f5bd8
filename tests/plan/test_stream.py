"""The stream packer: no sequence lost or late, exact resumption, and nearly full packs."""

import json
import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.errors import PackingError
from hf_packing.plan import plan_packs
from hf_packing.plan import stream as stream_module
from hf_packing.plan.stream import StreamPacker, better_method
from hf_packing.plan.subset import best_subset


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 12), max_size=9), room=st.integers(0, 40), most=st.sampled_from([None, 0, 1, 2, 3])
)
def test_the_best_subset_is_the_best(sizes, room, most):
    chosen = best_subset(sizes, room, most)
    assert chosen == sorted(set(chosen)) and (most is None or len(chosen) <= most)
    limit = len(sizes) if most is None else min(most, len(sizes))
    sums = [sum(c) for n in range(limit + 1) for c in combinations(sizes, n) if sum(c) <= room]
    assert sum(sizes[index] for index in chosen) == max(sums)


def run(packer, lengths):
    """All packs, and how many arrivals each sequence waited."""
    packs, waits = [], {}
    for arrival, length in enumerate(lengths):
        for pack in packer.push(arrival, length):
            packs.append(pack)
            waits.update((sequence, arrival - sequence) for sequence in pack)
    return packs + packer.flush(), waits


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 32), max_size=120),
    buffer_size=st.integers(1, 12),
    method=st.sampled_from(["fill", "rolling", "auto"]),
    most=st.sampled_from([None, 1, 3]),
    multiple_of=st.sampled_from([1, 4]),
)
def test_every_sequence_leaves_once_and_in_time(lengths, buffer_size, method, most, multiple_of):
    packer = StreamPacker(32, buffer_size=buffer_size, method=method, max_sequences=most, multiple_of=multiple_of)
    packs, waits = run(packer, lengths)
    assert sorted(sequence for pack in packs for sequence in pack) == list(range(len(lengths)))
    assert all(sum(-(-lengths[s] // multiple_of) * multiple_of for s in pack) <= 32 for pack in packs)
    assert most is None or all(len(pack) <= most for pack in packs)
    assert max(waits.values(), default=0) <= 2 * buffer_size
    assert len(packer) == 0


@pytest.mark.parametrize("method", ["fill", "rolling"])
def test_a_sequence_that_never_fits_well_does_not_wait_longer_than_two_buffers(method):
    # One long sequence among short ones that always fill packs better without it, and many long before many short.
    lengths = [60] * 20 + [7] + [50, 14] * 400 + [33] * 30 + [1] * 900
    _, waits = run(StreamPacker(64, buffer_size=16, method=method), lengths)
    assert len(waits) > 500
    assert max(waits.values()) <= 32


def test_fill_takes_the_oldest_with_every_pack():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 100, 500).tolist()
    packer = StreamPacker(256, buffer_size=32, method="fill")
    waiting, checked = [], 0
    for sequence, length in enumerate(lengths):
        waiting.append(sequence)
        for pack in packer.push(sequence, length):
            assert pack[0] == waiting[0]
            waiting = [s for s in waiting if s not in pack]
            checked += 1
    assert checked > 50


@pytest.mark.parametrize("method", ["fill", "rolling", "auto"])
def test_resuming_anywhere_gives_the_same_packs(method, monkeypatch):
    monkeypatch.setattr(stream_module, "SAMPLE", 150)
    lengths = np.random.default_rng(1).integers(1, 100, 400).tolist()

    def packer():
        return StreamPacker(128, buffer_size=20, method=method, max_sequences=6)

    expected, _ = run(packer(), lengths)
    checked = 0
    for stop in random.Random(0).sample(range(len(lengths)), 25):
        first, second = packer(), packer()
        packs = [pack for s in range(stop) for pack in first.push(s, lengths[s])]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        packs += [pack for s in range(stop, len(lengths)) for pack in second.push(s, lengths[s])]
        assert packs + second.flush() == expected
        checked += 1
    assert checked == 25


def test_auto_takes_the_better_method_once_it_has_seen_enough(monkeypatch):
    monkeypatch.setattr(stream_module, "SAMPLE", 200)
    rng = np.random.default_rng(2)
    pairs = rng.integers(30, 90, 400).tolist()  # one or two to a pack
    packer = StreamPacker(100, buffer_size=50)
    for sequence, length in enumerate(pairs):
        packer.push(sequence, length)
        if sequence == 198:
            assert packer.method == "auto"
    assert packer.method == better_method(pairs[:200], 100, 50) == "rolling"
    assert better_method(rng.integers(1, 15, 400).tolist(), 100, 50) == "fill"


@pytest.mark.parametrize(
    ("name", "length", "least"),
    [
        ("gsm8k_train", 2048, 0.999),
        ("gsm8k_train", 512, 0.995),
        ("orcamathlike_100k", 2048, 0.999),
        ("flanlike_100k", 2048, 0.999),
        ("pycode_files", 2048, 0.998),
    ],
)
def test_fill_on_real_lengths(name, length, least, load_lengths):
    lengths = np.minimum(load_lengths(name), length)[:20_000]
    assert plan_packs(lengths, length, strategy="stream").fill >= least


def test_better_than_packing_a_thousand_rows_at_a_time(load_lengths):
    checked = 0
    for name, length in (("gsm8k_train", 1024), ("mf_math", 2048), ("c4_demo", 2048), ("squad11_bert384_hist", 384)):
        values = load_lengths(name)
        if name.endswith("_hist"):
            values = np.random.default_rng(0).choice(np.arange(1, 385), 10_000, p=values / values.sum())
        lengths = np.minimum(values, length)
        batches = sum(plan_packs(lengths[i : i + 1000], length).num_packs for i in range(0, lengths.size, 1000))
        plan = plan_packs(lengths, length, strategy="stream")
        assert plan.num_packs < batches or plan.gap == 0
        checked += 1
    assert checked == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer_size": 0}, "buffer_size=0"),
        ({"method": "best"}, "method='best' is not known; choose one of auto, fill, rolling"),
        ({"multiple_of": 3}, "multiple_of=3 does not divide max_length=8"),
        ({"max_sequences": 0}, "max_sequences=0"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(PackingError, match=message):
        StreamPacker(8, **options)


@pytest.mark.parametrize("length", [0, 9])
def test_a_length_that_cannot_be_packed_is_named(length):
    with pytest.raises(PackingError, match=f"Sequence 5 has {length} tokens; .* 1 to max_length=8"):
        StreamPacker(8).push(5, length)


def test_a_state_of_other_settings_is_refused():
    state = StreamPacker(8).state_dict()
    with pytest.raises(PackingError, match=r"The state comes from a packer with .*'max_length': 8"):
        StreamPacker(16).load_state_dict(state)
    with pytest.raises(PackingError, match="version 9"):
        StreamPacker(8).load_state_dict({**state, "version": 9})
