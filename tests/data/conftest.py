"""Datasets in the shapes that `datasets` gives them: stored, sliced, shuffled, joined, wide, formatted."""

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, Features, LargeList, List, Value, concatenate_datasets


def token_rows(count, seed=0, longest=40):
    """Rows with everything that can be packed or has to be left alone."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        ids = rng.integers(3, 99, rng.integers(2, longest)).tolist()
        rows.append(
            {
                "input_ids": ids,
                "labels": [-100 if token < 20 else token for token in ids],
                "weights": rng.random(len(ids)).tolist(),
                "text": f"row {number}",
                "scores": [0.5, 1.0],
            }
        )
    return rows


def _large_lists(dataset):
    features = Features({**dataset.features, "input_ids": LargeList(Value("int64"))})
    return dataset.cast(features)


def _many_chunks(dataset):
    return Dataset(pa.concat_tables([dataset.data.table.slice(at, 7) for at in range(0, len(dataset), 7)]))


def _fixed_lengths(dataset):
    rows = [{"input_ids": (row["input_ids"] * 8)[:8], "text": "x"} for row in dataset]
    return Dataset.from_list(
        rows, features=Features({"input_ids": List(Value("int32"), length=8), "text": Value("string")})
    )


SHAPES = {
    "stored": lambda d: d,
    "sliced": lambda d: d.select(range(5, 61)),
    "picked": lambda d: d.select([3, 70, 1, 1, 44]),
    "shuffled": lambda d: d.shuffle(seed=1),
    "shuffled slice": lambda d: d.shuffle(seed=1).select(range(10, 50)).select(range(3, 30)),
    "filtered": lambda d: d.filter(lambda row: len(row["input_ids"]) % 2 == 0),
    "joined": lambda d: concatenate_datasets([d.select(range(20)), d.shuffle(seed=2), d.select([5])]),
    "side by side": lambda d: concatenate_datasets(
        [d.select_columns(["input_ids", "labels"]), d.select_columns(["text", "weights"])], axis=1
    ),
    "many chunks": _many_chunks,
    "many chunks, sliced": lambda d: _many_chunks(d).select(range(4, 40)),
    "large lists": _large_lists,
    "fixed lengths": _fixed_lengths,
    "numpy": lambda d: d.with_format("numpy"),
    "torch": lambda d: d.with_format("torch", columns=["input_ids", "labels"]),
    "arrow": lambda d: d.with_format("arrow"),
    "without labels": lambda d: d.remove_columns("labels"),
    "8-bit ids": lambda d: d.cast_column("input_ids", List(Value("uint8"))),
    "one row": lambda d: d.select([0]),
    "empty": lambda d: d.select([]),
}


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """80 rows on disk, as datasets are met."""
    path = tmp_path_factory.mktemp("data") / "stored"
    Dataset.from_list(token_rows(80)).save_to_disk(path)
    return Dataset.load_from_disk(path)


@pytest.fixture(params=SHAPES)
def any_dataset(request, stored):
    """The stored rows in one of the shapes."""
    return SHAPES[request.param](stored)
