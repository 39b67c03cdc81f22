"""`ludus replay`: sentences and exit codes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ludus.cli import ludus
from ludus.play.recordings.file import Frame, finish
from tests.recordings import content, frames


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "game.ludusrec"
    path.write_bytes(content(frames(5)))
    finish(path, {"behaviors": {"CartPole": {}}})
    return path


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(ludus, ["replay", *map(str, arguments)])


def test_a_replay_says_what_it_is_and_what_happened_at_which_frame(file: Path) -> None:
    done = call(file)

    assert done.exit_code == 1
    assert "session-x, simulator 3, native" in done.stdout
    assert "error, malformed_message: a message of 1 bytes" in done.stdout
    assert "frame 12  +1.100 s  1 bytes that are no message" in done.stdout
    assert "  NOW:  Close, malformed_message: a message of 1 bytes is no ConnectRequest" in done.stdout
    assert "7 messages played" in done.stdout
    assert "1 difference; the session has ended" in done.stdout  # the recording has no Close


def test_without_a_difference_the_exit_code_is_0(tmp_path: Path) -> None:
    path = tmp_path / "good.ludusrec"
    path.write_bytes(content(frames(5)[:-1]))

    done = call(path)

    assert (done.exit_code, "0 differences" in done.stdout) == (0, True)
    everything = call(path, "--all").stdout
    assert everything.count("\nframe ") == 6


def test_json_has_the_findings(file: Path) -> None:
    answer = json.loads(call(file, "--json").stdout)

    assert (answer["differences"], answer["received"], answer["ended"]) == (1, 7, True)
    assert answer["findings"][0]["frame"] == 12


def test_inspect_shows_all_messages_in_a_line_each_or_one_agent_by_agent(file: Path) -> None:
    everything, one = call(file, "--inspect"), call(file, "--inspect", "2")

    assert everything.exit_code == one.exit_code == 0
    assert everything.stdout.count("\nframe ") == 12
    assert "Hello of test, session session-x: CartPole observes [float32 [4]]" in everything.stdout
    assert "CartPole agent 7: reward 0.980067, observation [0.89" in one.stdout
    assert json.loads(call(file, "--inspect", "3", "--json").stdout)["kind"] == "actions"


@pytest.mark.parametrize("number", ["0", "13", "x"])
def test_a_frame_that_is_not_there_is_a_usage_error(file: Path, number: str) -> None:
    done = call(file, "--inspect", number)

    assert (done.exit_code, "1 to 12" in done.output) == (2, True)


def test_what_is_no_recording_is_refused_in_a_sentence(tmp_path: Path) -> None:
    other = tmp_path / "other.ludusrec"
    other.write_bytes(b"PK\x03\x04 a zip")

    for arguments in ((other,), (other, "--inspect"), (other, "--learn")):
        done = call(*arguments)
        assert done.exit_code == 1
        assert "this is no recording" in done.output
        assert "Traceback" not in done.output


def test_a_model_that_cannot_be_loaded_is_a_usage_error(file: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no model")

    done = call(file, "--model", str(model))

    assert (done.exit_code, "cannot be loaded" in done.output) == (2, True), done.output


def test_a_torn_file_is_played_up_to_its_tear(tmp_path: Path) -> None:
    path = tmp_path / "torn.ludusrec"
    whole = content(frames(5)[:-1])
    path.write_bytes(whole[:-20] + b"")

    done = call(path)

    assert done.exit_code == 0
    assert "torn" in done.stdout
    assert "cannot be read" in done.stdout


def test_a_learner_learns_alone(file: Path) -> None:
    done = call(file, "--learn")

    assert (done.exit_code, "7 messages played" in done.stdout) == (0, True), done.output


def test_control_characters_of_a_game_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    listed: list[Frame] = frames(2)
    listed[0] = listed[0]._replace(data=listed[0].data.replace(b"test", b"\x1b[2J"))
    path = tmp_path / "hostile.ludusrec"
    path.write_bytes(content(listed))

    for arguments in ((path, "--all"), (path, "--inspect"), (path, "--inspect", "1")):
        assert "\x1b" not in call(*arguments).output
