"""What check_isolation measures on a probe of a few dozen tokens, in the batch form of the run.

1. Change some sequences: the outputs of the others must not move.
2. The gradient of some sequences' outputs with respect to the others' embeddings must be zero.
3. Every sequence in the pack must come out as it does alone.

The first decides what a leak is: between two runs of equal shape the same numbers go through the same kernels, so what
moves has leaked. The third catches what no perturbation shows (wrong positions, rules that depend on the batch's
length); different shapes round differently, so its bound follows the precision the model computes in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import PackingError
from .attention import NAME
from .probe import Probe
from .unwrap import inner_model, input_table


__all__ = ["Measurement", "input_device", "measure"]

logger = logging.getLogger(__name__)

LEAK_BOUNDS = {torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Largest change that rounding can make between two runs of equal shape (routing to experts regroups the tokens)."""

ALONE_BOUNDS = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Largest difference that rounding can make between two shapes, a few dozen layers deep."""

FULL_LEAK_BOUND, FULL_ALONE_BOUND = 1e-5, 1e-4
"""The same for fp32 and fp64."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one batch form gave; `error` says why nothing ran."""

    leak: float = math.nan
    gradient_leak: float = math.nan
    mismatch: float = math.nan
    precision: torch.dtype = torch.float32
    error: str | None = None

    @property
    def leak_bound(self) -> float:
        return LEAK_BOUNDS.get(self.precision, FULL_LEAK_BOUND)

    @property
    def alone_bound(self) -> float:
        return ALONE_BOUNDS.get(self.precision, FULL_ALONE_BOUND)

    @property
    def isolated(self) -> bool:
        """Everything that was measured is within its bound; the perturbation must have been."""
        return (
            self.error is None
            and self.leak <= self.leak_bound
            and not self.gradient_leak > self.leak_bound
            and not self.mismatch > self.alone_bound
        )


def _outputs(model: torch.nn.Module, batch: dict[str, Any], tokens: int) -> torch.Tensor:
    """Per-token outputs `[B, L, V]` in fp32: logits, or hidden states of a model without a head."""
    out = model(**batch)
    values = getattr(out, "logits", None)
    if values is None:
        values = getattr(out, "last_hidden_state", None)
    if values is None and isinstance(out, (tuple, list)) and out:
        values = out[0]
    if not isinstance(values, torch.Tensor) or values.ndim != 3:
        raise PackingError(f"{type(model).__name__} returns no per-token outputs (logits or last_hidden_state).")
    if values.shape[0] * values.shape[1] != tokens:
        raise PackingError(
            f"{type(model).__name__} returns {values.shape[0]} x {values.shape[1]} outputs for {tokens} tokens: "
            "something adds or removes tokens inside the model, so the boundaries of the batch no longer fit."
        )
    return values.float()


