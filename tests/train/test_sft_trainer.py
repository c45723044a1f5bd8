"""PackingSFTTrainer takes what SFTTrainer takes, and trains on the same tokens and labels."""

from __future__ import annotations

import pytest
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from hf_packing import PackedDataset, PackedStream, PackingSFTConfig, PackingSFTTrainer, pack_dataset
from hf_packing.data import plan_dataset
from hf_packing.errors import PackingError
from tests.equivalence import trajectory
from tests.train import talk, tiny


CASES = {
    "text": {},
    "prompt, completion": {},
    "prompt, completion on everything": {"completion_only_loss": False},
    "messages": {},
    "messages, assistant only": {"assistant_only_loss": True},
    "several turns": {"max_length": 48},
    "several turns, assistant only": {"assistant_only_loss": True, "max_length": 48},
    "conversational prompt, completion": {},
    "conversational prompt, completion on everything": {"completion_only_loss": False},
    "conversational prompt, completion, assistant only": {"assistant_only_loss": True},
    "conversations": {},
    "another text field": {"dataset_text_field": "story"},
    "to be formatted": {"formatting_func": lambda row: f"{row['q']} : {row['a']}"},
    "text, cut at the end": {"max_length": 5},
    "text, cut at the start": {"max_length": 5, "truncation_mode": "keep_end"},
}


def build(cls, config, out, rows, stream=False, **given):
    formatting = {"formatting_func": given.pop("formatting_func")} if "formatting_func" in given else {}
    settings = {"max_length": 24, "per_device_train_batch_size": 1, "max_steps": 1, **given}
    data = Dataset.from_list(rows)
    return cls(
        talk.model(),
        config(**trajectory.settings(str(out), **settings)),
        train_dataset=data.to_iterable_dataset() if stream else data,
        processing_class=talk.tokenizer(),
        **formatting,
    )


def rows_of(name):
    """The rows of the format that a case's name begins with; the longest name wins."""
    return talk.FORMATS[max((known for known in talk.FORMATS if name.startswith(known)), key=len)]


def sequences(dataset):
    """(tokens, labels behind the first) of every sequence, sorted; the first token is no target anywhere."""
    found = []
    for row in dataset:
        ids, labels = list(row["input_ids"]), list(row["labels"])
        lengths = row["seq_lengths"] if "seq_lengths" in row else [len(ids)]
        for length in lengths:
            piece, ids = ids[:length], ids[length:]
            marks, labels = labels[:length], labels[length:]
            found.append(([int(x) for x in piece], [int(x) for x in marks[1:]]))
    return sorted(found)


@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_tokens_and_labels_as_trl(tmp_path, case, stream):
    rows = rows_of(case)
    theirs = build(SFTTrainer, SFTConfig, tmp_path / "trl", rows, stream, **CASES[case])
    ours = build(PackingSFTTrainer, PackingSFTConfig, tmp_path, rows, stream, packing=True, **CASES[case])
    expected, found = sequences(theirs.train_dataset), sequences(ours.train_dataset)
    assert len(found) == len(rows)
    assert found == expected
    targets = sum(label != -100 for _, labels in found for label in labels)
    assert targets > 0
    assert any(len(row["seq_lengths"]) > 1 for row in ours.train_dataset) or "cut" in case


@pytest.mark.parametrize("case", ["text", "prompt, completion", "messages, assistant only"])
@pytest.mark.parametrize("flags", [{"packing": False}, {"packing": False, "padding_free": True}])
def test_without_packing_the_same_too(tmp_path, case, flags):
    theirs = build(SFTTrainer, SFTConfig, tmp_path / "trl", rows_of(case), **CASES[case])
    ours = build(PackingSFTTrainer, PackingSFTConfig, tmp_path, rows_of(case), **flags, **CASES[case])
    assert sequences(ours.train_dataset) == sequences(theirs.train_dataset)


@pytest.mark.parametrize("given, expected", [(None, 3), (True, 3), (False, 7)])
def test_tokenised_with_a_mask(tmp_path, given, expected):
    """A mask in tokenised data is meant: it is used unless completion_only_loss=False says otherwise."""
    rows = [{"input_ids": [6, 7, 8, 9], "completion_mask": [0, 0, 1, 1]}]
    rows += [{"input_ids": [6, 7, 8, 9, 10], "completion_mask": [1, 0, 0, 0, 1]}]
    trainer = build(PackingSFTTrainer, PackingSFTConfig, tmp_path, rows, packing=True, completion_only_loss=given)
    labels = [label for _, labels in sequences(trainer.train_dataset) for label in labels]
    assert sum(label != -100 for label in labels) == expected


