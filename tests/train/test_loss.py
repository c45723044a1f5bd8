"""The arithmetic of the loss, against its definition written out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_packing.train.loss import IGNORE_INDEX, aligned_labels, count_targets, nll_from_logits, sequence_weights


def test_the_worked_example_of_the_seed():
    """[11, 12, 13] + [21, 22]: aligned targets are 12, 13, none, 22; the last slot predicts nothing."""
    labels = torch.tensor([[-100, 12, 13, -100, 22]])
    assert aligned_labels(labels).tolist() == [[12, 13, -100, 22]]
    assert count_targets(labels) == 3


def test_models_that_do_not_shift_count_every_label():
    labels = torch.tensor([[5, -100, 7], [-100, -100, 3]])
    assert (count_targets(labels, shifts=False), count_targets(labels)) == (3, 2)


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    masked=st.integers(0, 2**20),
    tail=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_every_sequence_weighs_one(lengths, masked, tail):
    """Whatever is masked, wherever sequences lie, a sequence with a target weighs 1 and any other 0."""
    total = sum(lengths) + tail
    labels = torch.arange(1, total + 1)
    labels[[bool(masked >> (slot % 20) & 1) for slot in range(total)]] = IGNORE_INDEX
    starts = torch.tensor([sum(lengths[:number]) for number in range(len(lengths))])
    labels[starts] = IGNORE_INDEX
    labels[sum(lengths) :] = IGNORE_INDEX
    whole = torch.full((len(lengths),), -1)
    weights = sequence_weights(labels[None], starts, torch.tensor(lengths), whole)[0]
    weights = torch.cat([torch.zeros(1, dtype=weights.dtype), weights])  # in line with the labels again
    for start, length in zip(starts.tolist(), lengths):
        here = labels[start : start + length] != IGNORE_INDEX
        expected = here / max(int(here.sum()), 1)
        assert torch.allclose(weights[start : start + length], expected.double())
    assert weights[sum(lengths) :].sum() == 0


def test_pieces_weigh_their_share():
    """A sequence of 4 targets cut into pieces of 3 and 1, in other batches than each other."""
    first = sequence_weights(torch.tensor([[-100, 1, 2, 3]]), torch.tensor([0]), torch.tensor([4]), torch.tensor([4]))
    second = sequence_weights(torch.tensor([[-100, 9]]), torch.tensor([0]), torch.tensor([2]), torch.tensor([4]))
    assert (first.sum() + second.sum()).item() == 1
    assert second.tolist() == [[0.25]]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("shifts", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nll_is_cross_entropy_of_each_target(smoothing, shifts, dtype):
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 11).to(dtype)
    labels = torch.randint(0, 11, (2, 5))
    labels[0, 2:4] = IGNORE_INDEX
    found = nll_from_logits(logits, labels, shifts, smoothing)
    used, targets = (logits[:, :-1], labels[:, 1:]) if shifts else (logits, labels)
    assert found.shape == targets.shape
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row in range(2):
        for slot in range(targets.shape[1]):
            expected = 0.0
            if targets[row, slot] != IGNORE_INDEX:
                log_p = used[row, slot].double().log_softmax(-1)
                expected = -(1 - smoothing) * log_p[targets[row, slot]] - smoothing * log_p.mean()
            assert found[row, slot].item() == pytest.approx(float(expected), abs=1e-6)


def test_without_targets_it_is_zero_and_has_a_gradient():
    logits = torch.randn(1, 4, 7, requires_grad=True)
    nll = nll_from_logits(logits, torch.full((1, 4), IGNORE_INDEX))
    nll.sum().backward()
    assert nll.sum().item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))
