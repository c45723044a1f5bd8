"""The trainers: glue between data, model, loss and metrics. What is computed lives in the modules next to this one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import TrainOutput

from ..data.sampler import check_schedule
from ..errors import PackingError
from .arrange import Arranged, arrange
from .batches import TrainerCollator
from .callback import PackingCallback
from .config import PackingSettings, PackingTrainingArguments, hidden
from .evaluating import EvaluatingMixin
from .loaders import StreamBatches, eval_loader, stream_loader, train_loader
from .metrics import TrainMeter
from .proof import BatchForm, choose_batch_form, prove_isolation
from .ranks import Ranks
from .state import last_checkpoint, load_run_state, save_run_state
from .stepping import SteppingMixin
from .stream_epochs import counted_later, steps_of_stream
from .telling import TellingMixin
from .upstream import attention_name, bare_model, forward_names, loss_shifts_labels
from .window import BatchCounts


__all__ = ["PackingTrainer", "PackingTrainerMixin"]


class PackingTrainerMixin(SteppingMixin, EvaluatingMixin, TellingMixin):
    """What packing changes in a [`~transformers.Trainer`]: batches, normalisation, evaluation, numbers.

    Put it before the trainer class: `class MyTrainer(PackingTrainerMixin, Trainer)`. Overrides of `compute_loss` work:
    a returned loss is taken for the mean over the micro-batch's targets (unless `loss_is_scaled_for_ga` is True, or it
    came from `super().compute_loss`) and weighted by them. A `compute_loss_func` is given the targets of its own
    micro-batch as `num_items_in_batch` and weighted likewise, so it may divide by them or return a mean.
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        args = PackingTrainingArguments("tmp_trainer") if args is None else args
        self.packing = PackingSettings.from_args(args)
        with hidden(args, counted_later(train_dataset, args)):
            super().__init__(  # type: ignore[call-arg]  # of the trainer this one is mixed into
                model=model,
                args=args,
                data_collator=data_collator,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                **kwargs,
            )
        self._set_up_packing(data_collator)

    # --- setting up --------------------------------------------------------------------------------------------

    def _set_up_packing(self, given_collator: Any) -> None:
        """After Trainer's own init: look at the model, arrange the datasets, put our collator in place."""
        self.meter = TrainMeter()
        self._refuse_what_cannot_hold(given_collator)
        self._given_collator = given_collator
        self._micro_batch = None
        self._step_counts = BatchCounts()
        self._scaled_here = False
        self._eval_run = None
        self._resume_from: str | None = None
        self._stream = None
        self._schedule: dict[str, Any] | None = None
        self._arranged: dict[int, Arranged] = {}
        self._proven = self._alarmed = False
        self._verdict = "isolation was not proven"
        self._shifts = loss_shifts_labels(self)
        self._ranks = Ranks.of(self)
        self._choose_form()
        self.train_dataset = self._arrange_once(self.train_dataset, self.packing.packing, "train")
        if isinstance(self.eval_dataset, dict):
            self.eval_dataset = {
                name: self._arrange_once(dataset, self.packing.eval_packing, name)
                for name, dataset in self.eval_dataset.items()
            }
        else:
            self.eval_dataset = self._arrange_once(self.eval_dataset, self.packing.eval_packing, "eval")
        arranged = self._arranged.get(id(self.train_dataset))
        if arranged is not None and arranged.plan is not None and arranged.packed:
            self._match_sequences_per_step(arranged.plan)
            self._alarm(arranged.plan.fill, "of the planned slots hold real tokens")
        elif self.packing.match_sequences_per_step:
            self._say("match_sequences_per_step has no effect: it needs a plan of packs, which this dataset has not")
        if arranged is not None and arranged.is_stream and self.args.max_steps <= 0:
            self._count_passes(arranged)
        self.add_callback(PackingCallback(self))

    def _count_passes(self, arranged: Arranged) -> None:
        """A stream by epochs: Trainer and its schedule need the number of steps, so each pass is read once to know."""
        epochs, each = self.args.num_train_epochs, self.args.gradient_accumulation_steps
        self.args.max_steps = steps_of_stream(arranged.dataset, self._train_batch_size, each, epochs, self.accelerator)
        self._say(
            f"{epochs:g} passes over the stream are {self.args.max_steps:,} optimizer steps (read once to count them; "
            "max_steps spares that)"
        )

    def _refuse_what_cannot_hold(self, given_collator: Any) -> None:
        if self.args.n_gpu > 1:
            raise PackingError(
                f"{self.args.n_gpu} GPUs are visible to one process, so Trainer would use nn.DataParallel, "
                "which cannot share out a flattened batch and rescales the loss. Start with `accelerate launch` or "
                "`torchrun`, or set CUDA_VISIBLE_DEVICES to one GPU."
            )
        launched = int(os.environ.get("WORLD_SIZE") or 1)
        if launched > self.accelerator.num_processes == 1:
            raise PackingError(
                f"{launched} processes were launched, but each would train alone on all of the data: there is no GPU "
                "here, and Trainer joins CPU processes only with use_cpu=True. Set use_cpu=True (--use_cpu true), or "
                "start one process."
            )
        flattens = self.packing.packing or self.packing.padding_free or self.packing.eval_packing
        if flattens and given_collator is not None:
            raise PackingError(
                f"data_collator={type(given_collator).__name__} was given although the batches are packed: another "
                "collator would pad them and switch packing off. Leave data_collator unset, or set packing=False."
            )
        for name, size in (("cp_size", self.get_cp_size()), ("sp_size", self.get_sp_size())):
            if size > 1 and flattens:
                raise PackingError(
                    f"{name}={size}: context and sequence parallelism cut a row between ranks and replace its mask by "
                    f"a causal one, so packed sequences would see each other. Set {name}=1, or packing=False."
                )

    def _choose_form(self) -> None:
        flattens = self.packing.packing or self.packing.padding_free or self.packing.eval_packing
        if not flattens:
            self.batch_form = BatchForm(
                layout="padded", boundaries="none", position_ids_start=0, kernel=attention_name(self)
            )
            return
        model = bare_model(self)
        self.batch_form = choose_batch_form(model, self.packing)
        if self.batch_form.why:
            self._say(self.batch_form.why)
        if self.packing.isolation_check == "group" and self.batch_form.layout != "group":
            # Grouping changes the data, so this proof cannot wait until the model is wrapped.
            self._prove(forward_only=False)

    def _arrange_once(self, dataset: Any, packing: bool, name: str) -> Any:
        """The trainer's own dataset as the loaders read it; how is remembered by its identity."""
        if dataset is None:
            return None
        arranged = self._arrange(dataset, packing, name)
        self._arranged[id(arranged.dataset)] = arranged
        return arranged.dataset

    def _arrange(self, dataset: Any, packing: bool, name: str) -> Arranged:
        if id(dataset) in self._arranged:
            return self._arranged[id(dataset)]
        arranged = arrange(
            dataset,
            self.packing,
            packing=packing,
            layout=self.batch_form.layout,
            name=name,
            ranks=self._ranks,
            ready_rows=self._rows_are_ready,
            shifts=self._shifts,
        )
        for line in arranged.messages:
            self._say(line)
        return arranged

    @property
    def _rows_are_ready(self) -> bool:
        """Whether rows are cut and labelled already, and have a collator of their own."""
        return self._given_collator is not None  # refused where anything is packed

    # --- the proof, and the state of a run ---------------------------------------------------------------------

    def _prove(self, forward_only: bool) -> None:
        self.batch_form, verdict = prove_isolation(
            self.accelerator.unwrap_model(self.model), self.batch_form, self.packing, forward_only, self.accelerator
        )
        self._proven, self._verdict = True, verdict
        self._say(verdict)

    def _prove_once(self) -> None:
        """Before the first batch of a training, or of an evaluation without one."""
        flattens = self.packing.packing or self.packing.padding_free or self.packing.eval_packing
        if flattens and not self._proven and self.packing.isolation_check != "off" and self.batch_form.is_packed:
            self._prove(forward_only=self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def call_model_init(self, trial: Any = None) -> Any:
        """A new model of a hyperparameter search gets the attention the first one got, and a proof of its own."""
        model = super().call_model_init(trial)  # type: ignore[misc]
        if hasattr(self, "batch_form") and self.batch_form.is_packed:
            choose_batch_form(model, self.packing)
            self._proven = False
        return model

    def before_training(self) -> None:
        """Once the model is wrapped: prove that nothing leaks, take over the counters of a resumed run."""
        self._prove_once()
        if self._resume_from is not None:
            state = load_run_state(self._resume_from, self.args.process_index, self.args.world_size, needed=False)
            if state is not None:
                self.meter.load_state_dict(state["meter"])
        self.meter.restart_clock()

    def save_run_state(self, checkpoint: Path) -> None:
        """Write what a resume needs beyond Trainer's own files; every rank its own."""
        state: dict[str, Any] = {"meter": self.meter.state_dict(), "global_step": self.state.global_step}
        if self._schedule is not None:
            state["schedule"] = self._schedule
        if self._stream is not None:
            state["stream"] = self._stream.state_dict()
        save_run_state(checkpoint, self.args.process_index, self.args.world_size, state)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        if resume_from_checkpoint is True:
            found = last_checkpoint(self.args.output_dir, self.args.process_index, gather_object)
            if found is None:
                raise PackingError(f"resume_from_checkpoint=True, but {self.args.output_dir} holds no checkpoint.")
            resume_from_checkpoint = found
        self._resume_from = str(resume_from_checkpoint) if resume_from_checkpoint else None
        self.meter.start_run()
        output = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)  # type: ignore[misc]
        loss = output.metrics.get("train_loss", output.training_loss)
        return output._replace(training_loss=loss)

    # --- loaders -----------------------------------------------------------------------------------------------

    def _collator(self, arranged: Arranged) -> TrainerCollator:
        collate = arranged.collator(self.batch_form, self.packing, self._pad_token_id(), self._shifts)
        if collate is None:
            collate = self._given_collator or self.data_collator
        keep = forward_names(self) if self.args.remove_unused_columns else None
        return TrainerCollator(
            collate=collate,
            capacity=self.packing.max_length if arranged.packed else None,
            pad_token_id=self._pad_token_id(),
            position_ids_start=self.batch_form.filler_start,
            keep=keep,
            foreign=arranged.ready,
        )

    def _pad_token_id(self) -> int:
        for owner in (self.processing_class, bare_model(self).config):
            pad = getattr(owner, "pad_token_id", None)
            if isinstance(pad, int) and pad >= 0:
                return pad
        return 0

    def get_train_dataloader(self) -> DataLoader:
        if self.train_dataset is None:
            raise PackingError("train() needs a train_dataset.")
        # Somebody may have put another dataset in the trainer's place for it.
        self.train_dataset = self._arrange_once(self.train_dataset, self.packing.packing, "train")
        arranged = self._arranged[id(self.train_dataset)]
        collate = self._collator(arranged)
        self._stream = None
        if arranged.is_stream:
            self._stream = StreamBatches(arranged.dataset, self._train_batch_size)
            if self._resume_from is not None and not self.args.ignore_data_skip:
                state = load_run_state(self._resume_from, self.args.process_index, self.args.world_size, needed=True)
                if state is not None:
                    skipped = state["global_step"] * self.args.gradient_accumulation_steps
                    self._stream.load_state_dict(state["stream"], skipped_by_trainer=skipped)
            return stream_loader(self._stream, collate, self.args)
        loader = train_loader(
            arranged.agreed(self.accelerator),
            collate,
            self.args,
            self.packing,
            batch_size=self._train_batch_size,
            ranks=self._ranks,
            config=bare_model(self).config,
            grouped=self.batch_form.layout == "group",
        )
        sampler: Any = loader.batch_sampler
        self._schedule = {**sampler.schedule, "accumulation": self.args.gradient_accumulation_steps}
        if self._resume_from is not None and not self.args.ignore_data_skip:
            # Trainer skips by number alone; batch n has to hold what it held in the run that is resumed.
            state = load_run_state(self._resume_from, self.args.process_index, self.args.world_size, needed=False)
            if state is not None and "schedule" in state:
                check_schedule(state["schedule"], self._schedule)
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise PackingError("evaluate() needs an eval_dataset: pass one to it or to the trainer.")
        arranged = self._arrange(dataset, self.packing.eval_packing, "eval")
        return eval_loader(arranged, self._collator(arranged), self.args, self._ranks, self.accelerator)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        return self.get_eval_dataloader(test_dataset)


