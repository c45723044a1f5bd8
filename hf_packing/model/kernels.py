"""The kernels packed_varlen can run, and the one place that picks among them.

Shape legend: T tokens of all sequences, H query heads, K key/value heads (H is a multiple of K), D head size,
V value head size (usually D), S sequences. Kernels take q `[T, H, D]`, k `[T, K, D]`, v `[T, K, V]` and `Segments`,
and give `[T, H, V]`.

The choice is the first kernel of `KERNELS` that supports everything a call uses; each refusal has a reason, and the
reasons are logged once. Nothing is downloaded: a FlashAttention kernel is used where its package is installed or where
it was handed to `use_flash_kernel`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ..errors import PackingError
from .call import AttentionCall, Hardware, Options
from .gpu_kernels import flash_attention, flex_attention, nested_attention, torch_varlen
from .segments import Segments
from .sequence_kernel import per_sequence


__all__ = ["KERNELS", "choose_kernel", "force_kernel", "hardware_of", "use_flash_kernel", "varlen_attention"]

logger = logging.getLogger(__name__)

HALF = (torch.float16, torch.bfloat16)

_given_flash: Callable[..., Any] | None = None
_forced: str | None = None


def use_flash_kernel(kernel: Any) -> None:
    """Let packed_varlen run this FlashAttention: a module with `flash_attn_varlen_func`, or that function itself.

    None takes it back. Hub kernels are downloaded by whoever asks for them, nothing is fetched here:
    `use_flash_kernel(kernels.get_kernel("kernels-community/flash-attn2"))`.
    """
    global _given_flash
    function = getattr(kernel, "flash_attn_varlen_func", kernel)
    if function is not None and not callable(function):
        raise PackingError(f"use_flash_kernel takes a module with flash_attn_varlen_func, or it; got {kernel!r}.")
    _given_flash = function
    hardware_of.cache_clear()


@contextmanager
def force_kernel(name: str | None) -> Iterator[None]:
    """Run only this kernel (a name of `KERNELS`), or raise PackingError where it cannot; for tests and benchmarks."""
    global _forced
    if name is not None and name not in KERNELS:
        raise PackingError(f"There is no kernel {name!r}; the kernels are {', '.join(KERNELS)}.")
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def _installed_flash(capability: tuple[int, int]) -> Callable[..., Any] | None:
    """flash_attn_varlen_func of an installed package: FlashAttention 3 on Hopper, else 2 from Ampere on."""
    for module, lowest in (("flash_attn_interface", (9, 0)), ("flash_attn", (8, 0))):
        if capability >= lowest and importlib.util.find_spec(module) is not None:
            return getattr(importlib.import_module(module), "flash_attn_varlen_func", None)
    return None


@lru_cache(maxsize=32)
def hardware_of(device_type: str, index: int | None = None) -> Hardware:
    """The hardware behind a device; kept, because every layer asks for it."""
    if device_type != "cuda":
        return Hardware(device_type, flash=_given_flash)
    capability = torch.cuda.get_device_capability(index)
    flash = _given_flash or _installed_flash(capability)
    return Hardware("cuda", capability, flash, importlib.util.find_spec("triton") is not None)


def _lacks(call: AttentionCall, *names: str) -> str | None:
    """The first of these features that the call uses, as the reason why a kernel without them refuses it."""
    asked = [name for name in names if getattr(call, name) not in (None, False)]
    return f"it has no {asked[0]}" if asked else None


def _half_precision_heads(call: AttentionCall) -> str | None:
    if call.dtype not in HALF:
        return f"it computes in fp16 and bf16, the call is {call.dtype}"
    if call.head_size > 256 or call.value_size > call.head_size:
        return f"its heads are at most 256 wide, the call's are {call.head_size} (values {call.value_size})"
    return None


def _no_flash(call: AttentionCall, hardware: Hardware) -> str | None:
    if hardware.flash is None:
        return "no FlashAttention package is installed and none was given to use_flash_kernel"
    if hardware.device == "cuda" and (reason := _half_precision_heads(call)):
        return reason
    known = set(inspect.signature(hardware.flash).parameters)
    if call.sinks and not {"s_aux", "learnable_sink"} & known:
        return "this build has no sinks"
    names = {"window": "window_size", "softcap": "softcap", "dropout": "dropout_p"}
    return _lacks(call, *(ours for ours, theirs in names.items() if theirs not in known))


def _no_torch_varlen(call: AttentionCall, hardware: Hardware) -> str | None:
    if hardware.device != "cuda" or hardware.capability < (8, 0):
        return f"it needs CUDA with capability 8.0 or newer, this is {hardware.device} {hardware.capability}"
    return _half_precision_heads(call) or _lacks(call, "softcap", "sinks", "dropout")


def _no_nested(call: AttentionCall, hardware: Hardware) -> str | None:
    if hardware.device != "cuda":
        return f"on {hardware.device} torch runs nested tensors one slow call a sequence"
    if call.head_size != call.value_size:
        return f"its queries and values are equally wide, the call's are {call.head_size} and {call.value_size}"
    return _lacks(call, "window", "softcap", "sinks", "dropout")


def _no_flex(call: AttentionCall, hardware: Hardware) -> str | None:
    if hardware.device != "cuda" or hardware.capability < (7, 0) or not hardware.triton:
        return f"it needs triton and CUDA with capability 7.0, this is {hardware.device} {hardware.capability}"
    return _lacks(call, "dropout")


@dataclass(frozen=True)
class Kernel:
    """Why it cannot run a call (None: it can), and the function that runs it."""

    refuses: Callable[[AttentionCall, Hardware], str | None]
    run: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Segments, Options], torch.Tensor]


KERNELS: dict[str, Kernel] = {
    "flash_attention": Kernel(_no_flash, flash_attention),
    "torch_varlen": Kernel(_no_torch_varlen, torch_varlen),
    "nested_sdpa": Kernel(_no_nested, nested_attention),
    "flex_attention": Kernel(_no_flex, flex_attention),
    "per_sequence_sdpa": Kernel(lambda call, hardware: None, per_sequence),
}
"""In order of preference; the last one runs everything everywhere."""


@lru_cache(maxsize=256)
def _choose(call: AttentionCall, hardware: Hardware, forced: str | None) -> str:
    refusals: dict[str, str] = {}
    for name in [forced] if forced else KERNELS:
        reason = KERNELS[name].refuses(call, hardware)
        if reason is None:
            why = "; ".join(f"{other}: {text}" for other, text in refusals.items()) or "nothing comes before it"
            logger.info("packed_varlen runs %s on %s for %s (%s).", name, hardware.device, call, why)
            return name
        refusals[name] = reason
    raise PackingError(f"Kernel {forced!r} was forced, but it cannot run {call}: {refusals.get(forced or '')}.")


def choose_kernel(call: AttentionCall, hardware: Hardware) -> str:
    """Name of the kernel that runs this call on this hardware; each decision is logged once, with its reasons.

    Example:

        >>> choose_kernel(AttentionCall(torch.float32, 64, 64), Hardware("cpu"))
        'per_sequence_sdpa'
        >>> choose_kernel(AttentionCall(torch.bfloat16, 64, 64, window=128), Hardware("cuda", (8, 0)))
        'torch_varlen'
        >>> choose_kernel(AttentionCall(torch.float16, 64, 64), Hardware("cuda", (7, 5)))  # a T4
        'nested_sdpa'
    """
    return _choose(call, hardware, _forced)


def varlen_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, options: Options
) -> torch.Tensor:
    """Causal attention inside every segment, by the kernel that fits; the module says which shapes."""
    if options.window is not None and options.window >= segments.longest:
        options = replace(options, window=None)  # no two tokens are that far apart: plain causal kernels can run it
    name = _kernel_name(
        query.dtype,
        query.shape[-1],
        value.shape[-1],
        options.window,
        options.softcap,
        options.sinks is not None,
        options.dropout > 0,
        query.device.type,
        query.device.index,
    )
    if name == "flash_attention":
        options = replace(options, flash=_flash_of(query.device.type, query.device.index))
    return KERNELS[name].run(query, key, value, segments, options)


# A compiled graph keeps what these two return: they depend on the machine and on facts the graph is guarded on.
@torch.compiler.assume_constant_result
def _kernel_name(
    dtype: torch.dtype,
    head_size: int,
    value_size: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
    dropout: bool,
    device: str,
    index: int | None,
) -> str:
    call = AttentionCall(dtype, head_size, value_size, window, softcap, sinks, dropout)
    return choose_kernel(call, hardware_of(device, index))


@torch.compiler.assume_constant_result
def _flash_of(device: str, index: int | None) -> Callable[..., Any] | None:
    return hardware_of(device, index).flash
