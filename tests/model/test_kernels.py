"""Which kernel runs, decided without the hardware; and every kernel that a CPU can run against one written out."""

import inspect
import logging

import pytest
import torch

from hf_packing.errors import PackingError
from hf_packing.model import gpu_kernels, kernels
from hf_packing.model.call import AttentionCall, Hardware, Options
from hf_packing.model.segments import Segments
from tests.model.flash_reference import Recorder, make_flash_functions


CPU = Hardware("cpu")
MPS = Hardware("mps")
T4 = Hardware("cuda", (7, 5), triton=True)
T4_WINDOWS = Hardware("cuda", (7, 5), triton=False)
A100 = Hardware("cuda", (8, 0), triton=True)
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def plain_flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False):
    raise AssertionError("only its signature is read here")


def full_flash(q, k, v, cu_seqlens_q, dropout_p=0.0, window_size=(-1, -1), softcap=0.0, s_aux=None):
    raise AssertionError("only its signature is read here")


A100_PLAIN_FLASH = Hardware("cuda", (8, 0), plain_flash, True)
H100_FLASH = Hardware("cuda", (9, 0), full_flash, True)


@pytest.mark.parametrize(
    ("hardware", "call", "expected"),
    [
        (CPU, AttentionCall(FP32, 64, 64), "per_sequence_sdpa"),
        (MPS, AttentionCall(FP16, 64, 64, window=128), "per_sequence_sdpa"),
        (T4, AttentionCall(FP16, 64, 64), "nested_sdpa"),
        (T4, AttentionCall(FP32, 64, 64), "nested_sdpa"),
        (T4, AttentionCall(FP16, 64, 64, window=128), "flex_attention"),
        (T4, AttentionCall(FP16, 64, 64, softcap=50.0), "flex_attention"),
        (T4, AttentionCall(FP16, 64, 64, sinks=True), "flex_attention"),
        (T4, AttentionCall(FP16, 96, 64), "flex_attention"),
        (T4, AttentionCall(FP16, 64, 64, dropout=True), "per_sequence_sdpa"),
        (T4_WINDOWS, AttentionCall(FP16, 64, 64, window=128), "per_sequence_sdpa"),
        (A100, AttentionCall(BF16, 64, 64), "torch_varlen"),
        (A100, AttentionCall(BF16, 64, 64, window=128), "torch_varlen"),
        (A100, AttentionCall(BF16, 192, 128), "torch_varlen"),
        (A100, AttentionCall(BF16, 512, 512), "nested_sdpa"),
        (A100, AttentionCall(FP32, 64, 64), "nested_sdpa"),
        (A100, AttentionCall(FP32, 64, 64, window=128), "flex_attention"),
        (A100, AttentionCall(BF16, 64, 64, softcap=50.0), "flex_attention"),
        (A100_PLAIN_FLASH, AttentionCall(BF16, 64, 64), "flash_attention"),
        (A100_PLAIN_FLASH, AttentionCall(BF16, 64, 64, window=128), "torch_varlen"),
        (A100_PLAIN_FLASH, AttentionCall(FP32, 64, 64), "nested_sdpa"),
        (A100_PLAIN_FLASH, AttentionCall(BF16, 64, 64, sinks=True), "flex_attention"),
        (H100_FLASH, AttentionCall(BF16, 64, 64, 128, 30.0, sinks=True, dropout=True), "flash_attention"),
    ],
)
def test_the_first_kernel_that_supports_everything_runs(hardware, call, expected):
    assert kernels.choose_kernel(call, hardware) == expected


def test_the_decision_and_its_reasons_are_logged_once(caplog):
    kernels._choose.cache_clear()
    with caplog.at_level(logging.INFO, logger="hf_packing.model.kernels"):
        for _ in range(3):
            kernels.choose_kernel(AttentionCall(FP16, 64, 64, window=8), T4)
    (record,) = caplog.records
    for part in ("runs flex_attention on cuda", "no FlashAttention package is installed", "it has no window"):
        assert part in record.getMessage()


def test_a_forced_kernel_that_cannot_run_the_call_is_refused():
    message = r"'torch_varlen' was forced.*softcap"
    with kernels.force_kernel("torch_varlen"), pytest.raises(PackingError, match=message):
        kernels.choose_kernel(AttentionCall(BF16, 64, 64, softcap=1.0), A100)
    with pytest.raises(PackingError, match="There is no kernel 'fast'"), kernels.force_kernel("fast"):
        pass


def test_use_flash_kernel_takes_a_module_or_a_function():
    with pytest.raises(PackingError, match="takes a module with flash_attn_varlen_func"):
        kernels.use_flash_kernel(3)
    try:
        kernels.use_flash_kernel(full_flash)
        assert kernels.hardware_of("cpu").flash is full_flash
    finally:
        kernels.use_flash_kernel(None)
    assert kernels.hardware_of("cpu").flash is None


LENGTHS = (3, 1, 30, 1, 2, 2, 17, 8)


def tensors(value_size=8, heads=4, grouped=2, head_size=8):
    generator = torch.Generator().manual_seed(0)
    total = sum(LENGTHS)
    shapes = ((heads, head_size), (grouped, head_size), (grouped, min(head_size, value_size)))
    q, k, v = (torch.randn(total, *shape, generator=generator, requires_grad=True) for shape in shapes)
    offsets = torch.tensor([sum(LENGTHS[:n]) for n in range(len(LENGTHS) + 1)], dtype=torch.int32)
    return q, k, v, Segments(offsets, max(LENGTHS))


