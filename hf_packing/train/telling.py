"""The part of the trainers that tells people things: lines at the start, alarms, numbers each logging step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..plan import PackPlan
from .metrics import flops_per_token, peak_flops
from .upstream import TrainerParts, bare_model


__all__ = ["TellingMixin"]


_PACKS_BEFORE_ALARM = 64
"""Fewer packs say little: the last one of a small set may hold almost nothing."""


class TellingMixin(TrainerParts):
    """What a step sees, how full packs are, what was cut, how fast it goes."""

    def _match_sequences_per_step(self, plan: PackPlan) -> None:
        """Say what packing makes of an optimizer step; with `match_sequences_per_step`, lower the accumulation."""
        each = self._train_batch_size * self._ranks.count
        sequences = plan.ledger.sequences_packed / plan.num_packs
        tokens = plan.ledger.tokens_packed / plan.num_packs
        unpacked = each * self.args.gradient_accumulation_steps
        if self.packing.match_sequences_per_step:
            self.args.gradient_accumulation_steps = max(1, round(self.args.gradient_accumulation_steps / sequences))
        packs = each * self.args.gradient_accumulation_steps
        advice = ""
        if not self.packing.match_sequences_per_step:
            advice = " (match_sequences_per_step=True keeps them alike)"
        elif self.args.gradient_accumulation_steps == 1 and packs * sequences > 1.5 * unpacked:
            advice = " (one micro-batch is the least; lower per_device_train_batch_size to come closer)"
        self._say(
            f"an optimizer step sees {packs} packs = about {packs * sequences:,.0f} sequences, {packs * tokens:,.0f} "
            f"tokens; unpacked it would see {unpacked} sequences, {unpacked * tokens / sequences:,.0f} tokens{advice}"
        )

    def _alarm(self, fill: float, what: str) -> None:
        """Warn that packs are emptier than asked for."""
        if fill < self.packing.min_fill:
            self._alarmed = True
            self._say(
                f"WARNING: {fill:.1%} {what}, below min_fill={self.packing.min_fill:.0%}; `hf-packing report` shows "
                "which max_length fits these lengths."
            )

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """The library's model card, and a section that says how the data were packed and what was cut."""
        super().create_model_card(*args, **kwargs)  # type: ignore[misc]
        card = Path(self.args.output_dir) / "README.md"
        if self.is_world_process_zero() and card.exists():
            card.write_text(f"{card.read_text(encoding='utf-8').rstrip()}\n\n{self._card_section()}", encoding="utf-8")

    def _card_section(self) -> str:
        plan = getattr(self.train_dataset, "plan", None)
        lines = [
            "## Packing",
            "",
            f"Trained with hf_packing: packing={self.packing.packing}, "
            f"max_length={self.packing.max_length}, strategy `{self.packing.strategy}`, overflow "
            f"`{self.packing.overflow}`, loss normalised by {self.packing.loss_normalization}.",
            "",
            f"* Batches: {self.batch_form.layout}, attention `{self.batch_form.kernel}`; {self._verdict}",
        ]
        if plan is not None:
            lines += [
                f"* Plan: {plan.ledger.sequences_packed:,} sequences in {plan.num_packs:,} packs, fill "
                f"{plan.fill:.2%}, "
                f"proven bound {plan.lower_bound:,}.",
                f"* Cut: {plan.ledger.tokens_truncated:,} tokens of {plan.ledger.sequences_truncated:,} sequences; "
                f"dropped: {plan.ledger.sequences_dropped:,} sequences.",
            ]
        lines.append(f"* Trained on {self.meter.num_tokens:,} real tokens, {self.meter.num_sequences:,} sequences.")
        return "\n".join(lines) + "\n"

    def _say(self, line: str) -> None:
        self.accelerator.print(f"[hf_packing] {line}")

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's log, with exact sums over the logging window (all ranks are here together)."""
        if "loss" in logs:
            numbers = self._window_numbers()
            if "loss" not in numbers:
                del logs["loss"]  # a window without targets has none, not 0
            logs.update(numbers)
        if "train_loss" in logs:
            self._window_numbers()  # what came after the last logging step
            if self.meter.train_loss is not None:
                logs["train_loss"] = self.meter.train_loss
        super().log(logs, start_time)  # type: ignore[misc]

    def _window_numbers(self) -> dict[str, Any]:
        device = self.args.device
        peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        numbers = self.meter.report(
            self.accelerator, self._ranks.count, flops_per_token(bare_model(self)) if peak else None, peak
        )
        run = self.meter.run
        if self.packing.packing and not self._alarmed and run.packs >= _PACKS_BEFORE_ALARM:
            self._alarm(run.tokens / run.slots, "of the slots held real tokens so far")
        # A stream accounts for the pass so far, a plan for every pass.
        account = getattr(self.train_dataset, "plan", self.train_dataset)
        if hasattr(account, "ledger"):
            numbers["tokens_cut"] = account.ledger.tokens_lost
        if "tensorboard" not in self.args.report_to:  # it takes numbers only, and complains about each text
            numbers["attention"] = self.batch_form.kernel
        return numbers
