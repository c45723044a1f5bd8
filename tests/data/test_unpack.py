"""unpack: one tensor a sequence, whatever the values are, or a refusal."""

import pytest
import torch

from hf_packing.data import PaddingFreeCollator, unpack, unpack_by_row
from hf_packing.errors import PackingError


ROWS = [
    {"input_ids": [1, 2, 3, 4, 5], "seq_lengths": [3, 2], "sequence_ids": [9, 4]},
    {"input_ids": [6, 7, 8], "seq_lengths": [1, 2], "sequence_ids": [9, 0]},
]


@pytest.mark.parametrize("layout", ["flat", "rows"])
@pytest.mark.parametrize("multiple_of", [1, 4])
def test_tokens_logits_and_sequence_values(layout, multiple_of):
    batch = PaddingFreeCollator(layout=layout, multiple_of=multiple_of, pad_to_multiple_of=8)(ROWS)
    expected = [[1, 2, 3], [4, 5], [6], [7, 8]]
    assert [ids.tolist() for ids in unpack(batch["input_ids"], batch)] == expected
    logits = batch["input_ids"][..., None] * torch.ones(3)
    assert [tuple(piece.shape) for piece in unpack(logits, batch)] == [(3, 3), (2, 3), (1, 3), (2, 3)]
    assert [piece[:, 0].int().tolist() for piece in unpack(logits.flatten(0, 1), batch)] == expected
    assert [score.item() for score in unpack(torch.tensor([1.0, 2.0, 3.0, 4.0]), batch)] == [1, 2, 3, 4]


def test_gradients_flow_through():
    batch = PaddingFreeCollator()(ROWS)
    values = batch["input_ids"].float().requires_grad_()
    unpack(values, batch)[1].sum().backward()
    assert values.grad.tolist() == [[0, 0, 0, 1, 1, 0, 0, 0]]


def test_back_to_dataset_rows_joins_the_pieces_of_one():
    batch = PaddingFreeCollator(multiple_of=2, facts=True)(ROWS)
    for known in (batch, dict(batch)):
        rows = unpack_by_row(batch["input_ids"], known)
        assert {row: ids.tolist() for row, ids in rows.items()} == {9: [1, 2, 3, 6], 4: [4, 5], 0: [7, 8]}
    scores = unpack_by_row(torch.tensor([1.0, 2.0, 3.0, 4.0]), batch)
    assert scores[9].tolist() == [1.0, 3.0]


def test_what_cannot_be_known_is_refused():
    batch = PaddingFreeCollator(pad_to_multiple_of=16)(ROWS)
    with pytest.raises(PackingError, match="does not say where its sequences end"):
        unpack(batch["input_ids"], dict(batch))
    with pytest.raises(PackingError, match="does not say where its sequences end"):
        unpack(batch["input_ids"], type(batch)(batch))  # what moving a batch to a device does to it
    with pytest.raises(PackingError, match=r"shape \(1, 5\) do not belong to a batch of shape \(1, 16\)"):
        unpack(torch.zeros(1, 5), batch)
    with pytest.raises(PackingError, match="does not know its dataset row"):
        unpack_by_row(torch.zeros(1, 2), PaddingFreeCollator()([{"input_ids": [1, 2]}]))


def test_a_batch_placed_on_a_device_keeps_its_facts():
    from accelerate.utils import send_to_device

    batch = PaddingFreeCollator(multiple_of=4, facts=True)(ROWS)
    moved = send_to_device(batch, "cpu")
    assert [ids.tolist() for ids in unpack(moved["input_ids"], moved)] == [[1, 2, 3], [4, 5], [6], [7, 8]]
