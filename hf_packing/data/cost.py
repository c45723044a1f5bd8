"""What a sequence costs to train on: a part that grows with its length, and attention, which grows with its square."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import PackingError


__all__ = ["attention_cost", "pack_sums"]

# Feed-forward blocks with these activations have three matrices (gate, up, down), the others two (up, down).
_GATED = ("silu", "swish", "gelu_pytorch_tanh", "swiglu", "geglu")


class _Config(Protocol):
    def get_text_config(self) -> Any: ...


def attention_cost(config: _Config, max_length: int | None = None) -> tuple[float, float]:
    """Coefficients (a, b) of the forward cost a·l + b·l² of one sequence of l tokens, in floating-point operations.

    a is twice the weights a token passes through (projections, feed-forward, output head; of a mixture, the experts a
    token is sent to); b is 2·heads·head_dim for every layer with full causal attention (scores and weighted values,
    2·l²·heads·head_dim each, half of it above the diagonal). A layer with a sliding window costs
    4·window·heads·head_dim a token instead; a layer without attention (linear, state space) costs its projections
    alone. The backward pass multiplies both by the same factor, so the ratio stands.

    Args:
        config (`PreTrainedConfig`): a Transformers model config; of a composite one, the text part is read.
        max_length (`int`, *optional*): longest sequence; a window at least this long is full attention.

    Returns:
        `(a, b)`, floats.

    Raises:
        PackingError: the config names no hidden size, layers or attention heads.

    Example:

        >>> from transformers import LlamaConfig
        >>> a, b = attention_cost(LlamaConfig())  # Llama 7B: 6.6 billion weights behind the embedding
        >>> round(a / 2 / 1e9, 1), b == 2 * 32 * 4096
        (6.6, True)
    """
    text = config.get_text_config()
    hidden = _number(text, "hidden_size")
    layers = _number(text, "num_hidden_layers")
    heads = _number(text, "num_attention_heads")
    head_dim = getattr(text, "head_dim", None) or hidden // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    width = heads * head_dim

    projections = hidden * (2 * width + 2 * kv_heads * head_dim)
    weights = layers * (projections + hidden * _feed_forward_width(text, hidden)) + hidden * text.vocab_size
    full, windowed = _attention_layers(text, layers, max_length)
    window = getattr(text, "sliding_window", None) or 0
    return float(2 * weights + 4 * windowed * window * width), float(2 * full * width)


def _number(config: Any, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int) or value < 1:
        raise PackingError(
            f"{type(config).__name__} has {name}={value!r}; the cost of a sequence needs a positive integer there. "
            "Pass cost=(a, b), the coefficients of a·l + b·l², by hand."
        )
    return value


def _feed_forward_width(text: Any, hidden: int) -> int:
    """Feed-forward weights a token passes through in one layer, divided by the hidden size."""
    inner = getattr(text, "intermediate_size", None) or getattr(text, "ffn_dim", None)
    names = ("hidden_activation", "hidden_act", "activation_function")
    activations = [getattr(text, name, None) for name in names]
    matrices = 3 if any(activation in _GATED for activation in activations) else 2
    experts = getattr(text, "num_experts_per_tok", None)
    if experts:
        inner = experts * (getattr(text, "moe_intermediate_size", None) or inner or 4 * hidden)
        inner += getattr(text, "shared_expert_intermediate_size", None) or 0
    return matrices * (inner or 4 * hidden)


def _attention_layers(text: Any, layers: int, max_length: int | None) -> tuple[int, int]:
    """How many layers attend to the whole sequence, and how many to a window of it."""
    window = getattr(text, "sliding_window", None) or 0
    short = window > 0 and (max_length is None or window < max_length)
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        windowed = layers if short and getattr(text, "use_sliding_window", True) else 0
        return layers - windowed, windowed
    sliding = sum(kind == "sliding_attention" for kind in kinds)
    full = sum(kind in ("full_attention", "attention", "hybrid") for kind in kinds)
    return (full, sliding) if short else (full + sliding, 0)


def pack_sums(
    lengths: NDArray[np.int64], pack_offsets: NDArray[np.int64], block: int = 1 << 20
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Σl and Σl² of every pack, int64 `[P]` each.

    Args:
        lengths (int64 `[S]`): tokens of every sequence, pack after pack.
        pack_offsets (int64 `[P + 1]`): pack p holds the sequences pack_offsets[p] : pack_offsets[p + 1].
        block (`int`): packs computed at once, which bounds the memory beside the result.

    Example:

        >>> tokens, squares = pack_sums(np.array([3, 2, 4]), np.array([0, 2, 3]))
        >>> tokens.tolist(), squares.tolist()
        ([5, 4], [13, 16])
    """
    packs = pack_offsets.size - 1
    tokens, squares = np.empty(packs, np.int64), np.empty(packs, np.int64)
    for first in range(0, packs, block):
        offsets = pack_offsets[first : first + block + 1]
        lengths_S = lengths[offsets[0] : offsets[-1]].astype(np.int64, copy=False)
        ends = offsets - offsets[0]
        for sums, values in ((tokens, lengths_S), (squares, lengths_S * lengths_S)):
            # Running sums of integers are exact, and unlike reduceat they give an empty pack 0.
            running = np.zeros(values.size + 1, np.int64)
            np.cumsum(values, out=running[1:])
            sums[first : first + offsets.size - 1] = np.diff(running[ends])
    return tokens, squares
