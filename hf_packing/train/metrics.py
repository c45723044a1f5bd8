"""What a run is told while it trains and evaluates: sums over a logging window, turned into numbers in one place."""

from __future__ import annotations

import time
from dataclasses import astuple
from typing import Any

import torch

from .window import BatchCounts, sum_over_ranks


__all__ = ["LossMeter", "TrainMeter", "flops_per_token", "peak_flops"]

# Dense bf16/fp16 tensor-core peaks in FLOP/s, from NVIDIA's data sheets (without sparsity).
_PEAK_FLOPS = {
    "A100": 312e12,
    "A10G": 70e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "L4": 121e12,
    "L40S": 362e12,
    "T4": 65e12,
    "V100": 125e12,
}


def peak_flops(device_name: str) -> float | None:
    """Peak of a device in FLOP/s, `None` where it is not known (then no MFU is reported).

    Example:
        >>> peak_flops("NVIDIA A100-SXM4-80GB")
        312000000000000.0
        >>> peak_flops("AMD EPYC") is None
        True
    """
    matches = [name for name in _PEAK_FLOPS if all(part in device_name for part in name.split())]
    # The longest name wins: "H100 PCIe" before "H100", "L40S" before "L4".
    return _PEAK_FLOPS[max(matches, key=len)] if matches else None


def flops_per_token(model: Any) -> float:
    """Floating-point operations of one training step a token: 2 a weight forward, 2 backward through it, and 2 for its
    gradient where it is trained (6 in all for full fine-tuning). Attention scores are left out, so MFU is a floor.
    """
    embeddings = sum(p.numel() for p in model.get_input_embeddings().parameters())
    total = sum(p.numel() for p in model.parameters())
    if model.get_output_embeddings() is not None and model.config.get_text_config().tie_word_embeddings:
        embeddings = 0  # the table is multiplied with once, as the output head
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return 4.0 * (total - embeddings) + 2.0 * min(trained, total - embeddings)


class LossMeter:
    """Adds up what a loss average is made of; device values stay on the device until somebody reads them."""

    FIELDS = ("loss", "correct", "entropy", "aux_loss", "aux_weight")

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}

    def add(self, **values: torch.Tensor | float) -> None:
        """Add sums over the targets of one micro-batch; names are those of `FIELDS`."""
        for name, value in values.items():
            value = (
                value.detach().double() if isinstance(value, torch.Tensor) and value.device.type != "mps" else value
            )
            self._sums[name] = self._sums.get(name, 0.0) + value

    def state_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._sums.items()}

    def take(self, accelerator: Any, extra: list[float]) -> tuple[dict[str, float], list[float]]:
        """The sums over all ranks, by name, and those of `extra`; starts over from zero. Collective."""
        names = list(self.FIELDS)
        sums = sum_over_ranks(accelerator, [*(self._sums.get(name, 0.0) for name in names), *extra])
        present = set(self._sums)
        self._sums = {}
        return {n: s for n, s in zip(names, sums) if n in present or s}, sums[len(names) :]


class TrainMeter:
    """The numbers of a training run: per logging window, and counters that continue over a resume."""

    def __init__(self) -> None:
        self.losses = LossMeter()
        self.window = BatchCounts()
        self.run = BatchCounts()
        self.run_loss = 0.0
        self.num_tokens = 0
        self.num_sequences = 0
        self._steps = 0
        self._since = time.perf_counter()

    def start_run(self) -> None:
        """Begin a `train()` call: a new run's losses, unless `load_state_dict` continues one; the counters go on."""
        self.losses, self.window, self.run, self.run_loss, self._steps = (
            LossMeter(),
            BatchCounts(),
            BatchCounts(),
            0.0,
            0,
        )

    def restart_clock(self) -> None:
        """Leave what came before (evaluation, saving, the proof) out of the next window's speed."""
        self._since = time.perf_counter()

    def add_step(self, counts: BatchCounts) -> None:
        """Count one optimizer step; `counts` are those of all ranks."""
        self.window, self.run = self.window + counts, self.run + counts
        self.num_tokens += counts.tokens
        self.num_sequences += counts.sequences
        self._steps += 1

    def report(
        self, accelerator: Any, devices: int, flops_per_token: float | None, peak: float | None
    ) -> dict[str, Any]:
        """Numbers of the window since the last report; starts the next one. Collective."""
        window, steps, seconds = self.window, max(self._steps, 1), time.perf_counter() - self._since
        sums, _ = self.losses.take(accelerator, [])
        self.window, self._steps = BatchCounts(), 0
        self._since = time.perf_counter()
        self.run_loss += sums.get("loss", 0.0)
        logs: dict[str, Any] = {}
        if window.weight:
            logs["loss"] = sums.get("loss", 0.0) / window.weight
        if window.targets:
            logs |= {
                name: sums[field] / window.targets
                for name, field in (("mean_token_accuracy", "correct"), ("entropy", "entropy"))
                if field in sums
            }
        if sums.get("aux_weight"):
            logs["aux_loss"] = sums["aux_loss"] / sums["aux_weight"]
        speed = window.tokens / seconds if seconds > 0 else 0.0
        logs |= {
            "num_tokens": self.num_tokens,
            "num_sequences": self.num_sequences,
            "fill": round(window.tokens / window.slots, 4) if window.slots else 0.0,
            "tokens_per_second": round(speed, 1),
            "tokens_per_second_per_device": round(speed / devices, 1),
            "sequences_per_step": round(window.sequences / steps, 2),
            "packs_per_step": round(window.packs / steps, 2),
        }
        if flops_per_token and peak:
            logs["mfu"] = round(speed / devices * flops_per_token / peak, 4)
        return logs

    @property
    def train_loss(self) -> float | None:
        """Loss over the targets of the whole run so far, None before the first of them."""
        return self.run_loss / self.run.weight if self.run.weight else None

    def state_dict(self) -> dict[str, Any]:
        """Counters and sums as JSON-able values; `pending` is this rank's share of the unfinished logging window."""
        return {
            "num_tokens": self.num_tokens,
            "num_sequences": self.num_sequences,
            "run_loss": self.run_loss,
            "run": astuple(self.run),
            "window": astuple(self.window),
            "steps": self._steps,
            "pending": self.losses.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a run: `train_loss` and the next logged `loss` cover what came before the stop too."""
        self.num_tokens, self.num_sequences = state["num_tokens"], state["num_sequences"]
        self.run_loss, self._steps = state["run_loss"], state["steps"]
        self.run, self.window = BatchCounts.from_values(state["run"]), BatchCounts.from_values(state["window"])
        self.losses = LossMeter()
        self.losses.add(**state["pending"])
