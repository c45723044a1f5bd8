"""Predictions given back to their sequences, in order, whatever rank and batch they came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_packing.train import evaluation
from hf_packing.train.batches import BatchFacts
from hf_packing.train.evaluation import EvalRun
from hf_packing.train.window import BatchCounts


def facts(lengths, ids):
    lengths = torch.tensor(lengths)
    return BatchFacts(
        starts=lengths.cumsum(0) - lengths, lengths=lengths, sequence_ids=torch.tensor(ids),
        sequence_targets=torch.full((len(ids),), -1), packs=1, slots=int(lengths.sum()),
    )  # fmt: skip


def run_of(*batches, **given):
    """Batches are (lengths, sequence ids); every token is 10 times its sequence id plus its place."""
    run = EvalRun(**{"collect": True, "keep": True, "batch_metrics": None, "with_inputs": True, **given})
    for lengths, ids in batches:
        values = [10 * abs(i) + place for length, i in zip(lengths, ids) for place in range(length)]
        tokens = torch.tensor([values])
        known = ids if given.pop("known", True) else [-1] * len(ids)
        run.add_predictions(facts(lengths, known), (tokens.float(), tokens[..., None].repeat(1, 1, 2)), tokens, tokens)
    return run


def test_sequences_come_back_in_dataset_order():
    run = run_of(([3, 1], [2, 0]), ([2], [1]))
    sequences, metrics = run.finish()
    prediction = run.as_prediction(sequences)
    assert metrics == {}
    assert prediction.label_ids.tolist() == [[0, -100, -100], [10, 11, -100], [20, 21, 22]]
    assert prediction.inputs.tolist() == prediction.label_ids.tolist()
    first, second = prediction.predictions
    assert first[2].tolist() == [20, 21, 22] and second.shape == (3, 3, 2)
    assert second[0].tolist() == [[0, 0], [-100, -100], [-100, -100]]


def test_two_ranks_take_turns(monkeypatch):
    """Rank 0 had batches a and c, rank 1 b and then filler; ids are not known, so the order is that of the deal."""
    other = run_of(([1], [2]), ([], []))
    for batch in other._kept:
        for one in batch:
            object.__setattr__(one, "sequence_id", -1)
    monkeypatch.setattr(evaluation, "gather_object", lambda mine: [*mine, other._kept])
    run = EvalRun(collect=True, keep=True, batch_metrics=None, with_inputs=False)
    for value in (1, 3):
        tokens = torch.tensor([[10 * value]])
        run.add_predictions(facts([1], [-1]), tokens, tokens, tokens)
    sequences, _ = run.finish()
    assert [one.labels.tolist() for one in sequences] == [[10], [20], [30]]


def test_bfloat16_and_nothing_at_all():
    run = EvalRun(collect=True, keep=True, batch_metrics=None, with_inputs=False)
    tokens = torch.tensor([[1, 2]])
    run.add_predictions(facts([2], [0]), torch.tensor([[1.0, 2.0]]).bfloat16(), tokens, tokens)
    assert run.as_prediction(run.finish()[0]).predictions.dtype == np.float32
    empty = EvalRun(collect=True, keep=True, batch_metrics=None, with_inputs=False)
    assert empty.as_prediction(empty.finish()[0]).label_ids.shape == (0, 0)


def test_a_batch_without_targets_adds_nothing():
    run = EvalRun(collect=False, keep=False, batch_metrics=None, with_inputs=False)
    run.add(BatchCounts(targets=2, tokens=3), torch.tensor(4.0))
    run.add(BatchCounts(tokens=3), torch.tensor(float("nan")))
    assert run.losses._sums["loss"].item() == pytest.approx(8.0)
    assert (run.counts.targets, run.counts.tokens) == (2, 6)
