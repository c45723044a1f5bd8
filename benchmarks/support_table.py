"""Which model family isolates packed sequences with which attention: measured, and written to docs/support.md.

    python benchmarks/support_table.py             # every family, minutes; writes docs/support.md
    python benchmarks/support_table.py llama opt   # prints the rows of these families

For each family and attention: the verdict of check_isolation, and beside it the truth, measured without it by running
every sequence of a packed batch alone. tests/model/test_families.py runs the same and fails on any difference.
flash_attention_2 is Transformers' own path over a CPU reference of its kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import transformers


ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.families import LEFT_OUT, build, families, small_config  # noqa: E402 - the checkout goes first
from hf_packing.model.isolation import IsolationReport, check_isolation  # noqa: E402
from hf_packing.model.state import restart_state  # noqa: E402
from hf_packing.model.support import ModelSupport, inspect_model  # noqa: E402
from tests.model.flash_reference import flash_reference  # noqa: E402


__all__ = ["ATTENTIONS", "BOUND", "Row", "rows_of"]

ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "packed_varlen", "restart_state")
"""The last one is no attention: restart_state on top of packed_varlen (eager where that is not offered)."""

FORMS = ("position_ids", "explicit")

BOUND = 1e-4
"""Largest difference, relative to the largest logit, that rounding explains; a real leak is above ten times this."""

STARTS_AFTER_PADDING = {"roberta": 1, "xlm-roberta": 1}
"""Families whose positions start at padding_idx + 1 (padding_idx is 0 here)."""


@dataclass(frozen=True)
class Row:
    """One family with one attention: verdict and truth, or why it cannot be built."""

    family: str
    attention: str
    report: IsolationReport | None = None
    support: ModelSupport | None = None
    truth: dict[str, float | str] | None = None
    refusal: str | None = None

    @property
    def truly_isolated(self) -> bool:
        assert self.truth is not None
        return any(isinstance(value, float) and value <= BOUND for value in self.truth.values())

    @property
    def right(self) -> bool:
        """The verdict is the truth, and the boundaries it names are ones that isolate."""
        assert self.report is not None and self.truth is not None
        if self.report.isolated != self.truly_isolated:
            return False
        value = self.truth[self.report.boundaries] if self.report.boundaries else 0.0
        return isinstance(value, float) and value <= BOUND


def _lengths(family: str) -> list[int]:
    """Single tokens first and in the middle, and one sequence that is longer than the window or chunk."""
    config = small_config(family)
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "window_size")]
    window = max((size for size in sizes if isinstance(size, int) and 10 < size <= 512), default=0)
    return [1, 7, 1, max(window + 5, 19), 4]


def _packed(lengths: list[int], start: int, form: str) -> dict[str, object]:
    """A packed batch written out with plain Python."""
    ids = torch.randint(3, 128, (1, sum(lengths)), generator=torch.Generator().manual_seed(1))
    positions = [start + place for length in lengths for place in range(length)]
    batch: dict[str, object] = {"input_ids": ids, "position_ids": torch.tensor([positions]), "use_cache": False}
    if form == "explicit":
        offsets = torch.tensor([sum(lengths[:n]) for n in range(len(lengths) + 1)], dtype=torch.int32)
        numbers = [n for n, length in enumerate(lengths) for _ in range(length)]
        batch |= {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets.clone()}
        batch |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
        batch |= {"seq_idx": torch.tensor([numbers], dtype=torch.int32)}
    return batch


def _model(family: str, attention: str) -> torch.nn.Module:
    """The family with an attention; with its state restarted for "restart_state"."""
    if attention != "restart_state":
        return build(family, attention)
    try:
        model = build(family, "packed_varlen")
        usable = inspect_model(model).can_switch_attention
        with torch.no_grad():
            model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
    except (KeyError, ValueError):  # not offered, or the family's attention needs what packed_varlen refuses
        usable = False
    if not usable:
        model = build(family, "eager")
    restart_state(model)
    return model


def _truth(family: str, attention: str, form: str) -> float | str:
    """Largest difference between packed and alone over the largest logit, or the error of the packed run."""
    lengths = _lengths(family)
    batch = _packed(lengths, STARTS_AFTER_PADDING.get(family, 0), form)
    model = _model(family, attention).eval()
    # packed_varlen must give what the model's own attention gives.
    reference = build(family, "eager").eval() if attention in ATTENTIONS[3:] else model
    ids = batch["input_ids"]
    assert isinstance(ids, torch.Tensor)
    with torch.no_grad():
        pieces = ids.split(lengths, dim=1)
        alone = torch.cat([reference(input_ids=piece, use_cache=False).logits[0] for piece in pieces])
        try:
            packed = model(**batch).logits[0]
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    if packed.shape != alone.shape:
        return f"{packed.shape[0]} outputs for {alone.shape[0]} tokens"
    return float((packed - alone).abs().max() / alone.abs().max())


def rows_of(family: str) -> Iterator[Row]:
    """The rows of one family; the first refusal to build with eager ends it."""
    for attention in ATTENTIONS:
        with flash_reference() if attention == "flash_attention_2" else nullcontext():
            try:
                model = _model(family, attention)
            except Exception as error:
                yield Row(family, attention, refusal=f"{type(error).__name__}: {error}".splitlines()[0])
                if attention == "eager":
                    return
                continue
            try:
                with torch.no_grad():
                    model.eval()(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
            except Exception as error:
                if not check_isolation(model).isolated:
                    yield Row(family, attention, refusal=f"one sequence does not run: {type(error).__name__}: {error}")
                    continue
            report = check_isolation(model)
            truth = {form: _truth(family, attention, form) for form in FORMS}
            yield Row(family, attention, report, inspect_model(model), truth)


BY_HAND = """## What switches isolation off by hand

