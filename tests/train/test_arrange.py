"""From a dataset to what the loaders read."""

from __future__ import annotations

import pytest
from datasets import Dataset

from hf_packing import PackedDataset, PackedStream, pack_dataset
from hf_packing.data import plan_dataset
from hf_packing.errors import PackingError
from hf_packing.train.arrange import arrange
from hf_packing.train.config import PackingSettings, PackingTrainingArguments
from hf_packing.train.ranks import Ranks
from tests.train import tiny


ONE = Ranks(count=1, rank=0, copies=1)


def arranged(dataset, packing=True, layout="flat", ranks=ONE, **given):
    names = ("ready_rows", "shifts")
    options = {name: given.pop(name) for name in names if name in given}
    settings = {"max_length": 16, "packing": packing, **given}
    args = PackingTrainingArguments("out", use_cpu=True, report_to="none", **settings)
    return arrange(
        dataset, PackingSettings.from_args(args), packing=packing, layout=layout, name="train", ranks=ranks, **options
    )


ROWS = Dataset.from_list(tiny.words(10, 6, 9, 7))


def test_packs_are_planned_and_lazy():
    found = arranged(ROWS)
    assert isinstance(found.dataset, PackedDataset) and found.packed and found.padding_free
    assert len(found.dataset) == 2 and found.longest == 10
    assert found.messages == ("train: 4 sequences -> 2 packs of 16 (fill 100.00%, proven bound 2); nothing cut",)


@pytest.mark.parametrize("layout, padding_free", [("padded", False), ("group", True)])
def test_one_sequence_a_row(layout, padding_free):
    """`group` is for models that cannot be packed: whatever the settings say, a row is a sequence."""
    found = arranged(ROWS, packing=False, layout=layout, padding_free=padding_free)
    assert not found.packed and not found.padding_free
    assert [row["seq_lengths"].tolist() for row in found.dataset[0:4]] == [[10], [6], [9], [7]]
    assert found.messages == ("train: 4 sequences, one a row; nothing cut",)


def test_flattened_without_packing():
    found = arranged(ROWS, packing=False, padding_free=True)
    assert found.padding_free and not found.packed and len(found.dataset) == 4


@pytest.mark.parametrize("make", [lambda: pack_dataset(ROWS, 16), lambda: PackedDataset(ROWS, plan_dataset(ROWS, 16))])
def test_packs_are_used_as_they_are(make):
    found = arranged(make())
    assert found.packed and len(found.dataset) == 2
    offsets = found.lengths.pack_offsets
    assert offsets.tolist() == [0, 2, 4] and found.lengths.lengths.sum() == 32
    for layout, message in (("group", "this model cannot train on packs"), ("padded", "but packing=False")):
        with pytest.raises(PackingError, match=message):
            arranged(make(), layout=layout)


def test_streams():
    found = arranged(ROWS.to_iterable_dataset())
    assert found.is_stream and isinstance(found.dataset, PackedStream) and found.packed
    alone = arranged(ROWS.to_iterable_dataset(), packing=False)
    assert [row["seq_lengths"].tolist() for row in alone.dataset] == [[10], [6], [9], [7]]
    given = PackedStream(ROWS, 16)
    assert arranged(given).dataset is given
    with pytest.raises(PackingError, match="but packing=False"):
        arranged(given, layout="padded")
    plain = arranged(iter(ROWS.to_list()))
    assert sum(len(row["input_ids"]) for row in plain.dataset) == 32


def test_streams_are_shared_between_ranks():
    seen = []
    for rank in range(2):
        share = arranged(ROWS.to_iterable_dataset(), ranks=Ranks(count=2, rank=rank, copies=1)).dataset
        seen += [length for row in share for length in row["seq_lengths"]]
    assert sorted(seen) == [6, 7, 9, 10]


def test_every_target_of_a_masked_language_model_is_kept():
    found = arranged(ROWS, packing=False, layout="padded", shifts=False)
    assert found.dataset is ROWS and found.lengths.tolist() == [10, 6, 9, 7]
    stream = arranged(ROWS.to_iterable_dataset(), packing=False, layout="padded", shifts=False)
    assert next(iter(stream.dataset))["labels"] == ROWS[0]["labels"]


def test_a_little_loss_is_warned_of(caplog):
    arranged(Dataset.from_list(tiny.words(17, 16, 16)))
    assert "2.0 % of the tokens of the train dataset are lost at max_length=16" in caplog.text
    caplog.clear()
    arranged(Dataset.from_list(tiny.words(16, 16)))
    assert "lost" not in caplog.text


def test_what_was_cut_is_told():
    found = arranged(Dataset.from_list(tiny.words(20, 6)))
    assert found.messages[0].endswith("4 tokens cut from 1 sequences, 0 split, 0 dropped")
    split = arranged(Dataset.from_list(tiny.words(20, 6)), overflow="split")
    assert split.messages[0].endswith("0 tokens cut from 0 sequences, 1 split, 0 dropped")


def test_the_same_settings_give_the_same_plan():
    rows = Dataset.from_list(tiny.words(*[5, 3, 2] * 20))
    first, again, other = arranged(rows), arranged(rows), arranged(rows, seed=7)
    assert first.plan.fingerprint == again.plan.fingerprint != other.plan.fingerprint
