"""PackPlan: reading, saving, equality and fingerprints."""

import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
from datasets.fingerprint import Hasher

from hf_packing.errors import PackingError
from hf_packing.plan import PackPlan, plan_packs


LENGTHS = [5, 2, 9, 3, 1, 0, 12, 7]


@pytest.fixture
def plan():
    return plan_packs(LENGTHS, 10, strategy="optimal", overflow="split", seed=3, max_sequences=3)


def test_packs_are_read_by_number(plan):
    packs = [plan[i] for i in range(plan.num_packs)]
    assert len(plan) == plan.num_packs == len(packs) == len(list(plan))
    assert np.concatenate([ids for ids, _, _ in packs]).tolist() == plan.sequence_ids.tolist()
    assert plan[-1][0].tolist() == packs[-1][0].tolist()
    assert plan.pack_sizes.tolist() == [ids.size for ids, _, _ in packs]
    assert plan.pack_tokens.tolist() == [int(lengths.sum()) for _, _, lengths in packs]
    with pytest.raises(IndexError, match=f"pack 99 of a plan of {plan.num_packs} packs"):
        plan[99]


def test_a_plan_cannot_be_changed(plan):
    with pytest.raises(ValueError, match="read-only"):
        plan.sequence_ids[0] = 7
    with pytest.raises(AttributeError):
        plan.max_length = 7


@pytest.mark.parametrize("name", ["plan.npz", "plan"])
def test_what_is_saved_is_loaded(plan, tmp_path, name):
    path = tmp_path / name
    plan.save(path)
    loaded = PackPlan.load(path)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert loaded == plan and hash(loaded) == hash(plan) and loaded.fingerprint == plan.fingerprint
    assert loaded.lower_bound == plan.lower_bound and loaded.certificate.holds()
    assert loaded.ledger == plan.ledger and loaded.describe() == plan.describe()
    assert (loaded.overflow, loaded.strategy, loaded.max_sequences) == ("split", "optimal", 3)
    assert not loaded.lengths.flags.writeable


def test_an_empty_plan_is_saved_too(tmp_path):
    empty = plan_packs([], 8)
    empty.save(tmp_path / "empty.npz")
    assert PackPlan.load(tmp_path / "empty.npz") == empty


def test_damage_and_other_formats_are_refused(plan, tmp_path):
    path = tmp_path / "plan.npz"
    plan.save(path)
    with np.load(path) as file:
        content = dict(file)
    header = content["header"].tobytes()

    def written(**changes):
        np.savez(path, **{**content, **changes})
        return path

    def as_header(old, new):
        return np.frombuffer(header.replace(old, new), dtype=np.uint8)

    with pytest.raises(PackingError, match="does not match its fingerprint"):
        PackPlan.load(written(lengths=content["lengths"][::-1]))
    with pytest.raises(PackingError, match="is a plan of format 9, this version reads 1; plan again"):
        PackPlan.load(written(header=as_header(b'"format": 1', b'"format": 9')))
    path.write_text("not a plan")
    with pytest.raises(PackingError, match=r"is not a saved plan: it is no \.npz file"):
        PackPlan.load(path)
    np.savez(path, lengths=content["lengths"])
    with pytest.raises(PackingError, match="is not a saved plan"):
        PackPlan.load(path)


def test_equal_content_is_equal_and_nothing_else():
    plan = plan_packs(LENGTHS, 12)
    assert plan == plan_packs(np.array(LENGTHS, np.int16), np.int64(12), multiple_of=np.int32(1))
    different = [
        plan_packs(LENGTHS, 13),
        plan_packs(LENGTHS[::-1], 12),
        plan_packs(LENGTHS, 12, strategy="sequential"),
        plan_packs(LENGTHS, 12, seed=0),
        plan_packs([*LENGTHS, 0], 12),
    ]
    assert len({plan, *different}) == 6
    assert plan != "a plan"


def test_the_fingerprint_is_the_same_in_every_process(plan):
    code = f"from hf_packing.plan import plan_packs; print(plan_packs({LENGTHS}, 10, strategy='optimal', "
    code += "overflow='split', seed=3, max_sequences=3).fingerprint)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == plan.fingerprint
    assert len(plan.fingerprint) == 32 and int(plan.fingerprint, 16)


def test_datasets_hashes_a_plan_by_its_content(plan):
    again = plan_packs(LENGTHS, 10, strategy="optimal", overflow="split", seed=3, max_sequences=3)
    before = Hasher.hash(plan)
    assert plan.fingerprint and plan.lower_bound  # reading them must not change the hash
    assert Hasher.hash(plan) == before == Hasher.hash(again)
    assert Hasher.hash(plan_packs(LENGTHS, 12)) != before


def test_a_plan_travels_by_pickle(plan):
    buffer = io.BytesIO(pickle.dumps(plan))
    loaded = pickle.load(buffer)
    assert loaded == plan and not loaded.starts.flags.writeable


def test_describe_tells_packs_fill_bound_and_losses():
    text = plan_packs([5, 2, 30, 0], 8, overflow="truncate").describe()
    assert "2 packs of 8 (bfd), 93.75 % full, proven minimum 2 (size)" in text
    assert "4 in = 3 packed + 0 dropped + 1 empty" in text
    assert "37 in = 15 packed + 22 truncated + 0 dropped; 16 slots hold 1 padding" in text
    assert "1 truncated, 0 split" in text
    wasteful = plan_packs(np.repeat([1025, 514, 513, 510], [6, 6, 6, 12]), 2048)
    assert "11 packs of 2,048" in wasteful.describe() and "2 above the proven minimum 9" in wasteful.describe()
