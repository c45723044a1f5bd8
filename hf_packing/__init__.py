"""Sequence packing for Transformers and TRL: leak-free, tight, gradient-exact, fast on any hardware.

Importing this package registers the attention implementation "packed_varlen" with Transformers.
"""

from .data import (
    PackBatchSampler,
    PackedDataset,
    PackedStream,
    PackingTransform,
    PaddingFreeCollator,
    dataset_lengths,
    pack_dataset,
    plan_dataset,
    unpack,
)
from .errors import ContaminationError, PackingError
from .model import IsolationReport, ModelSupport, check_isolation, inspect_model
from .plan import Overflow, PackPlan, Strategy, TokenLedger, plan_packs
from .report import PaddingReport, padding_report
from .train import (
    PackingSFTConfig,
    PackingSFTTrainer,
    PackingTrainer,
    PackingTrainerMixin,
    PackingTrainingArguments,
)


__all__ = [
    "ContaminationError",
    "IsolationReport",
    "ModelSupport",
    "Overflow",
    "PackBatchSampler",
    "PackPlan",
    "PackedDataset",
    "PackedStream",
    "PackingError",
    "PackingSFTConfig",
    "PackingSFTTrainer",
    "PackingTrainer",
    "PackingTrainerMixin",
    "PackingTrainingArguments",
    "PackingTransform",
    "PaddingFreeCollator",
    "PaddingReport",
    "Strategy",
    "TokenLedger",
    "check_isolation",
    "dataset_lengths",
    "inspect_model",
    "pack_dataset",
    "padding_report",
    "plan_dataset",
    "plan_packs",
    "unpack",
]

__version__ = "0.1.0"
