"""The same run by definition: one sequence at a time, in the steps that the ranks wrote down."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.distributed import scenarios


LEARNING_RATE = 0.05


def nll_sum(model: torch.nn.Module, row: dict[str, list[int]]) -> torch.Tensor:
    ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
    return F.cross_entropy(logits, labels[1:], ignore_index=-100, reduction="sum")


def targets(row: dict[str, list[int]]) -> int:
    return sum(label != -100 for label in row["labels"][1:])


def replay(
    steps: list[list[int]],
    data: list[dict[str, list[int]]],
    family: str = "llama",
    normalization: str = "token",
    evaluate: list[dict[str, list[int]]] | None = None,
    evaluate_after: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Loss and gradient of every step (sequences named by their first token), eval_loss after some steps, weights."""
    model = scenarios.build_model(family).train()
    out: dict[str, Any] = {"losses": [], "gradients": [], "evaluations": []}
    for number, names in enumerate(steps, start=1):
        chosen = [data[name - scenarios.FIRST] for name in names]
        by_sequence = normalization == "sequence"
        denominator = len(chosen) if by_sequence else sum(map(targets, chosen))
        model.zero_grad()
        losses = [nll_sum(model, row) / (denominator * (targets(row) if by_sequence else 1)) for row in chosen]
        for loss in losses:
            loss.backward()
        out["losses"].append(sum(loss.item() for loss in losses))
        grads = [p.grad.reshape(-1).double() for p in model.parameters() if p.grad is not None]
        out["gradients"].append(torch.cat(grads))
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p -= LEARNING_RATE * p.grad
            if number in evaluate_after:
                sums = [nll_sum(model, row).item() for row in evaluate]
                out["evaluations"].append(sum(sums) / sum(map(targets, evaluate)))
    out["weights"] = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return out


def steps_of(ranks: list[dict[str, Any]]) -> list[list[int]]:
    """Sequences of every optimizer step over all ranks."""
    counts = {len(rank["sequences"]) for rank in ranks}
    assert len(counts) == 1, f"the ranks took {counts} steps"
    return [[name for rank in ranks for name in rank["sequences"][step]] for step in range(counts.pop())]


def check_ranks_agree(ranks: list[dict[str, Any]]) -> None:
    first = ranks[0]
    assert first["steps"] > 0
    for rank in ranks:
        for name in ("steps", "max_steps", "epoch", "loader", "scheduler", "losses", "evaluations", "train_loss"):
            assert rank[name] == first[name], f"{name}: {rank[name]} and {first[name]}"
        assert rank["micro_batches"] == first["micro_batches"], "a rank ran more micro-batches than another"
        assert torch.equal(rank["weights"], first["weights"])


def check_against(ranks: list[dict[str, Any]], expected: dict[str, list[Any]], gradient: float = 1e-6) -> None:
    ours = ranks[0]
    assert len(ours["gradients"]) == len(expected["gradients"]) == ours["steps"] > 0
    for step, (found, right) in enumerate(zip(ours["gradients"], expected["gradients"])):
        error = ((found - right).norm() / right.norm()).item()
        assert error <= gradient, f"gradient of step {step + 1}: relative error {error:.1e}"
    assert max(abs(a - b) for a, b in zip(ours["losses"], expected["losses"])) <= 2e-6
    for found, right in zip(ours["evaluations"], expected["evaluations"], strict=True):
        assert abs(found - right) <= 2e-6 * right


def check_epochs(steps: list[list[int]], count: int, epochs: int) -> None:
    """Every sequence once an epoch; epochs end at steps."""
    assert len(steps) % epochs == 0
    per_epoch = len(steps) // epochs
    for epoch in range(epochs):
        names = [name for step in steps[epoch * per_epoch : (epoch + 1) * per_epoch] for name in step]
        assert sorted(names) == list(range(scenarios.FIRST, scenarios.FIRST + count)), f"epoch {epoch}"


def check_passes(steps: list[list[int]], count: int) -> int:
    """Every sequence once a pass, and no step that mixes two passes; the number of passes that were completed."""
    everything, seen, passes = set(range(scenarios.FIRST, scenarios.FIRST + count)), set(), 0
    for number, names in enumerate(steps, start=1):
        assert names, f"step {number} trained nothing"
        assert len(set(names)) == len(names) and not seen & set(names), f"step {number} repeats a sequence of its pass"
        seen |= set(names)
        if seen == everything:
            passes, seen = passes + 1, set()
    return passes