def _relative(change: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest over tokens of |change| / |reference - its mean|, both `[l, V]`.

    Outputs of trained models share a large offset that says nothing; without it the measure sees small leaks.
    """
    if not bool(torch.isfinite(change).all()):
        return math.inf
    spread = (reference - reference.mean(dim=-1, keepdim=True)).norm(dim=-1)
    return float((change.norm(dim=-1) / spread.clamp_min(1e-12)).max()) if change.numel() else 0.0


@contextmanager
def _observed_precision(model: torch.nn.Module) -> Iterator[list[torch.dtype]]:
    """The number types that linear layers give, under autocast and quantisation too."""
    seen: list[torch.dtype] = []

    def note(module: torch.nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            seen.append(output.dtype)

    handles = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, torch.nn.Linear)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _coarsest(seen: list[torch.dtype], model: torch.nn.Module) -> torch.dtype:
    found = {*seen, *(p.dtype for p in model.parameters() if p.is_floating_point())}
    for dtype in (torch.bfloat16, torch.float16):
        if dtype in found:
            return dtype
    on_cuda = any(p.is_cuda for p in model.parameters())
    # TF32 has fp16's mantissa.
    return torch.float16 if on_cuda and torch.backends.cuda.matmul.allow_tf32 else torch.float32


def _perturbation(run: Callable[[Probe], torch.Tensor], probe: Probe, vocabulary: torch.Tensor, both: bool) -> float:
    """Change every other sequence and look at the ones between; then (if `both`) the other way round."""
    base = list(probe.split(run(probe)))
    numbers = probe.sequences
    leak = 0.0
    for changed in (numbers[::2], numbers[1::2])[: 2 if both else 1]:
        moved = list(probe.split(run(probe.changed(changed, vocabulary))))
        watched = [number for number in numbers if number not in changed]
        own = max(_relative(moved[n] - base[n], base[n]) for n in changed)
        if own == 0.0:
            raise PackingError("Changing a sequence's tokens does not change its own outputs: nothing was measured.")
        leak = max(leak, *(_relative(moved[n] - base[n], base[n]) for n in watched))
    return leak


def _gradient_leak(model: torch.nn.Module, probe: Probe, device: torch.device) -> float:
    """Gradient of every other sequence's outputs with respect to the embeddings between, relative to their own."""
    table = input_table(model)
    if table is None:
        return math.nan
    leaves: list[torch.Tensor] = []

    def as_leaf(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        leaves.append(output.detach().requires_grad_(True))
        return leaves[-1]

    handle = table.register_forward_hook(as_leaf)
    try:
        with torch.enable_grad():
            pieces = list(probe.split(_outputs(model, _call(model, probe.batch(device)), probe.ids.numel())))
            seen = probe.sequences[1::2]
            # Random weights: a plain sum of a softmax's or a norm's outputs can have no gradient at all.
            total = sum((pieces[n] * torch.randn(pieces[n].shape).to(pieces[n].device)).sum() for n in seen)
            assert isinstance(total, torch.Tensor)
            total.backward()
    finally:
        handle.remove()
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None and leaf.shape[:2].numel() == probe.ids.numel()]
    if not gradients:
        return math.nan
    sizes = [float(piece.float().abs().max()) for piece in probe.split(gradients[0])]
    own = max(sizes[n] for n in seen)
    other = max(size for n, size in enumerate(sizes) if n not in seen)
    return other / own if own > 0 else math.nan


def _call(model: torch.nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
    # Packed batches never use a cache (it switches boundary detection off); models that know no cache get no argument.
    inner = inner_model(model)
    if inner is not None and hasattr(inner.config, "use_cache") and "use_cache" not in arguments:
        return {**arguments, "use_cache": False}
    return arguments


@contextmanager
def _plain_attention(model: torch.nn.Module) -> Iterator[None]:
    """packed_varlen off, eager on: the reference that says whether the model works with packed_varlen at all."""
    inner = inner_model(model)
    if inner is None or inner.config.get_text_config()._attn_implementation != NAME:
        yield
        return
    config = inner.config
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    before = {name: part._attn_implementation for name, part in parts.items() if part is not None}
    before[""] = config._attn_implementation
    inner.set_attn_implementation({name: "eager" if value == NAME else value for name, value in before.items()})
    try:
        yield
    finally:
        inner.set_attn_implementation(before)


def _mismatch(model: torch.nn.Module, probe: Probe, device: torch.device, numbers: list[int]) -> float:
    packed = list(probe.split(_outputs(model, _call(model, probe.batch(device)), probe.ids.numel())))
    worst = 0.0
    with _plain_attention(model):
        for number in numbers:
            single = _outputs(model, _call(model, probe.alone(number, device)), probe.lengths[number])[0]
            worst = max(worst, _relative(packed[number] - single, single))
    return worst


def measure(model: torch.nn.Module, probe: Probe, vocabulary: torch.Tensor, forward_only: bool) -> Measurement:
    device = input_device(model)

    def run(variant: Probe) -> torch.Tensor:
        with torch.no_grad():
            return _outputs(model, _call(model, variant.batch(device)), variant.ids.numel())

    gradient = math.nan
    with _observed_precision(model) as seen:
        try:
            leak = _perturbation(run, probe, vocabulary, both=not forward_only)
            with torch.no_grad():
                # The window-crossing sequence and the last one stand for all where every forward gathers parameters.
                numbers = probe.sequences[-2:] if forward_only else probe.sequences
                mismatch = _mismatch(model, probe, device, numbers)
        except Exception as e:
            # Whatever a model raises on a batch form is an answer ("not this form"), and its message is reported.
            return Measurement(error=f"{type(e).__name__}: {e}")
        precision = _coarsest(seen, model)
        if not forward_only:
            try:
                gradient = _gradient_leak(model, probe, device)
            except (RuntimeError, NotImplementedError) as e:
                logger.info("check_isolation could not measure gradients: %s", e)
    return Measurement(leak=leak, gradient_leak=gradient, mismatch=mismatch, precision=precision)


def input_device(model: torch.nn.Module) -> torch.device:
    table = input_table(model)
    parameters = [*(table.parameters() if table is not None else ()), *model.parameters()]
    return next((p.device for p in parameters if p.device.type != "meta"), torch.device("cpu"))
