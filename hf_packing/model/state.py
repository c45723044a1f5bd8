"""Packs for state-space, linear-attention and hybrid models on any hardware: their state restarts at each boundary.

A recurrent or convolutional layer carries a state from token to token. Fused kernels can reset it inside a packed row;
where none is installed, `restart_state` makes these layers run sequence by sequence, sequences of equal length as one
batch, while norms, MLPs, attention and the head work on the whole pack.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from ..errors import PackingError
from .segments import PackedMask, Segments, explicit_segments, segments_from_positions
from .unwrap import inner_model


__all__ = ["StateRestart", "restart_state"]

MIXER = re.compile(
    r"Rwkv(SelfAttention|FeedForward)|LightningAttention|LinearAttention|DeltaNet|DeltaAttention|ShortConv|RecurrentBlock|xLSTMLayer"
)
"""Class names of token mixers that hold no convolution of their own."""

OTHER_TOWER = re.compile(r"audio|vision|visual|speech|image|video|conformer")

BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "attention_mask")
"""Arguments that describe the whole pack; a sequence by itself needs none of them."""


def _is_mixer(module: torch.nn.Module) -> bool:
    convolves = any(isinstance(c, torch.nn.Conv1d) and c.kernel_size[0] > 1 for c in module.children())
    return convolves or MIXER.search(type(module).__name__) is not None


def _mixers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The outermost modules that hold a state; what is inside one runs with it."""
    found: dict[str, torch.nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(outer + ".") for outer in found)
        if not inside and not OTHER_TOWER.search(name) and _is_mixer(module):
            found[name] = module
    return list(found.values())


class _Remembering:
    """A checkpoint function whose replay sees the boundaries of its own batch."""

    def __init__(self, restart: StateRestart, checkpoint: Callable[..., Any]) -> None:
        self.restart = restart
        self.checkpoint = checkpoint

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        restart = self.restart
        remembered = (restart._segments, restart._shape)

        def replay(*inputs: Any, **options: Any) -> Any:
            now = (restart._segments, restart._shape)
            restart._segments, restart._shape = remembered
            try:
                return function(*inputs, **options)
            finally:
                restart._segments, restart._shape = now

        return self.checkpoint(replay, *args, **kwargs)


