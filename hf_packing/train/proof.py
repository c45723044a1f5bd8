"""From a loaded model to how its batches must look, and the proof that they are right: who asks model/ what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ContaminationError, PackingError
from ..model import ModelSupport, check_isolation, inspect_model, is_sharded, restart_state
from .config import PackingSettings
from .window import sum_over_ranks


__all__ = ["BatchForm", "choose_batch_form", "prove_isolation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchForm:
    """How batches of this model look."""

    layout: Any
    """`"flat"`, `"rows"`, or `"group"`: one sequence a row, for models that cannot be packed."""
    boundaries: Any
    position_ids_start: int
    kernel: str
    why: str = ""
    """What was changed or decided, in a sentence; empty where nothing was."""

    @property
    def is_packed(self) -> bool:
        """Whether sequences share rows; otherwise a row of the batch is one sequence with a mask."""
        return self.layout in ("flat", "rows")

    @property
    def filler_start(self) -> int | None:
        """First position of a filler batch; None where batches carry no positions."""
        return self.position_ids_start if self.is_packed else None


def choose_batch_form(model: Any, settings: PackingSettings) -> BatchForm:
    """Look at the loaded model, switch its attention where `attention="auto"` allows it, and choose the batches.

    Raises:
        ContaminationError: packs of this length cross a limit of the model and `isolation_check` is `"error"`.
        PackingError: encoder-decoder models, whose two sides would need boundaries of their own.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise PackingError(
            f"{type(model).__name__} is an encoder-decoder model; packing is for decoder-only ones. Set packing=False."
        )
    support, why = inspect_model(model), ""
    if settings.attention == "auto" and support.dense_mask and support.can_switch_attention:
        before = support.kernel
        model.set_attn_implementation("packed_varlen")
        support = inspect_model(model)
        why = f"attention {before!r} builds dense masks over a pack; replaced by {support.kernel!r}"
    if settings.attention == "auto" and _needs_restart(model, support):
        layers = restart_state(model).layers
        support = inspect_model(model)
        restarted = f"no kernel here resets the state of {layers} recurrent layers; they run sequence by sequence"
        why = f"{why}; {restarted}" if why else restarted
    if (limit := _crossed(support, settings)) is not None:
        message = (
            f"max_length={settings.max_length} lets packs grow beyond {limit} tokens, where {type(model).__name__} "
            f"changes with the length of the whole row ({'; '.join(support.reasons)}), so a long neighbour "
            f"would change a short sequence. Set max_length to at most {limit}, or isolation_check='group' to train "
            "one sequence a row."
        )
        if settings.isolation_check == "error":
            raise ContaminationError(message)
        if settings.isolation_check == "group":
            return _grouped(support, message)
        why = f"{why}; {message}" if why else message
    return BatchForm(
        layout=support.layout,
        boundaries=support.boundaries,
        position_ids_start=support.position_ids_start,
        kernel=support.kernel,
        why=why,
    )


def _needs_restart(model: Any, support: ModelSupport) -> bool:
    """Whether a state runs across the boundaries of a pack: asked of the model, since a fused kernel may reset it."""
    if not support.carries_state or support.restarts_state or is_sharded(model):
        return False
    return not check_isolation(model, boundaries=support.boundaries, layout=support.layout).isolated


def _crossed(support: ModelSupport, settings: PackingSettings) -> int | None:
    limit = support.max_pack_length
    return limit if limit is not None and settings.max_length is not None and settings.max_length > limit else None


def _grouped(support: ModelSupport, why: str) -> BatchForm:
    return BatchForm(
        layout="group",
        boundaries=support.boundaries,
        position_ids_start=support.position_ids_start,
        kernel=support.kernel,
        why=why,
    )


def prove_isolation(
    model: Any, form: BatchForm, settings: PackingSettings, forward_only: bool, accelerator: Any
) -> tuple[BatchForm, str]:
    """Run the proof in the form the batches will have, on all ranks together; they agree on the verdict.

    Returns:
        The form to use (another one under `isolation_check="group"` when the proof fails), and the verdict for people.

    Raises:
        ContaminationError: something leaks and `isolation_check` is `"error"`.
    """
    report = check_isolation(model, boundaries=form.boundaries, layout=form.layout, forward_only=forward_only)
    leaks_somewhere = sum_over_ranks(accelerator, [float(not report.isolated)])[0] > 0
    if not leaks_somewhere:
        verdict = (
            f"isolation proven: largest leak {report.leak:.1e}, attention {form.kernel}, boundaries {form.boundaries}"
        )
        return form, verdict
    verdict = f"isolation NOT proven: leak {report.leak:.2g} with attention {report.attention}. {report.advice}"
    if settings.isolation_check == "error":
        raise ContaminationError(
            f"{verdict} Or set isolation_check='group' to train one sequence a row, exactly, without packing."
        )
    if settings.isolation_check == "group":
        return BatchForm(
            layout="group",
            boundaries=form.boundaries,
            position_ids_start=form.position_ids_start,
            kernel=form.kernel,
            why=verdict,
        ), f"{verdict} Training one sequence a row instead (isolation_check='group')."
    return form, f"WARNING: {verdict} Training goes on because isolation_check='warn'."