def written_out(q, k, v, options):
    """One sequence at a time, one head at a time, in fp64."""
    outputs = []
    groups = q.shape[1] // k.shape[1]
    for start, stop in zip(*(torch.tensor((0, *LENGTHS)).cumsum(0)[s].tolist() for s in (slice(-1), slice(1, None)))):
        heads = []
        for head in range(q.shape[1]):
            a, b, c = (
                q[start:stop, head].double(),
                k[start:stop, head // groups].double(),
                v[start:stop, head // groups],
            )
            scores = a @ b.T * (options.scale or q.shape[-1] ** -0.5)
            if options.softcap:
                scores = options.softcap * torch.tanh(scores / options.softcap)
            distance = torch.arange(stop - start)[:, None] - torch.arange(stop - start)[None, :]
            hidden = (distance < 0) | (distance >= (options.window or 10**9))
            exps = torch.exp(scores).masked_fill(hidden, 0)
            total = exps.sum(-1, keepdim=True)
            if options.sinks is not None:
                total = total + torch.exp(options.sinks[head].double())
            heads.append((exps / total) @ c.double())
        outputs.append(torch.stack(heads, dim=1))
    return torch.cat(outputs).float()


def assert_same(kernel, options, value_size=8, backward=True, **shape):
    q, k, v, segments = tensors(value_size, **shape)
    if not backward:
        q, k, v = q.detach(), k.detach(), v.detach()
    ours, theirs = kernel(q, k, v, segments, options), written_out(q, k, v, options)
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)
    if backward:
        inputs = [q, k, v] + ([options.sinks] if options.sinks is not None else [])
        weights = torch.randn_like(theirs)
        for a, b in zip(torch.autograd.grad(ours, inputs, weights), torch.autograd.grad(theirs, inputs, weights)):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def sinks():
    return torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(scale=0.7),
        Options(window=1),
        Options(window=4),
        Options(window=20),
        Options(softcap=0.8, window=5),
        Options(sinks=sinks(), window=5),
        Options(sinks=sinks(), softcap=0.8),
    ],
)
def test_per_sequence(options):
    assert_same(kernels.KERNELS["per_sequence_sdpa"].run, options)
    assert_same(kernels.KERNELS["per_sequence_sdpa"].run, options, value_size=6, grouped=1)


def causal_by_parts(query, key, value, is_causal, scale):
    """What torch's fused kernels do with nested tensors `[S, H, (l), D]`, which a CPU build leaves out."""
    assert is_causal and query.is_nested
    plain = torch.nn.functional.softmax
    parts = []
    for q, k, v in zip(query.unbind(), key.unbind(), value.unbind()):
        hidden = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)
        parts.append((plain((q @ k.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf), -1) @ v).transpose(0, 1))
    return torch.nested.nested_tensor_from_jagged(torch.cat(parts), query.offsets()).transpose(1, 2)


def test_nested_attention_lays_the_sequences_out(monkeypatch):
    monkeypatch.setattr(gpu_kernels.F, "scaled_dot_product_attention", causal_by_parts)
    assert_same(gpu_kernels.nested_attention, Options())
    assert_same(gpu_kernels.nested_attention, Options(scale=0.7), grouped=4, head_size=6)


@pytest.mark.parametrize(
    "options",
    [Options(), Options(scale=0.7, window=4), Options(softcap=0.8), Options(sinks=sinks(), window=5)],
)
def test_flex_attention_forward(options):
    # On a CPU torch has no backward for it; benchmarks/gpu_check.py compares that.
    with torch.no_grad():
        assert_same(gpu_kernels.flex_attention, options, backward=False)


def test_flash_attention_gets_what_its_package_expects():
    recorder = Recorder()
    _, varlen = make_flash_functions(recorder)
    for options in (Options(flash=varlen), Options(flash=varlen, window=4, softcap=0.8, scale=0.7)):
        assert_same(gpu_kernels.flash_attention, options)
    assert_same(gpu_kernels.flash_attention, Options(flash=varlen), value_size=6)
    assert recorder.windows == [(-1, -1), (3, 0), (-1, -1)]
    assert all(dtype == torch.int32 for dtype in recorder.dtypes)
    assert all(type(longest) is int for longest in recorder.max_lengths)


@pytest.mark.parametrize(("head", "value", "window"), [(64, 64, None), (60, 40, 128)])
def test_torch_varlen_fits_the_operator(head, value, window):
    # Tensors without data run the operator's fake implementation, which checks shapes and arguments.
    shapes = ((40, 8, head), (40, 2, head), (40, 2, value))
    q, k, v = (torch.empty(shape, device="meta", dtype=BF16) for shape in shapes)
    offsets = torch.empty(6, device="meta", dtype=torch.int32)
    out = gpu_kernels.torch_varlen(q, k, v, Segments(offsets, 20), Options(window=window))
    assert out.shape == (40, 8, value)
    assert out.dtype == BF16


def test_every_kernel_takes_the_same_arguments():
    names = {name: list(inspect.signature(kernel.run).parameters) for name, kernel in kernels.KERNELS.items()}
    assert len(names) == 5
    assert all(parameters == ["query", "key", "value", "segments", "options"] for parameters in names.values())
