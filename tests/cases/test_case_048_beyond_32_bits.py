"""2³¹ tokens and more: offsets are 64 bits wide where they have to be (048)."""

import numpy as np
import pyarrow as pa
from datasets import Dataset

from hf_packing.data import PackedDataset, dataset_lengths
from hf_packing.plan import plan_packs


ROWS, LENGTH = 262_144, 8_192


def test_case_048_many_small_chunks():
    """2³¹ tokens in chunks of 2²¹: each has 32-bit offsets, the dataset needs more."""
    chunk = pa.table({"input_ids": [np.full(LENGTH, number % 100, dtype=np.int8) for number in range(256)]})
    # With a fingerprint of its own datasets does not hash, and so does not read, what is not there.
    dataset = Dataset(pa.concat_tables([chunk] * (ROWS // 256)), fingerprint="many-chunks")
    lengths = dataset_lengths(dataset)
    assert int(lengths.sum()) == 2**31
    plan = plan_packs(lengths, 2 * LENGTH)
    assert plan.num_packs == ROWS // 2 and plan.ledger.tokens_packed == 2**31
    packed = PackedDataset(dataset, plan)
    row = packed[len(packed) - 1]
    assert row["input_ids"].size == 2 * LENGTH
    assert row["input_ids"][[0, -1]].tolist() == [number % 256 % 100 for number in row["sequence_ids"].tolist()]


def test_case_048_one_chunk_with_64_bit_offsets(tmp_path):
    """One chunk of 2³¹ values, in a sparse file: nothing is read but what is asked for."""
    path = tmp_path / "tokens"
    with open(path, "wb") as file:
        file.truncate(ROWS * LENGTH + LENGTH)
        file.seek(ROWS * LENGTH)
        file.write(bytes(range(1, 101)))
    values = pa.Array.from_buffers(pa.int8(), (ROWS + 1) * LENGTH, [None, pa.memory_map(str(path)).read_buffer()])
    offsets = pa.array(np.arange(ROWS + 2, dtype=np.int64) * LENGTH)
    table = pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, values)})
    dataset = Dataset(table, fingerprint="one-chunk")
    lengths = dataset_lengths(dataset)
    assert int(lengths.sum()) == 2**31 + LENGTH
    packed = PackedDataset(dataset, plan_packs(lengths, LENGTH))
    last = next(row for row in packed[-3:] if row["sequence_ids"].tolist() == [ROWS])
    assert last["input_ids"][:100].tolist() == list(range(1, 101)) and not last["input_ids"][100:].any()
