"""Training: exact normalisation, packed trainers, numbers.

dataset ─► arrange (plan, packs) ─► loaders (same number on every rank) ─► batches (+ facts)
        ─► stepping (counts of a step, weighted losses) ─► metrics ;  evaluating (exact sums) beside it
"""

from .config import PackingSFTConfig, PackingTrainingArguments
from .sft_trainer import PackingSFTTrainer
from .trainer import PackingTrainer, PackingTrainerMixin


__all__ = [
    "PackingSFTConfig",
    "PackingSFTTrainer",
    "PackingTrainer",
    "PackingTrainerMixin",
    "PackingTrainingArguments",
]
