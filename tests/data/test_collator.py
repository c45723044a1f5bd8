"""The collator against a checker of plain loops, and every option by a worked example."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.data import FACTS_KEY, PackedBatch, PaddingFreeCollator, unpack
from hf_packing.errors import PackingError


sequences = st.lists(st.integers(1, 99), min_size=1, max_size=9)
packs = st.lists(st.lists(sequences, min_size=1, max_size=4), min_size=1, max_size=4)
forms = st.sampled_from(("list", "numpy", "tensor", "tensor_2d"))


def in_form(values, form):
    if form == "list":
        return list(values)
    array = np.array(values, dtype=np.int32)
    if form == "numpy":
        return array
    return torch.from_numpy(array)[None] if form == "tensor_2d" else torch.from_numpy(array)


def rows_of(packed, form, labelled, packed_rows):
    """Rows that hold the sequences, and the same sequences with their labels, token by token."""
    rows, expected = [], []
    for pack in packed:
        groups = [pack] if packed_rows else [[sequence] for sequence in pack]
        for group in groups:
            ids = [token for sequence in group for token in sequence]
            labels = [-100 if token % 3 == 0 else token for token in ids]
            row = {"input_ids": in_form(ids, form), "source": "somewhere"}
            if labelled:
                row["labels"] = in_form(labels, form)
            if packed_rows:
                row["seq_lengths"] = [len(sequence) for sequence in group]
            rows.append(row)
            expected.append([list(sequence) for sequence in group])
    return rows, expected


def expected_slots(rows_expected, layout, multiple_of, pad_to, labelled, start):
    """Slot by slot: (id, label, position) in each row of the batch; pads and filler are id 0 and label -100."""
    lines = []
    for group in rows_expected:
        line = []
        for sequence in group:
            slots = -(-len(sequence) // multiple_of) * multiple_of
            for place in range(slots):
                real = place < len(sequence)
                token = sequence[place] if real else 0
                target = real and place > 0 and not (labelled and token % 3 == 0)
                line.append((token, token if target else -100, start + place))
        lines.append(line)
    if layout == "flat":
        lines = [[slot for line in lines for slot in line]]
    width = max(len(line) for line in lines)
    width = -(-width // pad_to) * pad_to
    return [line + [(0, -100, start + place) for place in range(width - len(line))] for line in lines]


@settings(max_examples=150, deadline=None)
@given(
    packed=packs,
    form=forms,
    labelled=st.booleans(),
    packed_rows=st.booleans(),
    layout=st.sampled_from(("flat", "rows")),
    multiple_of=st.sampled_from((1, 2, 4)),
    pad_to=st.sampled_from((1, 8, 64)),
    start=st.sampled_from((0, 2)),
)
def test_every_slot_is_what_plain_loops_say(packed, form, labelled, packed_rows, layout, multiple_of, pad_to, start):
    rows, expected = rows_of(packed, form, labelled, packed_rows)
    collate = PaddingFreeCollator(
        boundaries="explicit",
        layout=layout,
        multiple_of=multiple_of,
        pad_to_multiple_of=pad_to,
        position_ids_start=start,
        facts=True,
    )
    batch = collate(rows)
    slots = expected_slots(expected, layout, multiple_of, pad_to, labelled, start)
    for at, name in enumerate(("input_ids", "labels", "position_ids")):
        assert batch[name].tolist() == [[slot[at] for slot in line] for line in slots], name
        assert batch[name].dtype == torch.int64
    flat = [(position, line) for line, slots_of in enumerate(slots) for _, _, position in slots_of]
    starts = [at for at, (position, _) in enumerate(flat) if position == start]
    offsets = batch["cu_seq_lens_q"]
    assert offsets.tolist() == [*starts, len(flat)] and offsets.dtype == torch.int32
    assert batch["cu_seq_lens_k"].tolist() == offsets.tolist()
    assert type(batch["max_length_q"]) is int and batch["max_length_q"] == int(offsets.diff().max())
    owner = [sum(at >= first for first in starts) - 1 for at in range(len(flat))]
    assert batch["seq_idx"].flatten().tolist() == owner and batch["seq_idx"].dtype == torch.int32
    alone = [sequence for group in expected for sequence in group]
    assert batch.num_sequences == len(alone)
    # Both ways to unpack: by the batch, and by what is left of it when it was rebuilt.
    for known in (batch, dict(batch)):
        assert [ids.tolist() for ids in unpack(batch["input_ids"], known)] == alone
    facts = batch[FACTS_KEY]
    assert facts[facts[:, 0] > 0, 0].tolist() == [len(sequence) for sequence in alone]
    assert (facts[:, 1] % multiple_of == 0)[facts[:, 0] > 0].all()


def test_the_default_batch_has_exactly_three_keys():
    batch = PaddingFreeCollator()([{"input_ids": [1, 2], "text": "x", "attention_mask": [1, 1]}])
    assert list(batch) == ["input_ids", "position_ids", "labels"]
    assert all(value.shape == (1, 2) for value in batch.values())


def test_token_columns_are_flattened_along_and_others_are_ignored():
    rows = [
        {"input_ids": [1, 2], "token_type_ids": [0, 1], "weights": [0.5, 1.0], "tags": ["a", "b"], "id": 7},
        {"input_ids": [3], "token_type_ids": [1], "weights": [2.0], "tags": ["c"], "id": 8, "extra": [1]},
    ]
    batch = PaddingFreeCollator(pad_to_multiple_of=4)(rows)
    assert set(batch) == {"input_ids", "position_ids", "labels", "token_type_ids", "weights"}
    assert batch["token_type_ids"].tolist() == [[0, 1, 1, 0]]
    assert batch["weights"].tolist() == [[0.5, 1.0, 2.0, 0.0]] and batch["weights"].dtype.is_floating_point


def test_a_column_may_have_further_dimensions():
    rows = [{"input_ids": [1, 2], "scores": np.ones((2, 3))}, {"input_ids": [3], "scores": np.zeros((1, 3))}]
    assert PaddingFreeCollator()(rows)["scores"].shape == (1, 3, 3)
    rows[1]["scores"] = np.zeros((1, 4))
    with pytest.raises(PackingError, match="'scores' has entries of different shapes"):
        PaddingFreeCollator()(rows)


def test_plain_and_packed_rows_mix():
    rows = [
        {"input_ids": np.array([1, 2, 3]), "labels": np.array([1, 2, 3]), "seq_lengths": np.array([2, 1])},
        {"input_ids": [4, 5], "labels": torch.tensor([4, 5])},
    ]
    batch = PaddingFreeCollator()(rows)
    assert batch["labels"].tolist() == [[-100, 2, -100, -100, 5]]


def test_masks_become_labels_and_both_must_allow():
    row = {"input_ids": [1, 2, 3, 4], "completion_mask": [1, 1, 1, 0], "assistant_masks": [1, 1, 0, 1]}
    assert PaddingFreeCollator()([row])["labels"].tolist() == [[-100, 2, -100, -100]]
    row["labels"] = [1, -100, 3, 4]
    assert PaddingFreeCollator()([row])["labels"].tolist() == [[-100, -100, -100, -100]]


def test_eos_keeps_its_label_also_when_it_is_the_pad():
    batch = PaddingFreeCollator(pad_token_id=2, pad_to_multiple_of=4)([{"input_ids": [5, 6, 2]}])
    assert batch["labels"].tolist() == [[-100, 6, 2, -100]]


def test_fixed_shapes():
    collate = PaddingFreeCollator(boundaries="explicit", max_sequences=5, pad_to_multiple_of=8)
    batch = collate([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}])
    assert batch["cu_seq_lens_q"].tolist() == [0, 3, 5, 8, 8, 8]
    assert batch["max_length_q"] == 8
    with pytest.raises(PackingError, match="5 sequences and 1 segments of pads does not fit max_sequences=5"):
        collate([{"input_ids": [1]}] * 5)


def test_shapes_do_not_change_with_the_content():
    """A compiled function sees one shape for many batches: guards on shapes and constants would recompile."""
    collate = PaddingFreeCollator(boundaries="explicit", max_sequences=12, pad_to_multiple_of=128)
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(12):
        lengths = rng.multinomial(96, np.ones(rng.integers(3, 10)) / 9) + 1
        batch = collate([{"input_ids": [1] * int(length)} for length in lengths])
        seen.add(tuple((k, v.shape if isinstance(v, torch.Tensor) else v) for k, v in sorted(batch.items())))
    assert len(seen) == 1


def test_every_batch_is_made_of_fresh_tensors():
    rows = [{"input_ids": np.arange(1, 5), "labels": np.arange(1, 5), "seq_lengths": np.array([4])}]
    for given_rows in (rows, [{"input_ids": np.arange(1, 5)}], [{"input_ids": torch.arange(1, 5)}]):
        collate = PaddingFreeCollator(boundaries="explicit")
        first, second = collate(given_rows), collate(given_rows)
        tensors = [value for batch in (first, second) for value in batch.values() if isinstance(value, torch.Tensor)]
        assert len({tensor.data_ptr() for tensor in tensors}) == len(tensors) == 12
        for tensor in tensors:
            tensor.fill_(7)
        assert np.asarray(given_rows[0]["input_ids"]).tolist() == [1, 2, 3, 4]


def test_the_collator_and_its_batches_travel_between_processes():
    collate = pickle.loads(pickle.dumps(PaddingFreeCollator(multiple_of=4)))
    batch = pickle.loads(pickle.dumps(collate([{"input_ids": [1, 2, 3]}])))
    assert isinstance(batch, PackedBatch) and batch.num_sequences == 1
    assert unpack(batch["labels"], batch)[0].tolist() == [-100, 2, 3]


def test_facts_carry_provenance_and_the_targets_of_split_sequences():
    rows = [
        {"input_ids": [1, 2, 3, 4, 5], "seq_lengths": [3, 2], "sequence_ids": [41, 7], "sequence_targets": [9, -1]},
        {"input_ids": [6, 7]},
    ]
    batch = PaddingFreeCollator(facts=True, multiple_of=2)(rows)
    assert batch[FACTS_KEY].tolist() == [[3, 4, 41, 9], [2, 2, 7, -1], [2, 2, -1, -1]]


def test_the_pads_of_stacked_rows_are_known_from_the_facts_alone():
    rows = [{"input_ids": [1, 2], "seq_lengths": [1, 1]}, {"input_ids": [3, 4, 5, 6], "seq_lengths": [2, 2]}]
    batch = PaddingFreeCollator(layout="rows", facts=True)(rows)
    assert batch[FACTS_KEY][:, :2].tolist() == [[1, 1], [1, 1], [0, 2], [2, 2], [2, 2]]
    assert [ids.tolist() for ids in unpack(batch["input_ids"], dict(batch))] == [[1], [2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "No rows to collate"),
        ([{"input_ids": []}], "All 1 rows of the batch are empty"),
        ([{"ids": [1]}], "Row 0 of the batch has no 'input_ids'"),
        ([{"input_ids": None}], "'input_ids', row 0 of the batch is null"),
        ([{"input_ids": ["a", "b"]}], "holds <U1 values such as .*'a'"),
        ([{"input_ids": [1.5]}], "holds float64 values"),
        ([{"input_ids": [[1, 2], [3, 4]]}], r"shape \(2, 2\)"),
        ([{"input_ids": [1, 2], "labels": [1]}], "'labels', row 0 of the batch has 1 entries, its 'input_ids' has 2"),
        ([{"input_ids": [1, 2], "labels": 3}], "'labels', row 0 of the batch has shape"),
        ([{"input_ids": [1, 2], "attention_mask": [1]}], "'attention_mask', row 0 of the batch has 1 entries"),
        ([{"input_ids": [1], "labels": [1]}, {"input_ids": [2]}], "Row 1 of the batch .* has no labels, row 0 has"),
        ([{"input_ids": [1, 2], "seq_lengths": [1]}], "adds up to 1 tokens, its 'input_ids' has 2"),
        ([{"input_ids": [1, 2], "seq_lengths": [3, -1]}], "'seq_lengths', row 0 of the batch holds -1"),
        ([{"input_ids": [1, 2], "position_ids": [[0, 1], [0, 1], [0, 1]]}], r"'position_ids'.* shape \(3, 2\)"),
    ],
)
def test_bad_rows_are_named(rows, message):
    with pytest.raises(PackingError, match=message):
        PaddingFreeCollator()(rows)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"boundaries": "auto"}, "boundaries='auto' is unknown"),
        ({"layout": "padded"}, "layout='padded' is unknown"),
        ({"multiple_of": 0}, "multiple_of=0 must be at least 1"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of=0"),
    ],
)
def test_bad_settings_are_named(settings_, message):
    with pytest.raises(PackingError, match=message):
        PaddingFreeCollator(**settings_)


def test_ids_outside_the_vocabulary_are_found_when_asked():
    with pytest.raises(PackingError, match=r"holds 9 at slot 1 of the batch .* 0 … 8"):
        PaddingFreeCollator(vocab_size=9)([{"input_ids": [8, 9]}])
    assert PaddingFreeCollator(vocab_size=10)([{"input_ids": [8, 9]}])


def test_malformed_packed_arrays_do_not_slip_through_the_fast_path():
    good = {"input_ids": np.arange(4), "labels": np.arange(4), "seq_lengths": np.array([2, 2])}
    for change, message in (
        ({"labels": np.arange(3)}, "'labels', row 1"),
        ({"seq_lengths": np.array([2, 3])}, "adds up to 5"),
        ({"input_ids": np.ones(4)}, "float64"),
    ):
        with pytest.raises(PackingError, match=message):
            PaddingFreeCollator()([good, {**good, **change}])
    empty = {"input_ids": np.arange(4), "labels": np.arange(4), "seq_lengths": np.array([2, 0, 2])}
    assert PaddingFreeCollator()([good, empty]).num_sequences == 4
