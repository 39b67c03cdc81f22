"""Recordings as demonstrations."""

from pathlib import Path

import pytest

from ludus.demonstrations import read
from ludus.play.recordings.episodes import write_episodes
from ludus.play.recordings.file import BadRecording
from tests.recordings import content, frames


def test_steps_have_the_actions_that_answered_them_and_the_rewards_that_followed(tmp_path: Path) -> None:
    (tmp_path / "game.ludusrec").write_bytes(content(frames(5)))

    (file,) = write_episodes(tmp_path / "game.ludusrec", tmp_path / "shown.npz")

    shown = read(file)
    assert shown.lengths.tolist() == [4, 4], "five decisions of two agents; the outcome of the last one is unknown"
    assert shown.continuous[:, 0].tolist() == [0.25] * 4 + [-0.5] * 4
    assert shown.discrete[:, 0].tolist() == [0] * 4 + [1] * 4
    assert shown.rewards[:4].tolist() == [1.0] * 4
    assert not (shown.terminated | shown.truncated).any()
    assert shown.observations[0][0, 1] == pytest.approx(0.01)
    assert shown.final_observations[0][0, 1] == pytest.approx(0.05)
    assert shown.from_start.all()


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "game.ludusrec").write_bytes(b"no")

    with pytest.raises(BadRecording):
        write_episodes(tmp_path / "game.ludusrec", tmp_path / "shown.npz")
