"""Loaders: every sequence once, the same number of batches for every rank, streams pass by pass."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.train.loaders import InOrderBatchSampler, StreamBatches
from hf_packing.train.share import EveryNth
from tests.equivalence import trajectory
from tests.train import tiny


@given(size=st.integers(0, 40), batch=st.integers(1, 6), ranks=st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_evaluation_deals_every_row_once(size, batch, ranks):
    dealt = [list(InOrderBatchSampler(size, batch, num_replicas=ranks, rank=rank)) for rank in range(ranks)]
    assert len({len(batches) for batches in dealt}) == 1
    in_turn = [row for round_ in zip(*dealt) for rows in round_ for row in rows]
    assert in_turn == list(range(size))
    assert all(len(batches) == len(InOrderBatchSampler(size, batch, num_replicas=ranks)) for batches in dealt)


class Rows:
    """A stream of numbers that can be resumed."""

    def __init__(self, count):
        self.count, self.taken, self.epochs, self.start = count, 0, [], 0

    def __iter__(self):
        start, self.start = self.start, 0
        for number in range(start, self.count):
            self.taken = number + 1
            yield number

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.start = state["taken"]


def take(batches, count):
    return [next(batches) for _ in range(count)]


def test_a_stream_waits_at_the_end_of_a_pass():
    stream = StreamBatches(Rows(5), 2)
    batches = iter(stream)
    assert take(batches, 5) == [[0, 1], [2, 3], [4], [], []]
    stream.next_pass()
    assert take(batches, 3) == [[0, 1], [2, 3], [4]]
    assert stream.stream.epochs == [0, 1]


@pytest.mark.parametrize("drawn", range(1, 5))
def test_a_stream_goes_on_where_it_was_saved(drawn):
    whole = iter(StreamBatches(Rows(5), 2))
    expected = take(whole, 5)[drawn:]
    stopped = StreamBatches(Rows(5), 2)
    take(iter(stopped), drawn)
    resumed = StreamBatches(Rows(5), 2)
    resumed.load_state_dict(stopped.state_dict(), skipped_by_trainer=drawn)
    found = take(iter(resumed), 5)
    assert found[:drawn] == [[]] * drawn  # what Trainer drops when it fast-forwards
    assert found[drawn:] == expected


def test_shares_of_rows_that_cannot_be_split():
    shares = [list(EveryNth(Rows(7), rank, 3)) for rank in range(3)]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]


@pytest.mark.parametrize("workers", [0, 1])
def test_each_epoch_has_other_neighbours_and_every_sequence(tmp_path, workers):
    rows = tiny.words(*[5, 3] * 8)
    trainer = tiny.make(
        "plain",
        tmp_path,
        rows,
        max_length=8,
        dataloader_num_workers=workers,
        dataloader_persistent_workers=bool(workers),
    )
    loader = trainer.get_train_dataloader()
    epochs = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        epochs.append([batch["packing_facts"][:, 2].tolist() for batch in loader])
    assert all(sorted(n for pack in packs for n in pack) == list(range(16)) for packs in epochs)
    assert {frozenset(pack) for pack in epochs[0]} != {frozenset(pack) for pack in epochs[1]}


def test_neighbours_stay_when_that_is_wanted(tmp_path):
    trainer = tiny.make("plain", tmp_path, tiny.words(*[5, 3] * 8), max_length=8, repack_each_epoch=False)
    loader = trainer.get_train_dataloader()
    packs = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        packs.append({frozenset(batch["packing_facts"][:, 2].tolist()) for batch in loader})
    assert packs[0] == packs[1]


def test_batches_stay_on_the_cpu_and_keep_to_the_token_budget(tmp_path):
    trainer = tiny.make("plain", tmp_path, packing=False, padding_free=True, max_tokens_per_batch=40)
    sizes = [batch["input_ids"].numel() for batch in trainer.get_train_dataloader()]
    assert sum(sizes) == sum(trajectory.LENGTHS) and max(sizes) <= 40 and len(sizes) < len(trajectory.LENGTHS)


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("packing", [True, False])
def test_the_order_of_the_dataset_on_request(tmp_path, kind, packing):
    rows = tiny.words(10, 9, 8, 7)
    made = tiny.make(
        kind, tmp_path, rows, max_length=10, packing=packing, train_sampling_strategy="sequential", learning_rate=0.0
    )
    made.train()
    alone = [tiny.nll(trajectory.build(), [row])[0] / trajectory.targets(row) for row in rows]
    order = [0, 1, 2, 3] if not packing else made.train_dataset.plan.sequence_ids.tolist()
    assert tiny.logs(made, "loss") == pytest.approx([alone[number] for number in order], rel=1e-6)


def test_grouping_by_length_says_that_it_does_nothing_for_packs(tmp_path, caplog):
    trainer = tiny.make("plain", tmp_path, train_sampling_strategy="group_by_length")
    trainer.get_train_dataloader()
    assert "has no effect on packs" in caplog.text
