"""PackingSFTTrainer: TRL's formats and tokenisation, this package's packs, batches, loss and evaluation."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from datasets import IterableDataset as HFIterableDataset
from trl import SFTTrainer

from ..errors import PackingError
from .config import PackingSettings, PackingSFTConfig, hidden
from .losses import TokenLosses, fused_losses, logit_losses
from .stream_epochs import counted_later
from .trainer import PackingTrainerMixin
from .upstream import tokenize_with_trl


__all__ = ["PackingSFTTrainer"]


class PackingSFTTrainer(PackingTrainerMixin, SFTTrainer):
    """A [`~trl.SFTTrainer`] whose packing is planned, proven and exact; it takes the same arguments and datasets.

    TRL formats and tokenises; planning, packing, batches, normalisation and evaluation are this package's. The loss
    goes through TRL's fused head, which never materialises the `[T, V]` logits.

    Args:
        model: a model, a PEFT model, or a name or path, as in `SFTTrainer`.
        args ([`PackingSFTConfig`] or `SFTConfig`, *optional*).
        train_dataset, eval_dataset: every format `SFTTrainer` takes; also packed ones, [`PackedDataset`] and
            [`PackedStream`].
        **kwargs: everything else `SFTTrainer` takes.

    Raises:
        PackingError: for settings that contradict each other or cannot be honoured.
        ContaminationError: a sequence of a pack would see another one.
    """

    def __init__(
        self,
        model: Any,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        args = PackingSFTConfig("tmp_trainer") if args is None else args
        self.packing = PackingSettings.from_args(args)
        flattens = self.packing.packing or self.packing.padding_free
        ready = {"train": train_dataset} if not isinstance(train_dataset, (Dataset, HFIterableDataset)) else {}
        shown: dict[str, Any] = {"packing": False, "eval_packing": None, "padding_free": False}
        if flattens or self.packing.eval_packing:
            shown["max_length"] = None
        shown |= counted_later(train_dataset, args)
        with hidden(args, shown):
            super(PackingTrainerMixin, self).__init__(  # the set-up below has to wait for what TRL prepares
                model=model,
                args=args,
                data_collator=data_collator,
                train_dataset=_placeholder() if ready else train_dataset,
                eval_dataset=eval_dataset,
                **kwargs,
            )
        if ready:
            self.train_dataset = train_dataset
        if self._is_vision_dataset:
            raise PackingError(
                "The dataset holds images; packing them needs three-axis positions of each image, which this package "
                "does not build. Set packing=False and train with trl.SFTTrainer."
            )
        self._set_up_packing(data_collator)
        for name, given in (("label smoothing", self.label_smoother), ("compute_loss_func", self.compute_loss_func)):
            if given is not None:
                self._say(f"{name} needs the full logits, so the fused head is not used")

    @property
    def _rows_are_ready(self) -> bool:
        return not (self.packing.packing or self.packing.padding_free or self.packing.eval_packing)

    def _prepare_dataset(
        self, dataset: Any, processing_class: Any, args: Any, packing: bool, formatting_func: Any, dataset_name: str
    ) -> Any:
        """TRL formats and tokenises; what is tokenised already goes to the planner as it is."""
        if not isinstance(dataset, (Dataset, HFIterableDataset)):
            return dataset
        if self._rows_are_ready:
            return tokenize_with_trl(self, dataset, processing_class, args, formatting_func, dataset_name)
        columns = dataset.column_names or list(next(iter(dataset), {}))  # a stream may not know them
        if "input_ids" in columns:
            if self.packing.completion_only_loss is False and "completion_mask" in columns:
                dataset = dataset.remove_columns("completion_mask")
            return dataset.shuffle(seed=args.seed) if args.shuffle_dataset else dataset
        with hidden(args, {"max_length": None}):
            dataset = tokenize_with_trl(self, dataset, processing_class, args, formatting_func, dataset_name)
        # The masks that TRL keeps are those it was told not to use.
        return dataset.select_columns(["input_ids", "labels"])

    def _token_losses(self, model: Any, inputs: dict[str, Any], with_outputs: bool) -> TokenLosses:
        if self.aux_loss_enabled:
            inputs["output_router_logits"] = True
        if not with_outputs and self.label_smoother is None:
            return fused_losses(model, inputs, self.args.loss_type)
        return logit_losses(
            model,
            inputs,
            shifts=self._shifts,
            label_smoothing=self._label_smoothing(),
            loss_type=self.args.loss_type,
            with_metrics=True,
        )

    def _aux_coefficient(self) -> float:
        return float(self.router_aux_loss_coef)


def _placeholder() -> Dataset:
    """Satisfies SFTTrainer, which accepts nothing but `datasets` at init, until the real dataset takes its place."""
    return Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[-100, 0]]})
