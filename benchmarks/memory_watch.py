"""Live bytes of all tensors while something runs, and the largest of them."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryWatch(TorchDispatchMode):
    """Counts storages made inside it, from the operation that made them until they are freed.

    Attributes:
        peak (`int`): most bytes alive at once.
        largest (`int`): values in the largest tensor that was made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = self.largest = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                self._see(value)
        return out

    def _see(self, value: torch.Tensor) -> None:
        storage = value.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.largest = max(self.largest, size // value.element_size())
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.alive -= size
