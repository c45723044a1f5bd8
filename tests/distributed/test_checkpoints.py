"""Which checkpoint a run resumes from: the newest one that every rank finished writing."""

import pytest

from hf_packing.train.state import last_checkpoint, save_run_state


def written(folder, step, ranks, of=2):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for rank in ranks:
        save_run_state(path, rank, of, {"global_step": step})


def both(folder):
    """The choice of two ranks that tell each other what they have."""
    seen = []
    last_checkpoint(folder, 0, lambda mine: seen.append(mine[0]) or mine)
    last_checkpoint(folder, 1, lambda mine: seen.append(mine[0]) or mine)
    choices = {last_checkpoint(folder, rank, lambda mine: seen) for rank in (0, 1)}
    assert len(choices) == 1, "the ranks chose differently"
    return choices.pop()


@pytest.mark.parametrize("finished", [(), (0,), (1,)])
def test_a_half_written_checkpoint_is_passed_over(tmp_path, caplog, finished):
    written(tmp_path, 9, (0, 1))
    written(tmp_path, 10, (0, 1))
    written(tmp_path, 11, finished)
    with caplog.at_level("WARNING"):
        assert both(tmp_path) == str(tmp_path / "checkpoint-10")
    assert "checkpoint-11 was not finished when the run ended; resuming from" in caplog.text


def test_the_newest_whole_one_by_number(tmp_path, caplog):
    written(tmp_path, 9, (0, 1))
    written(tmp_path, 100, (0, 1))
    with caplog.at_level("WARNING"):
        assert both(tmp_path) == str(tmp_path / "checkpoint-100")
    assert not caplog.text


def test_checkpoints_of_another_trainer_as_transformers_does(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    (tmp_path / "checkpoint-20").mkdir()
    assert both(tmp_path) == str(tmp_path / "checkpoint-20")


def test_none(tmp_path):
    assert both(tmp_path) is None
    assert both(tmp_path / "missing") is None
