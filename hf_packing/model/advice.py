"""What a user can do about a model that is, or is not, isolated."""

from __future__ import annotations

from typing import Protocol

from .attention import NAME
from .support import ModelSupport


__all__ = ["advice_for"]


class Measured(Protocol):
    """The numbers an advice quotes."""

    @property
    def leak(self) -> float: ...

    @property
    def gradient_leak(self) -> float: ...

    @property
    def mismatch(self) -> float: ...

    @property
    def leak_bound(self) -> float: ...

    @property
    def alone_bound(self) -> float: ...


def _finding(found: Measured, errors: dict[str, str | None]) -> str:
    if all(errors.values()):
        return "The model does not run on packs: " + " / ".join(f"{form}: {text}" for form, text in errors.items())
    if found.mismatch <= found.alone_bound and not (found.leak > found.leak_bound):
        return "Nothing leaked in the probe, but the model cannot be trusted with this setting."
    if found.leak > found.leak_bound:
        return (
            f"Sequences leak into each other: changing one changes another's outputs by {found.leak:.2g} "
            f"(rounding explains {found.leak_bound:.0e})."
        )
    if found.gradient_leak > found.leak_bound:
        return f"Gradients leak: another sequence's embeddings get {found.gradient_leak:.2g} of the gradient."
    return (
        f"A sequence in a pack comes out {found.mismatch:.2g} away from what it gives alone (rounding explains "
        f"{found.alone_bound:.0e}): its positions or its attention pattern are wrong."
    )


def _remedy(support: ModelSupport) -> str:
    group = 'isolation_check="group" (one sequence a row, like lengths together) trains it right.'
    if support.drops_positions is not None:
        return (
            f"PEFT's {support.drops_positions} puts virtual tokens before each row and drops position_ids: use LoRA "
            f"or another method without virtual tokens, or do not pack; {group}"
        )
    if support.attention == NAME and not support.can_switch_attention:
        return f'This model has an attention of its own that cannot be replaced: load it with "eager"; {group}'
    if support.carries_state and not support.restarts_state:
        return (
            "A recurrent or convolutional state runs across the boundaries. Install the kernels that reset it "
            "(mamba-ssm and causal-conv1d, or flash-linear-attention) and use boundaries='explicit'; or let "
            f"hf_packing.model.state.restart_state(model) run those layers sequence by sequence; or: {group}"
        )
    if support.can_switch_attention and support.attention != NAME:
        return f'Load the model with attn_implementation="{NAME}"; if that does not isolate it either, {group}'
    return f"Pass no attention_mask, start positions at 0, set use_cache=False; if it is not that, {group}"


def advice_for(
    support: ModelSupport,
    errors: dict[str, str | None],
    isolated: bool,
    found: Measured,
    form: str | None,
    layout: str,
) -> str:
    """A few sentences: what was found, why, and what to do."""
    if not isolated:
        return " ".join([_finding(found, errors), *support.reasons, _remedy(support)])
    text = [f'Nothing leaks: train with boundaries="{form}", layout="{layout}" (attention: {support.kernel}).']
    if support.dense_mask and layout == "flat":
        switch = f'attn_implementation="{NAME}"' if support.can_switch_attention else 'layout="rows"'
        text.append(f"But {support.attention} builds a mask of all tokens by all tokens; use {switch} for speed.")
    if support.max_pack_length is not None:
        text.append(
            f"Keep packs within {support.max_pack_length} tokens: a longer sequence changes what its neighbours get."
        )
    return " ".join(text)