class StateRestart:
    """Layers that restart at each boundary; `remove()` gives the model its own layers back.

    Args:
        layers (`int`): how many layers were changed.
    """

    def __init__(self, model: torch.nn.Module, mixers: list[torch.nn.Module]) -> None:
        self.layers = len(mixers)
        self._segments: Segments | None = None
        self._shape = (0, 0)
        self._mixers = mixers
        self._handles = [model.register_forward_pre_hook(self._enter_model, with_kwargs=True)]
        self._layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        for layer in self._layers:
            self._handles.append(layer.register_forward_pre_hook(self._enter_layer, with_kwargs=True))
        for mixer in mixers:
            mixer.forward = self._restarting(mixer.forward)
            mixer.restarts_state = True  # type: ignore[assignment]

    def remove(self) -> None:
        """Undo everything."""
        for handle in self._handles:
            handle.remove()
        for layer in self._layers:
            checkpoint = getattr(layer, "_gradient_checkpointing_func", None)
            if isinstance(checkpoint, _Remembering):
                layer._gradient_checkpointing_func = checkpoint.checkpoint
        for mixer in self._mixers:
            vars(mixer).pop("forward", None)
            vars(mixer).pop("restarts_state", None)

    def _find(self, arguments: dict[str, Any], shape: tuple[int, int]) -> Segments | None:
        return explicit_segments(arguments, shape[0] * shape[1]) or segments_from_positions(
            arguments.get("position_ids"), shape
        )

    def _enter_model(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", kwargs.get("inputs_embeds", args[0] if args else None))
        self._shape = (ids.shape[0], ids.shape[1]) if isinstance(ids, torch.Tensor) else (0, 0)
        self._segments = self._find(kwargs, self._shape)

    def _enter_layer(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = self._find(kwargs, self._shape)
        self._segments = found if found is not None else self._segments
        # A checkpointed layer runs again in the backward pass, maybe after another batch's forward, and Transformers
        # replays its code without its hooks: what it replays must bring its boundaries along.
        checkpoint = getattr(module, "_gradient_checkpointing_func", None)
        if checkpoint is not None and not isinstance(checkpoint, _Remembering):
            module._gradient_checkpointing_func = _Remembering(self, checkpoint)  # type: ignore[assignment]

    def _restarting(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def by_sequence(*args: Any, **kwargs: Any) -> Any:
            segments = self._segments
            if segments is None or segments.row_starts_only:
                return forward(*args, **kwargs)
            return _run_by_sequence(forward, segments, self._shape, args, kwargs)

        return by_sequence


def _groups(segments: Segments) -> list[torch.Tensor]:
    """Tokens of all sequences of one length, `[n, l]`, for each length.

    For lengths [2, 3, 2] these are [[0, 1], [5, 6]] and [[2, 3, 4]].
    """
    device = segments.cu_seqlens.device
    firsts: dict[int, list[int]] = {}
    place = 0
    for length in segments.lengths:
        firsts.setdefault(length, []).append(place)
        place += length
    return [
        torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)[None, :]
        for length, starts in firsts.items()
    ]


def _selected(value: Any, tokens: torch.Tensor, shape: tuple[int, int]) -> Any:
    """An argument for one group: what has an entry a token is gathered, the rest stays."""
    if isinstance(value, torch.Tensor) and value.ndim >= 2 and tuple(value.shape[:2]) == shape:
        return value.flatten(0, 1)[tokens]
    if isinstance(value, tuple):
        return tuple(_selected(part, tokens, shape) for part in value)
    return None if isinstance(value, PackedMask) else value


def _run_by_sequence(
    forward: Callable[..., Any],
    segments: Segments,
    shape: tuple[int, int],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    kwargs = {name: None if name in BOUNDARIES else value for name, value in kwargs.items()}
    groups = _groups(segments)
    order = torch.argsort(torch.cat([tokens.reshape(-1) for tokens in groups]))
    outputs = [
        forward(
            *(_selected(value, tokens, shape) for value in args),
            **{name: _selected(value, tokens, shape) for name, value in kwargs.items()},
        )
        for tokens in groups
    ]

    def joined(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([part.flatten(0, 1) for part in parts])[order].unflatten(0, shape)

    if isinstance(outputs[0], torch.Tensor):
        return joined(outputs)
    # Layers that also return weights or a state: those belong to single sequences and have no meaning for the pack.
    return (joined([output[0] for output in outputs]), *(None for _ in outputs[0][1:]))


def restart_state(model: torch.nn.Module) -> StateRestart:
    """Make the recurrent and convolutional layers of a model start anew at each sequence of a packed batch.

    Boundaries come from the batch, as for attention: explicit ones, else position_ids. Batches that are not packed run
    as before. Whether it isolates is proved by `check_isolation`, as always.

    Args:
        model: bare or wrapped; changed in place until `remove()`.

    Raises:
        PackingError: there is no such layer in the model.

    Example:

        >>> from transformers import MambaConfig, MambaForCausalLM
        >>> model = MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=32))
        >>> restart = restart_state(model)
        >>> restart.layers
        2
        >>> restart.remove()
    """
    inner = inner_model(model)
    mixers = _mixers(inner) if inner is not None else []
    if inner is None or not mixers:
        raise PackingError(f"{type(model).__name__} has no layer that carries a state; there is nothing to restart.")
    if any(getattr(mixer, "restarts_state", False) for mixer in mixers):
        raise PackingError(
            "The state of this model restarts already; remove() the first restart_state before another."
        )
    return StateRestart(inner, mixers)