class PackingTrainer(PackingTrainerMixin, Trainer):
    """A [`~transformers.Trainer`] that trains on packs: exact normalisation, proven isolation, real numbers.

    Args:
        model: as in `Trainer`.
        args ([`PackingTrainingArguments`], *optional*): plain `TrainingArguments` train without packing.
        train_dataset, eval_dataset: tokenised (`input_ids`, optional `labels` or a mask), packed (`seq_lengths`), or
            iterable; lists of dicts work too.
        **kwargs: everything else `Trainer` takes.

    Raises:
        PackingError: for settings that contradict each other or cannot be honoured.
        ContaminationError: a sequence of a pack would see another one.

    Example:
        >>> import tempfile
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16,
        ...     num_hidden_layers=1, num_attention_heads=2))
        >>> rows = [{"input_ids": list(range(1, n))} for n in (4, 6, 9, 13)]
        >>> with tempfile.TemporaryDirectory() as out:
        ...     args = PackingTrainingArguments(out, max_length=16, max_steps=1, report_to="none", disable_tqdm=True,
        ...         save_strategy="no", use_cpu=True)
        ...     trainer = PackingTrainer(model, args, train_dataset=rows)
        ...     steps = trainer.train().global_step  # doctest: +ELLIPSIS
        [hf_packing] ...
        >>> len(trainer.train_dataset), steps
        (2, 1)
    """
