"""One set of sequences, trained the plain way, one at a time with gradients added up: everything else must equal it.

The optimizer is SGD and every step sees the whole set, so a trajectory is a list of (loss, gradient) that depends on
nothing but the definition of the loss.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)


VOCABULARY = 61
LENGTHS = (17, 3, 9, 26, 2, 12, 31, 5, 7, 22, 11, 14)
LEARNING_RATE = 0.05


def sequences(masked: bool = True) -> list[dict[str, list[int]]]:
    """Twelve sequences of 2 to 31 tokens; about a third of the labels are masked, in runs at the start."""
    rng = np.random.default_rng(7)
    rows = []
    for number, length in enumerate(LENGTHS):
        ids = rng.integers(3, VOCABULARY, length).tolist()
        prompt = (length // 3) * (number % 2) if masked else 0
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return rows


def build(family: str = "llama", dtype: torch.dtype = torch.float32, **extra: object) -> torch.nn.Module:
    """A two-layer model with weights large enough that losses differ from log(vocabulary)."""
    torch.manual_seed(11)
    small = dict(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.1,
    )  # fmt: skip
    small |= extra
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**small))
    elif family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**small, head_dim=8))
    elif family == "mixtral":
        model = MixtralForCausalLM(MixtralConfig(**small, num_local_experts=4, num_experts_per_tok=2))
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.1,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            )
        )  # fmt: skip
    # SFTTrainer mirrors the tokenizer's ids onto these; set here so that no trainer changes the model.
    model.config.pad_token_id = 0
    return model.to(dtype)


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer for trainers that insist on one; the data is tokenised already."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {f"w{number}": number for number in range(VOCABULARY - 2)} | {"<pad>": 59, "<eos>": 60}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")), pad_token="<pad>", eos_token="<eos>"
    )


@dataclass
class Trajectory:
    """Loss and gradient of each optimizer step."""

    losses: list[float] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1).double() for p in model.parameters() if p.grad is not None])


def nll_sum(model: torch.nn.Module, row: dict[str, list[int]], smoothing: float = 0.0) -> torch.Tensor:
    """Loss of one sequence run alone, summed over its targets, by definition."""
    ids, labels = torch.tensor([row["input_ids"]]), torch.tensor([row["labels"]])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits, labels[0, 1:], ignore_index=-100, reduction="sum", label_smoothing=smoothing)


def targets(row: dict[str, list[int]]) -> int:
    return sum(label != -100 for label in row["labels"][1:])


def reference(
    model: torch.nn.Module,
    rows: list[dict[str, list[int]]],
    steps: int,
    normalization: str = "token",
    smoothing: float = 0.0,
) -> Trajectory:
    """The trajectory by definition, on a copy of the model."""
    model = copy.deepcopy(model).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    out = Trajectory()
    rows = [row for row in rows if targets(row)]
    for _ in range(steps):
        model.zero_grad()
        total = 0.0
        for row in rows:
            weight = 1 / targets(row) if normalization == "sequence" else 1.0
            denominator = len(rows) if normalization == "sequence" else sum(map(targets, rows))
            loss = nll_sum(model, row, smoothing) * (weight / denominator)
            loss.backward()
            total += loss.item()
        out.losses.append(total)
        out.gradients.append(flat_gradient(model))
        with torch.no_grad():
            for p in trained:
                if p.grad is not None:
                    p -= LEARNING_RATE * p.grad
    return out


class Record(TrainerCallback):
    """Keeps the gradient of every optimizer step."""

    def __init__(self) -> None:
        self.trajectory = Trajectory()

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.trajectory.gradients.append(flat_gradient(model))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.trajectory.losses.append(logs["loss"])


def settings(out: str, **extra: object) -> dict[str, object]:
    """Arguments every configuration shares: SGD without anything that changes a gradient, on the CPU."""
    base = dict(
        output_dir=out, optim="sgd", learning_rate=LEARNING_RATE, lr_scheduler_type="constant", max_grad_norm=0.0,
        weight_decay=0.0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        bf16=False, gradient_checkpointing=False, seed=3,
    )  # fmt: skip
    return {**base, **extra}


def distance(ours: Trajectory, theirs: Trajectory) -> dict[str, float]:
    """Largest difference of losses, their mean signed difference, largest relative gradient error."""
    assert len(ours.losses) == len(theirs.losses) == len(theirs.gradients) == len(ours.gradients) > 0
    deltas = [a - b for a, b in zip(ours.losses, theirs.losses)]
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(ours.gradients, theirs.gradients)]
    return {"loss": max(map(abs, deltas)), "residual": sum(deltas) / len(deltas), "gradient": max(errors)}
