"""PackedStream: exact resumption for every kind of upstream, bounded memory, and no row lost."""

import json
import logging

import numpy as np
import pytest
from datasets import Dataset, IterableDataset, interleave_datasets
from torch.utils.data import DataLoader

from hf_packing.data import PackedStream, PaddingFreeCollator
from hf_packing.data.upstream import resumes_exactly
from hf_packing.errors import PackingError
from tests.data.plain_packing import check_rows


def make_rows(count=150, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        ids = rng.integers(3, 99, rng.integers(1, 40)).tolist()
        rows.append({"input_ids": ids, "weights": [0.5] * len(ids), "text": f"row {number}"})
    return rows


ROWS = make_rows()


def arrow_mapped(table):
    return table


def longer(row):
    return {"input_ids": [*row["input_ids"], 1], "weights": [*row["weights"], 1.0]}


def longer_batch(batch):
    return {"input_ids": [[*ids, 1] for ids in batch["input_ids"]], "weights": [[*w, 1.0] for w in batch["weights"]]}


def is_long(row):
    return len(row["input_ids"]) > 3


def hf_stream(shards=3):
    return Dataset.from_list(ROWS).to_iterable_dataset(num_shards=shards)


UPSTREAMS = {
    "list": lambda: ROWS,
    "generator": lambda: iter(ROWS),
    "datasets": hf_stream,
    "shuffle buffer": lambda: hf_stream().shuffle(seed=3, buffer_size=40),
    "map and filter": lambda: hf_stream().map(longer).filter(is_long),
    "arrow map": lambda: hf_stream().with_format("arrow").map(arrow_mapped, batched=True, batch_size=7),
    "interleaved": lambda: interleave_datasets([hf_stream(1), hf_stream(2)]),
    "interleaved at random": lambda: interleave_datasets([hf_stream(1), hf_stream(2)], [0.3, 0.7], seed=1),
    "shuffled shards": lambda: hf_stream(5).shuffle(seed=1, buffer_size=1),
    "batched map": lambda: hf_stream().map(longer_batch, batched=True, batch_size=7),
    "skip and take": lambda: hf_stream(1).skip(10).take(120),
    "from a generator": lambda: IterableDataset.from_generator(make_rows),
}


def content(row):
    return {name: values.tolist() for name, values in row.items()}


def resumed(upstream, state, **settings):
    stream = PackedStream(upstream, 24, buffer_size=16, overflow="split", **settings)
    stream.load_state_dict(json.loads(json.dumps(state)))
    return stream


@pytest.mark.parametrize("kind", UPSTREAMS)
def test_it_resumes_exactly_at_any_row_and_again(kind):
    make = UPSTREAMS[kind]
    whole = [content(row) for row in PackedStream(make(), 24, buffer_size=16, overflow="split")]
    assert len(whole) > 80
    for stop in (0, 1, len(whole) // 2, len(whole) - 2, len(whole)):
        first = PackedStream(make(), 24, buffer_size=16, overflow="split")
        rows = iter(first)
        given = [content(next(rows)) for _ in range(stop)]
        second = resumed(make(), first.state_dict())
        assert second.state_dict() == first.state_dict()  # saved again before it went on
        rows = iter(second)
        given += [content(next(rows)) for _ in range(min(3, len(whole) - stop))]
        third = resumed(make(), second.state_dict())
        given += [content(row) for row in third]
        assert given == whole, stop
        if kind != "generator":
            assert [content(row) for row in third] == whole  # the next pass is a whole one


@pytest.mark.parametrize("overflow", ["split", "truncate", "truncate_left", "drop", "own_pack"])
def test_every_token_is_accounted_for(overflow):
    stream = PackedStream(ROWS, 24, buffer_size=16, overflow=overflow)
    rows = list(stream)
    checked = check_rows(rows, ROWS, overflow=overflow)
    ledger = stream.ledger
    assert ledger.tokens_in == sum(len(row["input_ids"]) for row in ROWS) and ledger.sequences_in == len(ROWS)
    assert checked == ledger.tokens_packed > 1000
    if overflow != "own_pack":
        assert max(row["input_ids"].size for row in rows) <= 24
    assert all(len(set(row["sequence_ids"].tolist())) == row["sequence_ids"].size for row in rows)
    assert ("sequence_targets" in rows[0]) == (overflow == "split")
    assert all(row["weights"].size == row["input_ids"].size for row in rows)


def test_the_ledger_balances_at_every_row():
    stream = PackedStream(ROWS, 24, buffer_size=16, overflow="split")
    for number, row in enumerate(stream, 1):
        assert stream.ledger.slots == 24 * number and row["input_ids"].size <= stream.ledger.tokens_packed


def test_special_tokens_masks_and_pads():
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(80):
        ids = rng.integers(1, 6, rng.integers(1, 14)).tolist()
        pads = int(rng.integers(0, 3))
        mask = rng.integers(0, 2, len(ids) + pads).tolist()
        rows.append(
            {"input_ids": ids + [0] * pads, "attention_mask": [1] * len(ids) + [0] * pads, "completion_mask": mask}
        )
    for overflow in ("truncate", "truncate_left", "split"):
        stream = PackedStream(
            rows, 9, overflow=overflow, ensure_bos=1, ensure_eos=2, eos_token_id=(2, 3), mask_eos_loss=True
        )
        packed = list(stream)
        special = {"bos": 1, "eos": 2, "eos_ids": (2, 3), "mask_eos_loss": True}
        assert check_rows(packed, rows, overflow=overflow, **special) == stream.ledger.tokens_packed > 200
        assert stream.ledger.tokens_dropped > 0


def test_losses_are_said_once_and_summed_up(caplog):
    list(PackedStream([{"input_ids": [1] * n} for n in (9, 3, 9)], 8, overflow="truncate"))
    messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 2
    assert "Row 0 of the stream loses 1 tokens" in messages[0] and "left out 2 of 21 tokens" in messages[1]


def test_each_epoch_of_a_shuffled_stream_is_another_one():
    stream = PackedStream(hf_stream().shuffle(seed=1, buffer_size=100), 64)
    passes = []
    for epoch in (0, 0, 1):
        stream.set_epoch(epoch)
        passes.append([content(row) for row in stream])
    assert passes[0] == passes[1] != passes[2]


def test_a_state_remembers_its_epoch():
    stream = PackedStream(hf_stream().shuffle(seed=1, buffer_size=100), 24, overflow="split", buffer_size=16)
    stream.set_epoch(2)
    rows = iter(stream)
    next(rows)
    state = stream.state_dict()
    rest = [content(row) for row in rows]
    assert [content(row) for row in resumed(hf_stream().shuffle(seed=1, buffer_size=100), state)] == rest


@pytest.mark.parametrize("upstream", ["list", "datasets"])
def test_loader_workers_share_the_rows(upstream):
    loader = DataLoader(
        PackedStream(UPSTREAMS[upstream](), 64, buffer_size=8),
        batch_size=2,
        collate_fn=PaddingFreeCollator(),
        num_workers=2,
    )
    for _ in range(2):
        tokens = sorted(token for batch in loader for token in batch["input_ids"].flatten().tolist())
        whole = [row["input_ids"] for row in ROWS if len(row["input_ids"]) > 1]
        assert tokens == sorted(token for ids in whole for token in ids)


def test_ranks_share_the_rows_and_resume():
    seen = []
    for rank in range(3):
        whole = [content(row) for row in PackedStream(ROWS, 64, buffer_size=8, share=(rank, 3))]
        seen += [number for row in whole for number in row["sequence_ids"]]
        assert all(number % 3 == rank for row in whole for number in row["sequence_ids"])
        first = PackedStream(ROWS, 64, buffer_size=8, share=(rank, 3))
        given = [content(row) for row, _ in zip(first, range(4))]
        second = PackedStream(ROWS, 64, buffer_size=8, share=(rank, 3))
        second.load_state_dict(first.state_dict())
        assert given + [content(row) for row in second] == whole[:4] + whole[5:]  # zip drew one more than it gave
    assert sorted(seen) == [number for number, row in enumerate(ROWS) if len(row["input_ids"]) > 1]
    with pytest.raises(PackingError, match=r"share=\(3, 3\)"):
        PackedStream(ROWS, 64, share=(3, 3))


def test_a_column_that_stops_fitting_is_left_out_and_said(caplog):
    rows = [{"input_ids": [1, 2], "tags": [5, 6]}, {"input_ids": [1, 2, 3], "tags": [5, 6]}]
    packed = list(PackedStream(rows, 8))
    assert "tags" not in packed[0] and "Row 1 of the stream has no tags" in caplog.text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": [1] * 9}, "Row 1 of the stream has 9 tokens, above max_length=8"),
        ({"input_ids": None}, "'input_ids', row 1 of the stream is null"),
        ({"input_ids": ["a"]}, "row 1 of the stream holds"),
        ({"input_ids": [1, 2], "labels": [1]}, "'labels', row 1 of the stream has 1 entries"),
        ({"input_ids": [1, 2], "seq_lengths": [1, 1]}, "Row 1 of the stream is packed already"),
        ({"input_ids": [1, 2], "position_ids": [0, 0]}, "Row 1 of the stream holds 2 sequences"),
        ({"text": "a"}, "Row 1 of the stream has no 'input_ids'"),
    ],
)
def test_bad_rows_are_named(row, message):
    with pytest.raises(PackingError, match=message):
        list(PackedStream([{"input_ids": [1, 2]}, row], 8))


def test_states_of_other_streams_are_refused():
    stream = PackedStream(ROWS, 64)
    with pytest.raises(PackingError, match="state has version None"):
        stream.load_state_dict({})
    with pytest.raises(PackingError, match="same settings"):
        stream.load_state_dict(PackedStream(ROWS, 32).state_dict())
    shorter = PackedStream(ROWS[:2], 64, buffer_size=4)
    whole = PackedStream(ROWS, 64, buffer_size=4)
    next(iter(whole))
    shorter.load_state_dict(whole.state_dict())
    with pytest.raises(PackingError, match="ended after 2 rows, the saved place is behind row"):
        list(shorter)


def test_which_streams_resume_in_place_follows_the_installed_datasets():
    """The steps of a stream have no public names: a renamed step must fail here, not lose rows at a resume."""
    exact = {kind for kind, make in UPSTREAMS.items() if resumes_exactly(make())}
    assert exact == set(UPSTREAMS) - {"list", "generator", "shuffle buffer", "shuffled shards", "arrow map"}
