"""What lies beside a checkpoint."""

from __future__ import annotations

import pytest

from hf_packing.errors import PackingError
from hf_packing.train.state import load_run_state, save_run_state


STATE = {"meter": {"num_tokens": 3}, "global_step": 2}


def test_what_is_saved_is_loaded(tmp_path):
    save_run_state(tmp_path / "checkpoint-2", 1, 2, STATE)
    assert load_run_state(tmp_path / "checkpoint-2", 1, 2, needed=True).items() >= STATE.items()
    assert [path.name for path in (tmp_path / "checkpoint-2").iterdir()] == ["packing_state_1.json"]


def test_a_checkpoint_of_another_trainer_is_fine_unless_its_place_is_needed(tmp_path):
    assert load_run_state(tmp_path, 0, 1, needed=False) is None
    with pytest.raises(PackingError, match=r"packing_state_0\.json is missing.*repeat sequences.*earlier checkpoint"):
        load_run_state(tmp_path, 0, 1, needed=True)


def test_a_stream_of_other_ranks_cannot_be_taken_over(tmp_path):
    save_run_state(tmp_path, 0, 4, STATE)
    with pytest.raises(PackingError, match=r"written by 4 ranks, this run has 2.*Resume with 4 ranks"):
        load_run_state(tmp_path, 0, 2, needed=True)
    assert load_run_state(tmp_path, 0, 2, needed=False) is not None