def test_tokenised_with_labels_and_columns_of_its_own(tmp_path):
    """Unknown columns reach neither the model nor an error."""
    rows = [{"input_ids": [6, 7, 8], "labels": [6, -100, 8], "source": "x", "weights": [0.5, 0.5, 0.5]}] * 3
    trainer = build(PackingSFTTrainer, PackingSFTConfig, tmp_path, rows, packing=True)
    batch = next(iter(trainer.get_train_dataloader()))
    assert "weights" not in batch and "source" not in batch
    assert trainer.train().global_step == 1


@pytest.mark.parametrize("form", ["packed", "lazy", "stream of packs", "packed by trl"])
def test_what_is_packed_already_is_used_as_it_is(tmp_path, form):
    from trl import pack_dataset as trl_pack

    rows = Dataset.from_list(tiny.words(5, 9, 3, 7, 8, 2))
    forms = {
        "packed": lambda: pack_dataset(rows, max_length=16),
        "lazy": lambda: PackedDataset(rows, plan_dataset(rows, 16)),
        "stream of packs": lambda: PackedStream(rows, 16),
        "packed by trl": lambda: trl_pack(rows, 16, "bfd"),
    }
    trainer = tiny.make("sft", tmp_path, forms[form](), max_length=16, max_steps=3)
    trainer.train()
    assert tiny.logs(trainer, "num_sequences")[-1] == 6
    assert tiny.logs(trainer, "num_tokens")[-1] == 34


def test_a_dict_of_evaluation_sets_in_several_formats(tmp_path):
    data = {name: Dataset.from_list(talk.FORMATS[name]) for name in ("messages", "text", "prompt, completion")}
    trainer = PackingSFTTrainer(
        talk.model(),
        PackingSFTConfig(**trajectory.settings(str(tmp_path), max_length=24, packing=True)),
        train_dataset=data["text"],
        eval_dataset={"chat": data["messages"], "text": data["text"]},
        processing_class=talk.tokenizer(),
    )
    found = trainer.evaluate()
    assert found["eval_chat_loss"] > 0 and found["eval_text_loss"] > 0
    # One that comes only now is tokenised too.
    assert trainer.evaluate(data["text"])["eval_loss"] == pytest.approx(found["eval_text_loss"], rel=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{"packing": True}, {"packing": True, "packing_strategy": "bfd_split"}, {"packing": True, "eval_packing": False}],
)
def test_a_plain_sft_config(tmp_path, settings):
    trainer = build(PackingSFTTrainer, SFTConfig, tmp_path, talk.FORMATS["text"], **settings)
    assert type(trainer.args) is SFTConfig
    assert isinstance(trainer.train_dataset, PackedDataset)
    assert trainer.train().global_step == 1
    # What TRL must not see while it prepares is put back.
    assert (trainer.args.packing, trainer.args.max_length) == (True, 24)


def test_wrapped(tmp_path):
    trainer = build(
        PackingSFTTrainer,
        SFTConfig,
        tmp_path,
        talk.FORMATS["text"],
        packing=True,
        packing_strategy="wrapped",
        max_length=8,
    )
    assert trainer.train_dataset.plan.strategy == "wrapped" and trainer.train_dataset.plan.fill > 0.8
    assert trainer.train().global_step == 1


def test_images_are_refused(tmp_path):
    """TRL refuses them for text models itself; a vision model passes its checks, so one is pretended after them."""

    class Vision(PackingSFTTrainer):
        @property
        def _is_vision_dataset(self):
            return hasattr(self, "router_aux_loss_coef")  # the last thing SFTTrainer sets up

        @_is_vision_dataset.setter
        def _is_vision_dataset(self, value):
            pass

    rows = Dataset.from_list(tiny.words(4, 5))
    with pytest.raises(PackingError, match=r"holds images.*three-axis positions.*packing=False"):
        tiny.make("sft", tmp_path, rows, cls=Vision)


def test_a_tokenised_stream_of_unknown_columns(tmp_path):
    from datasets import IterableDataset

    stream = IterableDataset.from_generator(
        lambda: iter([{"input_ids": [6, 7, 8, 9], "completion_mask": [0, 0, 1, 1]}])
    )
    assert stream.column_names is None
    trainer = build(PackingSFTTrainer, PackingSFTConfig, tmp_path, talk.FORMATS["text"], packing=True)
    prepared = trainer._prepare_dataset(stream, trainer.processing_class, trainer.args, True, None, "train")
    assert list(next(iter(prepared))) == ["input_ids", "completion_mask"]
