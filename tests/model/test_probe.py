"""The probe has the form that the collator gives batches."""

import pytest
import torch

from hf_packing.data.collator import PaddingFreeCollator
from hf_packing.errors import PackingError
from hf_packing.model.probe import Probe, probe_lengths


VOCABULARY = torch.arange(3, 90)


@pytest.mark.parametrize("boundaries", ["position_ids", "explicit"])
@pytest.mark.parametrize("layout", ["flat", "rows"])
@pytest.mark.parametrize("start", [0, 2])
def test_it_is_a_batch_of_the_collator(boundaries, layout, start):
    probe = Probe.build(probe_lengths(None), VOCABULARY, layout=layout, boundaries=boundaries, start=start)
    rows, row = [], []
    width = probe.ids.numel() // probe.rows
    for number, (first, stop) in enumerate(probe.spans):
        if number not in probe.pads:
            row.append(probe.ids[first:stop])
        if stop % width == 0:
            packed = {"input_ids": torch.cat(row), "seq_lengths": [len(piece) for piece in row]}
            rows.append(packed)
            row = []
    collate = PaddingFreeCollator(
        boundaries=boundaries, layout=layout, position_ids_start=start, pad_to_multiple_of=width
    )
    theirs, ours = dict(collate(rows)), probe.batch(torch.device("cpu"))
    del theirs["labels"]
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        if name != "input_ids":  # pads have an id of their own
            assert torch.equal(ours[name], value) if isinstance(value, torch.Tensor) else ours[name] == value, name
            assert getattr(ours[name], "dtype", None) == getattr(value, "dtype", None)


def test_every_token_of_a_changed_sequence_changes_and_no_other():
    probe = Probe.build((1, 6, 1, 13, 5), VOCABULARY, layout="flat", boundaries="position_ids", start=0)
    changed = probe.changed([1, 3], VOCABULARY)
    different = [bool((a != b).all()) for a, b in zip(probe.split(probe.ids[None]), changed.split(changed.ids[None]))]
    equal = [bool((a == b).all()) for a, b in zip(probe.split(probe.ids[None]), changed.split(changed.ids[None]))]
    assert different == [False, True, False, True, False]
    assert equal == [True, False, True, False, True]
    assert torch.isin(changed.ids, VOCABULARY).all()


def test_a_batch_that_does_not_say_its_sequences_is_refused():
    with pytest.raises(PackingError, match="needs position_ids \\[B, L\\] or cu_seq_lens_q"):
        Probe.from_batch({"input_ids": torch.zeros(1, 4, dtype=torch.long)})
    with pytest.raises(PackingError, match="needs input_ids"):
        Probe.from_batch({"inputs_embeds": torch.zeros(1, 4, 8)})
