"""The settings of a packed run: fields for TRL-style configs and YAML files, and the frozen view the rest reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments
from trl import SFTConfig

from ..errors import PackingError
from ..plan import Overflow, Strategy


__all__ = ["PackingFields", "PackingSFTConfig", "PackingSettings", "PackingTrainingArguments", "hidden"]

_STRATEGIES = [*Strategy, "bfd_split"]
_CHOICES: dict[str, list[str]] = {
    "overflow": list(Overflow),
    "loss_normalization": ["token", "sequence"],
    "isolation_check": ["error", "warn", "group", "off"],
    "attention": ["auto", "keep"],
    "packing_strategy": _STRATEGIES,
}


@dataclass
class PackingFields:
    """What packing adds to a training configuration; every field has a safe default."""

    overflow: str | None = field(
        default=None,
        metadata={
            "help": "What happens to sequences longer than `max_length`: 'error', 'truncate' (keep the start), "
            "'truncate_left' (keep the end), 'split', 'drop' or 'own_pack'. Not set: as `truncation_mode` says, so "
            "'truncate', and a run that would lose more than half of its tokens is refused."
        },
    )
    max_sequences_per_pack: int | None = field(
        default=None, metadata={"help": "Most sequences in one pack. Lower values trade fill for smaller batches."}
    )
    loss_normalization: str = field(
        default="token",
        metadata={
            "help": "'token': every target of an optimizer step weighs the same. 'sequence': every sequence does.",
            "choices": _CHOICES["loss_normalization"],
        },
    )
    isolation_check: str = field(
        default="error",
        metadata={
            "help": "What happens when the proof at the start finds that one sequence of a pack changes another: "
            "'error', 'warn', 'group' (train one sequence a row, like lengths together) or 'off' (no proof).",
            "choices": _CHOICES["isolation_check"],
        },
    )
    balance_ranks: bool = field(
        default=True,
        metadata={
            "help": "Let packs of like attention cost meet in the same step, so that no rank waits for another."
        },
    )
    repack_each_epoch: bool = field(
        default=True,
        metadata={"help": "Give every sequence other neighbours each epoch, at the same number of packs."},
    )
    match_sequences_per_step: bool = field(
        default=False,
        metadata={
            "help": "Lower gradient_accumulation_steps so that a step sees about as many sequences as it would "
            "without packing."
        },
    )
    min_fill: float = field(
        default=0.97,
        metadata={"help": "Warn when real tokens fall below this share of the slots; 0 turns the alarm off."},
    )
    attention: str = field(
        default="auto",
        metadata={
            "help": "'auto' replaces an attention that builds dense masks by 'packed_varlen' where the model allows "
            "it; 'keep' leaves the model as it was loaded.",
            "choices": _CHOICES["attention"],
        },
    )
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "With `padding_free=True, packing=False`: fill each micro-batch with whole sequences up to this "
            "many tokens, in place of per_device_train_batch_size."
        },
    )

    def __post_init__(self) -> None:
        request = getattr(self, "accelerator_config", None)
        if isinstance(request, dict):
            refuse_dataloader_requests(request)
        for name, choices in _CHOICES.items():
            value = getattr(self, name, None)
            if value is not None and value not in choices:
                raise PackingError(f"{name}={value!r} is not known; choose one of {', '.join(map(str, choices))}.")
        # Set here rather than as the field's default: a loss of tokens that nobody asked for is judged more strictly.
        self.overflow_was_set = self.overflow is not None
        if self.overflow is None:
            keeps_end = getattr(self, "truncation_mode", "keep_start") == "keep_end"
            self.overflow = "truncate_left" if keeps_end else "truncate"
        super().__post_init__()  # type: ignore[misc]  # the dataclass this one is mixed into


@dataclass
class PackingTrainingArguments(PackingFields, TrainingArguments):
    """[`~transformers.TrainingArguments`] for [`PackingTrainer`]: packing is on, over data that is tokenised already.

    Example:
        >>> args = PackingTrainingArguments("out", max_length=2048, per_device_train_batch_size=4, report_to="none")
        >>> args.packing, args.packing_strategy, args.overflow
        (True, 'auto', 'truncate')
    """

    packing: bool = field(default=True, metadata={"help": "Train on packs; False trains on padded batches."})
    max_length: int = field(default=1024, metadata={"help": "Most tokens in a pack (and in a sequence)."})
    packing_strategy: str = field(
        default="auto",
        metadata={
            "help": "How sequences are placed: 'auto' (best-fit decreasing, improved while it is above the proven "
            "bound), 'bfd', 'bfd_split' (bfd with overflow='split'), 'optimal', 'stream', 'sequential', 'wrapped'."
        },
    )
    eval_packing: bool | None = field(
        default=None, metadata={"help": "Whether to pack the evaluation set; not set: as `packing`."}
    )
    padding_free: bool = field(
        default=False, metadata={"help": "With packing=False: flatten whole sequences into padding-free batches."}
    )
    pad_to_multiple_of: int | None = field(
        default=None, metadata={"help": "Pad every batch to a multiple of this, as one trailing segment."}
    )


@dataclass
class PackingSFTConfig(PackingFields, SFTConfig):
    """[`~trl.SFTConfig`] for [`PackingSFTTrainer`]; a plain `SFTConfig` works there too.

    Example:
        >>> args = PackingSFTConfig("out", packing=True, max_length=2048, bf16=False, report_to="none")
        >>> args.packing_strategy, args.overflow, args.isolation_check
        ('auto', 'truncate', 'error')
    """

    packing_strategy: str = field(
        default="auto",
        metadata={
            "help": "How sequences are placed: 'auto' (best-fit decreasing, improved while it is above the proven "
            "bound), 'bfd', 'bfd_split' (bfd with overflow='split'), 'optimal', 'stream', 'sequential', 'wrapped'."
        },
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingSettings:
    """What the trainers read, from whatever configuration they were given."""

    packing: bool
    eval_packing: bool
    padding_free: bool
    max_length: int | None
    strategy: str
    overflow: str
    overflow_was_set: bool
    max_sequences: int | None
    pad_to_multiple_of: int | None
    loss_normalization: str
    isolation_check: str
    balance_ranks: bool
    repack_each_epoch: bool
    match_sequences_per_step: bool
    min_fill: float
    attention: str
    max_tokens_per_batch: int | None
    completion_only_loss: bool | None
    seed: int

    @classmethod
    def from_args(cls, args: Any) -> PackingSettings:
        """Read `args`: one of the classes above, a plain `SFTConfig` or plain `TrainingArguments`.

        Raises:
            PackingError: settings that contradict each other, or that packing cannot honour.
        """

        def read(name: str, default: Any = None) -> Any:
            return getattr(args, name, default)

        keeps_end = read("truncation_mode", "keep_start") == "keep_end"
        strategy, overflow = read("packing_strategy", "auto"), read("overflow")
        overflow_was_set = read("overflow_was_set", False)
        if overflow is None:
            overflow = "truncate_left" if keeps_end else "truncate"
        if strategy == "bfd_split":
            if overflow_was_set and overflow != "split":
                raise PackingError(
                    f"packing_strategy='bfd_split' splits long sequences, overflow={overflow!r} does not; "
                    "set packing_strategy='bfd', or leave overflow unset."
                )
            strategy, overflow, overflow_was_set = "bfd", "split", True
        packing = bool(read("packing", False))
        eval_packing = read("eval_packing")
        settings = cls(
            packing=packing,
            eval_packing=packing if eval_packing is None else bool(eval_packing),
            padding_free=bool(read("padding_free", False)),
            max_length=read("max_length"),
            strategy=strategy,
            overflow=overflow,
            overflow_was_set=overflow_was_set,
            max_sequences=read("max_sequences_per_pack"),
            pad_to_multiple_of=read("pad_to_multiple_of"),
            loss_normalization=read("loss_normalization", "token"),
            isolation_check=read("isolation_check", "error"),
            balance_ranks=read("balance_ranks", True),
            repack_each_epoch=read("repack_each_epoch", True),
            match_sequences_per_step=read("match_sequences_per_step", False),
            min_fill=read("min_fill", 0.97),
            attention=read("attention", "auto"),
            max_tokens_per_batch=read("max_tokens_per_batch"),
            completion_only_loss=read("completion_only_loss"),
            seed=read("data_seed") if read("data_seed") is not None else read("seed", 42),
        )
        settings._check(args)
        return settings

    def _check(self, args: Any) -> None:
        if (self.packing or self.eval_packing) and (self.max_length is None or self.max_length < 1):
            raise PackingError(
                f"max_length={self.max_length!r}: packing needs the capacity of a pack, at least 1 token."
            )
        if self.max_tokens_per_batch is not None and (self.packing or not self.padding_free):
            raise PackingError(
                f"max_tokens_per_batch={self.max_tokens_per_batch} is for padding-free batches without packing; set "
                "padding_free=True and packing=False, or leave it unset and use per_device_train_batch_size."
            )
        if self.max_tokens_per_batch is not None and getattr(args, "train_sampling_strategy", "") == "sequential":
            raise PackingError(
                "train_sampling_strategy='sequential' takes a fixed number of rows a batch, max_tokens_per_batch as "
                "many as fit; unset one of them."
            )
        if getattr(args, "average_tokens_across_devices", True) is False:
            raise PackingError(
                "average_tokens_across_devices=False normalises each rank by its own tokens, which weighs tokens "
                "unevenly wherever ranks hold different numbers of targets; leave it at True."
            )
        accelerator_config = getattr(args, "accelerator_config", None)
        if accelerator_config is not None:
            # even_batches is True by default there, so only a dict that asked for it can be told from the default.
            refuse_dataloader_requests({**accelerator_config.to_dict(), "even_batches": None})


def refuse_dataloader_requests(request: dict[str, Any]) -> None:
    """Refuse settings of accelerate's loaders that repeat sequences or cut batches between ranks."""
    for name, why in {
        "even_batches": "repeats sequences to fill the last round",
        "dispatch_batches": "slices one batch between the ranks, which a flattened batch does not survive",
        "split_batches": "slices one batch between the ranks, which a flattened batch does not survive",
    }.items():
        if request.get(name):
            raise PackingError(
                f"accelerator_config {name}=True {why}; leave it unset: the packed loaders give every rank the same "
                "number of batches without repeating any."
            )


@contextlib.contextmanager
def hidden(args: Any, values: dict[str, Any]) -> Iterator[None]:
    """Show other values of some settings for a while, to a library that would act on them before it is time."""
    kept = {name: getattr(args, name) for name in values if hasattr(args, name)}
    for name in kept:
        setattr(args, name, values[name])
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(args, name, value)
