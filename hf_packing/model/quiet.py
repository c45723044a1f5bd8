"""Run a model's training-mode code without randomness, and leave no trace.

Dropout modules, attention dropout kept as plain numbers, layer drop, router jitter and embedding noise are switched
off; afterwards modes, numbers, buffers, requires_grad, .grad and every random state are what they were.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


__all__ = ["quiet"]

NOISE = re.compile(r"drop|jitter|noise")

BUFFER_LIMIT = 16 * 2**20
"""Bytes up to which a buffer is copied; larger ones are quantised weights, which no forward writes to."""

PLAIN = (bool, int, float, str, type(None))


def _plain_attributes(module: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}


def _silence(holder: Any) -> None:
    for name, value in _plain_attributes(holder).items():
        noisy = NOISE.search(name) or (isinstance(holder, torch.nn.modules.dropout._DropoutNd) and name == "p")
        if noisy and isinstance(value, float) and value:
            setattr(holder, name, 0.0)


class _ModuleState:
    """Plain attributes, buffers (objects and contents) and mode of one module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.attributes = _plain_attributes(module)
        self.buffers = dict(module._buffers)
        self.contents = {
            name: buffer.detach().clone()
            for name, buffer in self.buffers.items()
            if buffer is not None and buffer.numel() * buffer.element_size() <= BUFFER_LIMIT
        }

    def restore(self) -> None:
        for name, value in self.attributes.items():
            if vars(self.module).get(name, self) is not value:
                vars(self.module)[name] = value
        for name in [name for name in self.module._buffers if name not in self.buffers]:
            del self.module._buffers[name]
        self.module._buffers.update(self.buffers)
        with torch.no_grad():
            for name, content in self.contents.items():
                buffer = self.buffers[name]
                if buffer is not None and not torch.equal(buffer, content):
                    buffer.copy_(content)


def _device_indices(model: torch.nn.Module) -> list[int]:
    return sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})


@contextmanager
def _random_states_kept(model: torch.nn.Module) -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=_device_indices(model)):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def quiet(model: torch.nn.Module, *, freeze: bool) -> Iterator[None]:
    """Training mode without randomness; everything is put back at the end, also after an error.

    Args:
        freeze (`bool`): parameters need no gradient inside: a backward pass reaches inputs only and costs half.
            Not for sharded parameters, whose flat storage must keep its flags.
    """
    modules = list(model.modules())
    states = [_ModuleState(module) for module in modules]
    configs = {id(config): config for module in modules if (config := getattr(module, "config", None)) is not None}
    kept_configs = [(config, _plain_attributes(config)) for config in configs.values() if hasattr(config, "__dict__")]
    frozen = [p for p in model.parameters() if p.requires_grad] if freeze else []
    with _random_states_kept(model):
        try:
            for parameter in frozen:
                parameter.requires_grad_(False)
            model.train()
            for holder in (*modules, *(config for config, _ in kept_configs)):
                _silence(holder)
            yield
        finally:
            for state in states:
                state.restore()
            for config, attributes in kept_configs:
                vars(config).update(attributes)
            for parameter in frozen:
                parameter.requires_grad_(True)
