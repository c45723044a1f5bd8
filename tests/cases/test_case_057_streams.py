"""Streams are packed like datasets, end, and do not grow (057, 060)."""

import os

import psutil
import pytest
from datasets import Dataset, Features, IterableDataset, List, Value
from torch.utils.data import DataLoader

from hf_packing.data import PackedStream, PackingTransform, PaddingFreeCollator


def four_rows():
    for length in (3, 5, 2, 6):
        yield {"input_ids": list(range(length))}


def test_case_057_a_stream_is_packed_by_map_and_by_packed_stream():
    stream = IterableDataset.from_generator(four_rows)
    transform = PackingTransform(max_length=8)
    features = transform.output_features(Features({"input_ids": List(Value("int64"))}))
    packed = stream.map(transform, batched=True, batch_size=4, remove_columns=["input_ids"], features=features)
    assert sorted(sorted(row["seq_lengths"]) for row in packed) == [[2, 6], [3, 5]]
    assert set(packed.features) == {"input_ids", "labels", "seq_lengths"}
    assert sorted(sorted(row["seq_lengths"].tolist()) for row in PackedStream(stream, 8)) == [[2, 6], [3, 5]]
    arrow = Dataset.from_list(list(four_rows())).to_iterable_dataset().with_format("arrow")
    packed = arrow.map(transform, batched=True, batch_size=4, remove_columns=["input_ids"])
    assert sum(len(table) for table in packed) == 2


class Documents:
    """`count` documents of 50 tokens."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for number in range(self.count):
            yield {"input_ids": [number % 1000] * 50}


def resident():
    process = psutil.Process(os.getpid())
    return sum(part.memory_info().rss for part in (process, *process.children(recursive=True)))


@pytest.mark.parametrize("count", [10_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_case_060_it_ends_and_does_not_grow(count):
    loader = DataLoader(
        PackedStream(Documents(count), 2048),
        batch_size=4,
        collate_fn=PaddingFreeCollator(),
        num_workers=2,
        persistent_workers=True,
    )
    memory = []
    for _ in range(2):
        tokens = sum(batch["input_ids"].numel() for batch in loader)
        assert tokens == 50 * count
        memory.append(resident())
    assert memory[1] - memory[0] < 50 * 2**20
