"""The only place that converts between sequence lengths, position_ids, cu_seqlens and seq_idx.

Shape legend: S sequences in a batch, T tokens in all (T = sum of the S lengths), B rows of L slots.

Lengths live on the host (NumPy, where batches are built); positions may live on any device (torch, where a model
meets them). One example runs through this page: lengths [3, 2]

    position_ids  [0, 1, 2, 0, 1]     every sequence restarts
    cu_seqlens    [0, 3, 5]           sequence s is the tokens cu_seqlens[s] : cu_seqlens[s + 1]
    seq_idx       [0, 0, 0, 1, 1]     which sequence a token belongs to
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..errors import PackingError


__all__ = [
    "cu_seqlens_from_lengths",
    "cu_seqlens_from_position_ids",
    "position_ids_from_lengths",
    "seq_idx_from_lengths",
    "starts_from_position_ids",
]


def _checked_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    lengths_S = np.asarray(lengths, dtype=np.int64)
    if lengths_S.ndim != 1:
        raise PackingError(f"Sequence lengths must be a 1-D list, got {lengths_S.ndim} dimensions.")
    if lengths_S.size and lengths_S.min() < 1:
        at = int(lengths_S.argmin())
        raise PackingError(
            f"Sequence {at} (counting from 0) of the batch has length {int(lengths_S[at])}; every segment needs "
            "at least one token, because a repeated offset in cu_seqlens breaks varlen kernels. Drop empty sequences "
            "first."
        )
    return lengths_S


def position_ids_from_lengths(lengths: ArrayLike, start: int = 0) -> NDArray[np.int64]:
    """Positions that restart at `start` for every sequence.

    Args:
        lengths (`[S]`): tokens of each sequence, each at least 1.
        start (`int`, *optional*, defaults to `0`): position of the first token (RoBERTa-like models: padding_idx + 1).

    Returns:
        int64 `[T]`.

    Example:

        >>> position_ids_from_lengths([3, 2]).tolist()
        [0, 1, 2, 0, 1]
    """
    lengths_S = _checked_lengths(lengths)
    # For [3, 2]: arange(5) = [0, 1, 2, 3, 4], first token of each sequence = [0, 0, 0, 3, 3]; the difference restarts.
    ends_S = np.cumsum(lengths_S)
    firsts_T = np.repeat(ends_S - lengths_S - start, lengths_S)
    return np.arange(firsts_T.size, dtype=np.int64) - firsts_T


def cu_seqlens_from_lengths(lengths: ArrayLike) -> NDArray[np.int32]:
    """Offsets `[0, l1, l1 + l2, ...]`, int32 `[S + 1]`, as varlen attention kernels take them.

    Example:

        >>> cu_seqlens_from_lengths([3, 2]).tolist()
        [0, 3, 5]
    """
    lengths_S = _checked_lengths(lengths)
    total = int(lengths_S.sum())
    if total > np.iinfo(np.int32).max:
        raise PackingError(
            f"One batch of {total} tokens does not fit the int32 offsets of varlen kernels (limit {2**31 - 1}); "
            "use a smaller batch."
        )
    offsets = np.zeros(lengths_S.size + 1, dtype=np.int32)
    np.cumsum(lengths_S, out=offsets[1:])
    return offsets


def seq_idx_from_lengths(lengths: ArrayLike) -> NDArray[np.int32]:
    """Number of the sequence each token belongs to, counting from 0, int32 `[T]`.

    Example:

        >>> seq_idx_from_lengths([3, 2]).tolist()
        [0, 0, 0, 1, 1]
    """
    lengths_S = _checked_lengths(lengths)
    return np.repeat(np.arange(lengths_S.size, dtype=np.int32), lengths_S)


def starts_from_position_ids(position_ids: torch.Tensor) -> torch.Tensor:
    """Where a sequence begins: the first slot of every row, and every slot whose position is not the last one plus 1.

    Args:
        position_ids (`[B, L]` or `[T]`, integer): on any device.

    Returns:
        bool, of the same shape.

    Example:

        >>> starts_from_position_ids(torch.tensor([[0, 1, 2, 0, 1]])).int().tolist()
        [[1, 0, 0, 1, 0]]
        >>> starts_from_position_ids(torch.tensor([[3, 4, 5, 7, 8]])).int().tolist()  # a row may begin above 0
        [[1, 0, 0, 1, 0]]
    """
    starts = torch.ones_like(position_ids, dtype=torch.bool)
    starts[..., 1:] = position_ids[..., 1:] != position_ids[..., :-1] + 1
    return starts


def cu_seqlens_from_position_ids(position_ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Offsets over the flattened slots, and the longest segment as a Python int (kernels reject a tensor there).

    Args:
        position_ids (`[B, L]` or `[T]`, integer): on any device; reading the offsets costs one device sync.

    Returns:
        int32 `[S + 1]` on the same device, and the longest segment.

    Example:

        >>> cu_seqlens_from_position_ids(torch.tensor([[5, 6, 7, 0, 1, 2]]))
        (tensor([0, 3, 6], dtype=torch.int32), 3)
        >>> cu_seqlens_from_position_ids(torch.tensor([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]]))[0].tolist()
        [0, 3, 5, 7, 10]
    """
    starts_T = starts_from_position_ids(position_ids).reshape(-1)
    firsts_S = starts_T.nonzero().reshape(-1)
    offsets = torch.empty(firsts_S.numel() + 1, dtype=torch.int32, device=position_ids.device)
    offsets[:-1] = firsts_S
    offsets[-1] = starts_T.numel()
    longest = int((offsets[1:] - offsets[:-1]).max()) if firsts_S.numel() else 0
    return offsets, longest
