"""Data: packed datasets, padding-free batches, and the boundaries between sequences.

tokenised dataset ─► plan_dataset ─► PackedDataset (rows on access) ─┐
                 ╰─► pack_dataset, PackingTransform (rows stored) ───┼─► PaddingFreeCollator ─► batch ─► unpack
stream ────────────► PackedStream (rows as they come) ───────────────┘
"""

from .collator import FACTS_KEY, PackedBatch, PaddingFreeCollator
from .columns import TokenColumn, dataset_lengths
from .cost import attention_cost
from .pack import pack_dataset
from .packed_dataset import PackedDataset
from .packed_stream import PackedStream
from .planning import plan_dataset
from .sampler import PackBatchSampler
from .transform import PackingTransform
from .unpack import unpack, unpack_by_row


__all__ = [
    "FACTS_KEY",
    "PackBatchSampler",
    "PackedBatch",
    "PackedDataset",
    "PackedStream",
    "PackingTransform",
    "PaddingFreeCollator",
    "TokenColumn",
    "attention_cost",
    "dataset_lengths",
    "pack_dataset",
    "plan_dataset",
    "unpack",
    "unpack_by_row",
]
