"""A FlashAttention 2 for CPUs: per-segment softmax attention behind the package's own signatures.

The fixture puts it where Transformers loads the package from, so its real flash_attention_2 path runs (mask handling,
detection of packed batches, offsets), and records what arrives at the kernel.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import PreTrainedModel
from transformers import modeling_flash_attention_utils as flash_utils


@dataclass
class Recorder:
    """Arguments of every varlen call, in order; `dense_calls` counts calls of the kernel without offsets."""

    cu_seqlens: list[torch.Tensor] = field(default_factory=list)
    max_lengths: list[Any] = field(default_factory=list)
    dtypes: list[torch.dtype] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)
    dense_calls: int = 0


def _softmax_attention(q, k, v, scale, causal, window, softcap):
    """Attention of one segment, written out: q `[l, H, D]`, k and v `[m, K, D]`."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = torch.einsum("lhd,mhd->hlm", q.float(), k.float()) * (scale or 1 / math.sqrt(q.shape[-1]))
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    # Bottom-right alignment, as FlashAttention 2.1 and newer have it.
    rows = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    columns = torch.arange(k.shape[0])[None, :]
    allowed = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    left, right = window
    if causal:
        right = 0
    if right >= 0:
        allowed &= columns <= rows + right
    if left >= 0:
        allowed &= columns >= rows - left
    scores = scores.masked_fill(~allowed, float("-inf"))
    weights = torch.nan_to_num(torch.softmax(scores, dim=-1))
    return torch.einsum("hlm,mhd->lhd", weights, v.float()).to(q.dtype)


def make_flash_functions(recorder: Recorder):
    """(flash_attn_func, flash_attn_varlen_func) with the signatures of FlashAttention 2."""

    def flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        deterministic=False,
    ):
        recorder.cu_seqlens.append(cu_seqlens_q.clone())
        recorder.max_lengths.append(max_seqlen_q)
        recorder.dtypes.append(cu_seqlens_q.dtype)
        recorder.windows.append(tuple(window_size))
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32, "FlashAttention takes int32 offsets"
        q_offsets, k_offsets = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        # Tokens outside every segment keep whatever was in memory: NaN shows it.
        out = torch.full_like(q, float("nan"))
        pieces, places = [], []
        for q0, q1, k0, k1 in zip(q_offsets, q_offsets[1:], k_offsets, k_offsets[1:]):
            assert q1 - q0 <= int(max_seqlen_q) and k1 - k0 <= int(max_seqlen_k), "a segment is longer than max_seqlen"
            piece = _softmax_attention(q[q0:q1], k[k0:k1], v[k0:k1], softmax_scale, causal, window_size, softcap)
            pieces.append(piece)
            places.append(torch.arange(q0, q1))
        return out.index_copy(0, torch.cat(places), torch.cat(pieces))

    def flash_attn_func(
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        deterministic=False,
    ):
        recorder.dense_calls += 1
        rows = [_softmax_attention(*row, softmax_scale, causal, window_size, softcap) for row in zip(q, k, v)]
        return torch.stack(rows)

    return flash_attn_func, flash_attn_varlen_func


@contextmanager
def flash_reference() -> Iterator[Recorder]:
    """Inside, `attn_implementation="flash_attention_2"` loads and runs on a CPU; gives the recorder."""
    recorder = Recorder()
    dense, varlen = make_flash_functions(recorder)
    functions = (dense, varlen, None, flash_utils._pad_input, flash_utils._unpad_input)
    known = (
        "_loaded_implementation",
        "_flash_fn",
        "_flash_varlen_fn",
        "_flash_with_kvcache_fn",
        "_pad_fn",
        "_unpad_fn",
        "_process_flash_kwargs_fn",
        "_process_with_kvcache_kwargs_fn",
    )
    # Two models import the forward themselves, and only where the package is installed.
    own_imports = [importlib.import_module(f"transformers.models.{n}.modeling_{n}") for n in ("falcon", "gpt_neo")]
    with ExitStack() as stack:
        for module in own_imports:
            forward = flash_utils._flash_attention_forward
            stack.enter_context(mock.patch.object(module, "_flash_attention_forward", forward, create=True))
        stack.enter_context(mock.patch.multiple(flash_utils, **dict.fromkeys(known)))
        stack.enter_context(mock.patch.object(flash_utils, "_lazy_imports", lambda *args, **kwargs: functions))
        stack.enter_context(
            mock.patch.object(PreTrainedModel, "_flash_attn_can_dispatch", lambda self, *args, **kwargs: True)
        )
        yield recorder


@pytest.fixture(name="flash_reference")
def flash_reference_fixture() -> Iterator[Recorder]:
    with flash_reference() as recorder:
        yield recorder
