"""check_isolation: the proof, on the loaded model, that no sequence of a batch sees another.

What is measured, and how, is in measurement.py; here it becomes a verdict and advice.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from ..errors import ContaminationError
from .advice import advice_for
from .attention import NAME
from .measurement import Measurement, input_device, measure
from .probe import Probe, probe_lengths
from .quiet import quiet
from .support import ModelSupport, inspect_model
from .unwrap import inner_model, is_sharded, without_ddp


__all__ = ["IsolationReport", "check_isolation"]


@dataclass(frozen=True, kw_only=True)
class IsolationReport:
    """What was measured, and what follows.

    Args:
        isolated (`bool`): no leak, and every sequence in a pack comes out as it does alone.
        leak (`float`): largest relative change in another sequence's outputs; NaN if nothing ran.
        boundaries (`str`, *optional*): the PaddingFreeCollator value that isolates, or None.
        layout (`str`): the batch layout that was probed.
        attention (`str`): the attention implementation.
        kernel (`str`): what computes it.
        mismatch (`float`): largest relative difference between a sequence in the pack and alone; NaN if not measured.
        gradient_leak (`float`): gradient with respect to another sequence's embeddings, relative; NaN if not measured.
        leak_bound, alone_bound (`float`): what rounding may do in the precision that was observed.
        precision (`str`): the coarsest number type the model's linear layers computed in.
        advice (`str`): what to do, in a few sentences.
        seconds (`float`): what the check took.
    """

    isolated: bool
    leak: float
    boundaries: str | None
    layout: str
    attention: str
    kernel: str
    mismatch: float
    gradient_leak: float
    leak_bound: float
    alone_bound: float
    precision: str
    advice: str
    seconds: float


def _vocabulary(model: torch.nn.Module) -> torch.Tensor:
    """Ids that stand for ordinary text, ascending: none that a config names (pads, images, ...)."""
    inner = inner_model(model)
    if inner is None:
        tables = [m.num_embeddings for m in model.modules() if isinstance(m, torch.nn.Embedding)]
        return torch.arange(1, max(tables)) if tables else torch.arange(1, 100)
    special = set()
    for config in (inner.config, inner.config.get_text_config()):
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_index")):
                special |= set(value) if isinstance(value, (list, tuple)) else {value}
    size = int(inner.config.get_text_config().vocab_size)
    ordinary = [token for token in range(min(size, 50_000)) if token not in special]
    return torch.tensor(ordinary)


def _window(model: torch.nn.Module) -> int | None:
    """The longest window or chunk that a sequence of the probe can cross."""
    inner = inner_model(model)
    if inner is None:
        return None
    config = inner.config.get_text_config()
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return max((size for size in sizes if isinstance(size, int)), default=None)


def _agreed(measurement: Measurement, model: torch.nn.Module) -> Measurement:
    """Where ranks gather parameters together they must decide together: the worst rank's numbers count."""
    if not (is_sharded(model) and torch.distributed.is_available() and torch.distributed.is_initialized()):
        return measurement
    failed = float(measurement.error is not None)
    numbers = torch.tensor([failed, measurement.leak, measurement.mismatch], device=input_device(model))
    numbers = torch.nan_to_num(numbers, nan=-1.0)
    torch.distributed.all_reduce(numbers, op=torch.distributed.ReduceOp.MAX)
    failed, leak, mismatch = numbers.tolist()
    if failed and measurement.error is None:
        return Measurement(error="The check failed on another rank.")
    return replace(measurement, leak=leak if leak >= 0 else math.nan, mismatch=mismatch if mismatch >= 0 else math.nan)


def check_isolation(
    model: torch.nn.Module,
    *,
    boundaries: Literal["auto", "position_ids", "explicit"] = "auto",
    layout: Literal["flat", "rows"] = "flat",
    raise_on_leak: bool = False,
    forward_only: bool = False,
    batch: dict[str, Any] | None = None,
) -> IsolationReport:
    """Prove that no sequence of a packed batch sees another in this model, as it is loaded and wrapped.

    Runs a probe of a few dozen tokens in training mode with all randomness off; leaves gradients, random states,
    buffers and modes as they were. A few short forwards and one backward.

    Args:
        model: bare or wrapped (PEFT, quantised, DDP, FSDP, compiled), in any precision, with any attention.
        boundaries: the form of the run; "auto" tries what `inspect_model` proposes, then the other one.
        layout: "flat" `[1, T]` or "rows" `[B, L]`.
        raise_on_leak (`bool`): raise ContaminationError instead of reporting a model that is not isolated.
        forward_only (`bool`): no backward pass; always so where parameters are sharded (call it on all ranks then).
        batch (`dict`, *optional*): probe the form of this batch (a collator's output) instead of the standard one;
            what it holds besides input_ids, a mask or use_cache for example, is passed on as it is.

    Raises:
        ContaminationError: `raise_on_leak`, and the model is not isolated; the message is the report's advice.

    Example:

        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        ...     vocab_size=64, attn_implementation="packed_varlen")
        >>> report = check_isolation(LlamaForCausalLM(config))
        >>> report.isolated, report.boundaries, report.leak
        (True, 'position_ids', 0.0)
    """
    began = time.perf_counter()
    support = inspect_model(model)
    sharded = is_sharded(model)
    forward_only = forward_only or sharded
    probed = without_ddp(model)
    order = [support.boundaries, "explicit" if support.boundaries == "position_ids" else "position_ids"]
    forms = order if boundaries == "auto" and batch is None else [order[0] if boundaries == "auto" else boundaries]
    measured: dict[str, Measurement] = {}
    # A compiled model is checked by the code it was compiled from: compiling a dozen short probes would take minutes.
    with torch.compiler.set_stance("force_eager"), quiet(probed, freeze=not sharded):
        torch.random.default_generator.manual_seed(20_260)  # the CPU's alone: quiet() puts that one back
        vocabulary = _vocabulary(probed)
        for form in forms:
            probe = (
                Probe.from_batch(batch)
                if batch is not None
                else Probe.build(
                    probe_lengths(_window(probed)),
                    vocabulary,
                    layout=layout,
                    boundaries=form,
                    start=support.position_ids_start,
                )
            )
            measured[form] = _agreed(measure(probed, probe, vocabulary, forward_only), probed)
            if measured[form].isolated:
                break
    report = _report(measured, support, layout, boundaries, time.perf_counter() - began)
    if raise_on_leak and not report.isolated:
        raise ContaminationError(report.advice)
    return report


def _report(
    measured: dict[str, Measurement], support: ModelSupport, layout: str, asked: str, seconds: float
) -> IsolationReport:
    good = next((form for form, found in measured.items() if found.isolated), None)
    # The form that says most about a failure is one that ran.
    told = good or next((form for form, found in measured.items() if found.error is None), next(iter(measured)))
    found = measured[told]
    usable = support.attention != NAME or support.can_switch_attention
    isolated = good is not None and usable and support.drops_positions is None
    return IsolationReport(
        isolated=isolated,
        leak=found.leak,
        boundaries=good if isolated else None,
        layout=layout,
        attention=support.attention,
        kernel=support.kernel,
        mismatch=found.mismatch,
        gradient_leak=found.gradient_leak,
        leak_bound=found.leak_bound,
        alone_bound=found.alone_bound,
        precision=str(found.precision).removeprefix("torch."),
        advice=advice_for(support, {form: m.error for form, m in measured.items()}, isolated, found, good, layout),
        seconds=seconds,
    )