Batches of this package's collator do none of these. A batch of your own can be proved with
`check_isolation(model, batch=batch)`.

- An `attention_mask` of ones beside restarting positions: eager and sdpa then skip the detection of sequences. On
  flash_attention_2 a mask with pads in it does the same. packed_varlen ignores a mask of ones.
- `use_cache` left on: eager and sdpa build the mask of a generation. packed_varlen isolates all the same.
- Rows of several sequences (`[B > 1, L]`) on flash_attention_2 without explicit boundaries: rows are read as one
  sequence each. eager, sdpa and packed_varlen take them.
- Positions that do not start at 0 (or at padding_idx + 1) on flash_attention_2: the first tokens fall out of every
  segment.
- Positions with three axes (multimodal RoPE) jump inside a sequence: only explicit boundaries are right.
- Dynamic and longrope RoPE change all frequencies once any sequence in the batch is longer than the original maximum:
  `inspect_model(model).max_pack_length` says where, and packs that long must not mix sequences.

## Which kernel packed_varlen runs

The first of these that supports everything the call uses; the choice and its reasons are logged once.

1. FlashAttention, where the package is installed or a Hub kernel was handed to `use_flash_kernel`.
2. `torch.nn.attention.varlen`: CUDA with capability 8.0 or newer, fp16 and bf16.
3. SDPA over nested tensors: any CUDA device, fp32 too; no window, soft cap or sink.
4. flex_attention: CUDA with triton; windows, soft caps and sinks.
5. One causal SDPA a sequence: CPU, MPS, and whatever the others refuse (attention dropout, for example).

The choice is tested on a CPU with the hardware described to it; 1, 3 and 4 are tested there against a written-out
reference as far as a CPU build runs them. None has run on a GPU yet: `benchmarks/gpu_check.py` does that.
""".splitlines()

SIGNS = {"position_ids": "yes", "explicit": "yes, explicit"}


def _cell(row: Row | None) -> str:
    if row is None or row.refusal is not None or row.report is None:
        return "not offered"
    if row.report.isolated:
        return SIGNS[str(row.report.boundaries)]
    return f"**no** ({row.report.leak:.1g})" if row.report.leak == row.report.leak else "**no** (does not run)"


def _page(rows: list[Row]) -> str:
    built = sorted({row.family for row in rows if row.report is not None})
    failed = {row.family: row.refusal for row in rows if row.attention == "eager" and row.refusal}
    wrong = [row for row in rows if row.report is not None and not row.right]
    lines = [
        "# Which models can be packed",
        "",
        "Made by `python benchmarks/support_table.py` with "
        f"transformers {transformers.__version__}, torch {torch.__version__} (CPU), on {date.today().isoformat()}: "
        "small random models of every causal-LM family that builds without a download, packed with sequences of 1, 7, "
        "1, 19 (or just above the model's window) and 4 tokens.",
        "",
        "- **yes**: no sequence sees another; restarting `position_ids` are enough.",
        '- **yes, explicit**: needs `boundaries="explicit"` (offsets in the batch).',
        "- **no (x)**: changing a sequence changes another one's outputs by the fraction x; the trainers refuse, or "
        'train one sequence a row with `isolation_check="group"`.',
        "- **not offered**: Transformers does not load the family with that attention (restart_state: no state).",
        "- **restart_state**: packed_varlen, and the layers that carry a state run sequence by sequence.",
        "",
        "`flash_attention_2` ran as Transformers' own path over a CPU reference of the kernel. No kernel for "
        "recurrent layers was installed. Nothing on this page ran on a GPU.",
        "",
        f"{len(built)} families; the verdict of `check_isolation` differs from the truth (each sequence run alone) in "
        f"{len(wrong)} of {sum(row.report is not None for row in rows)} cases.",
        "",
        "| family | " + " | ".join(ATTENTIONS) + " | notes |",
        "|---|" + "---|" * (len(ATTENTIONS) + 1),
    ]
    table = {(row.family, row.attention): row for row in rows}
    for family in built:
        support = table[family, "eager"].support
        notes = []
        if support is not None and support.carries_state:
            notes.append("carries a state")
        if support is not None and support.position_ids_start:
            notes.append(f"positions start at {support.position_ids_start} (padding_idx + 1)")
        if support is not None and not support.can_switch_attention:
            notes.append("attention of its own")
        cells = [_cell(table.get((family, attention))) for attention in ATTENTIONS]
        lines.append(f"| {family} | " + " | ".join(cells) + f" | {'; '.join(notes)} |")
    lines += ["", *BY_HAND, "", "## Not measured", ""]
    lines += [f"- {family}: {reason}" for family, reason in sorted(failed.items())]
    for reason in sorted(set(LEFT_OUT.values())):
        lines.append(f"- {', '.join(sorted(name for name, why in LEFT_OUT.items() if why == reason))}: {reason}")
    return "\n".join([*lines, ""])


def main() -> None:
    transformers.logging.set_verbosity_error()
    names = sys.argv[1:] or families()
    rows: list[Row] = []
    for number, name in enumerate(names):
        rows += rows_of(name)
        print(
            f"{number + 1}/{len(names)} {name}: " + ", ".join(_cell(r) for r in rows if r.family == name), flush=True
        )
    for row in rows:
        if row.report is not None and not row.right:
            print("WRONG", row.family, row.attention, row.report, row.truth)
    if not sys.argv[1:]:
        (ROOT / "docs" / "support.md").write_text(_page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
