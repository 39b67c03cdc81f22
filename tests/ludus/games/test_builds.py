"""Builds are launched, watched, restarted and ended: with real processes, each a game in Python."""

import json
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ludus.games import diagnostics
from ludus.games.builds import GivenUp
from ludus.games.settings import GameSettings
from ludus.protocol.codes import CloseCode
from ludus.protocol.mlagents import unity_pb2 as pb
from ludus.sdk.join import Target
from tests.ludus.games.conftest import LUDUS_LOGGER, Playing
from tests.ludus.games.unity.fakes import FakeRun, Session, SessionEnds
from tests.ports import free_port
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]


class Builds:
    """A build that can be launched, and what its processes reported."""

    def __init__(self, run: FakeRun, folder: Path) -> None:
        self.run = run
        self.env = folder / "Game.x86_64"
        self.env.write_text(
            f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tests.ludus.games.unity.game "$@"\n'
        )
        self.env.chmod(0o755)
        self.logs = folder / "logs"
        self.report = folder / "report"

    def settings(self, *env_args: str, **changes: Any) -> GameSettings:
        defaults: dict[str, Any] = {
            "env": self.env.with_suffix(""),
            "env_args": ("--report", str(self.report), *env_args),
            "base_port": free_port(2),
            "timeout_wait_seconds": 10.0,
            "logs": self.logs,
        }
        return GameSettings(Target(self.run.address, "balls", connect_timeout_seconds=5), **(defaults | changes))

    def playing(self, *env_args: str, **changes: Any) -> Playing:
        return Playing(self.settings(*env_args, **changes))

    def reported(self, event: str = "began") -> list[dict[str, Any]]:
        lines = self.report.read_text().splitlines() if self.report.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def run_reporter(self) -> list[str]:
        """Return the codes of what the run was told; its sentences are those of the log, as the fixture checks."""
        return [word.code for word in self.run.run_reporter]

    def finish_after(self, steps: int) -> None:
        """Finish the run once so many steps were made, by all games together."""
        self.finish_when(lambda: self.run.steps >= steps)

    def finish_when(self, condition: Callable[[], bool]) -> None:
        """Finish the run as soon as the condition holds."""

        def on_step(_session: Session, _message: pb.UnityMessageProto) -> None:
            if condition():
                raise SessionEnds(CloseCode.RUN_FINISHED)

        self.run.on_step = on_step


@pytest.fixture
def builds(run: FakeRun, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Builds]:
    caplog.set_level("INFO", LUDUS_LOGGER)
    builds = Builds(run, tmp_path)
    yield builds
    assert not [process["pid"] for process in builds.reported() if psutil.pid_exists(process["pid"])]


@pytest.mark.long
def test_each_copy_plays_on_a_port_of_its_own_until_the_run_ends(builds: Builds) -> None:
    builds.finish_after(60)
    settings = builds.settings(num_envs=2, no_graphics_monitor=True)

    with Playing(settings) as playing:
        assert playing.result().finished

    first, second = sorted(builds.reported(), key=lambda game: game["port"])
    report = ["--report", str(builds.report)]
    assert first["arguments"] == [
        *("--mlagents-port", str(settings.base_port)),
        *("-logFile", str(builds.logs / "Player-0.log"), *report),
    ]
    assert second["arguments"] == [
        *("-nographics", "-batchmode", "--mlagents-port", str(settings.base_port + 1)),
        *("-logFile", str(builds.logs / "Player-1.log"), *report),
    ]
    assert "127.0.0.1" in first["proxy"]
    assert len({session.session_id for session in builds.run.sessions}) == 2
    assert {join.label for join in builds.run.joins} == {f"Game on {platform.node()}"}
    assert [game["resets"] for game in builds.reported("ended")] == [1, 1]
    assert sorted(file.name for file in builds.logs.iterdir()) == ["Player-0.log", "Player-1.log"]


def test_a_build_is_expected_to_go_on(builds: Builds) -> None:
    builds.finish_after(5)
    with builds.playing() as playing:
        assert playing.result().finished

    assert [session.parks for session in builds.run.sessions] == [False]


def test_a_port_that_is_taken_is_skipped(builds: Builds, caplog: pytest.LogCaptureFixture) -> None:
    builds.finish_after(5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with builds.playing(base_port=port) as playing:
            assert playing.result().finished

    (game,) = builds.reported()
    assert game["port"] > port
    assert diagnostics.failure("port_taken", port=port, instead=game["port"]).sentence in caplog.text
    assert builds.run_reporter() == ["port_taken"]


@pytest.mark.long
def test_a_build_that_crashes_is_started_again_and_no_other_is_reset(
    builds: Builds, caplog: pytest.LogCaptureFixture
) -> None:
    builds.finish_when(lambda: len(builds.run.sessions) == 3 and builds.run.sessions[-1].calls > 10)
    with builds.playing("--crash-once-at", "20", num_envs=2, restarts_rate_limit_n=3) as playing:
        assert playing.result().finished

    crashed = builds.reported("crashed")
    assert len(crashed) == 1
    assert "the game exited with code 3" in caplog.text
    assert f"last words of {crashed[0]['pid']}" in caplog.text
    assert len(builds.run.sessions) == 2 + len(crashed) == len({each.session_id for each in builds.run.sessions})
    assert [game["resets"] for game in builds.reported("ended")] == [1, 1]
    kept = next(file for file in builds.logs.iterdir() if file.name.endswith(".1.log"))
    assert str(crashed[0]["pid"]) in kept.read_text()
    assert set(builds.run_reporter()) == {"exited"}
    assert [
        f"last words of {game['pid']}" in word.sentence
        for game, word in zip(crashed, builds.run.run_reporter, strict=True)
    ]
    # Each word is of another life, which had played.
    told = {word.session_id for word in builds.run.run_reporter}
    assert len(told) == len(crashed)
    assert told < {session.session_id for session in builds.run.sessions}


@pytest.mark.long
def test_a_build_that_crashes_too_often_is_given_up(builds: Builds, caplog: pytest.LogCaptureFixture) -> None:
    with (
        builds.playing("--crash-at", "3", restarts_rate_limit_n=2) as playing,
        pytest.raises(GivenUp, match="started again 2 times") as error,
    ):
        playing.result()

    assert error.value.code == "restarts_exhausted"
    assert len(builds.reported("crashed")) == 3
    assert "--restarts-rate-limit-n 2" in caplog.text
    assert builds.run_reporter() == ["exited", "exited", "restarts_exhausted"]
    assert builds.run.run_reporter[-1].sentence == str(error.value)


@pytest.mark.long
def test_the_others_play_on_when_one_build_is_given_up(builds: Builds) -> None:
    builds.finish_after(100)
    # Only one of the processes crashes, and it may not be started again.
    with builds.playing("--crash-once-at", "20", num_envs=2, max_lifetime_restarts=0) as playing:
        assert playing.result().finished

    assert len(builds.reported()) == 2


@pytest.mark.long
def test_a_game_that_quits_by_itself_is_started_again(builds: Builds, caplog: pytest.LogCaptureFixture) -> None:
    with builds.playing("--quit-at", "3") as playing, pytest.raises(GivenUp):
        playing.result()

    assert diagnostics.failure("game_quit").sentence in caplog.text
    assert len(builds.reported()) == 2
    assert all(session.closed_by_game for session in builds.run.sessions)
    assert builds.run_reporter() == ["game_quit", "restarts_exhausted"]


def test_a_build_that_ends_before_it_dials_shows_its_last_words(
    builds: Builds, caplog: pytest.LogCaptureFixture
) -> None:
    with builds.playing("--exit-at-once", "7", max_lifetime_restarts=1) as playing, pytest.raises(GivenUp):
        playing.result()

    assert "the game exited with code 7 before it had dialled" in caplog.text
    assert "last words of" in caplog.text
    assert "it printed:\n    cannot open display" in caplog.text
    assert (builds.logs / "Player-0.out").read_text() == "cannot open display\n"
    assert builds.run_reporter() == ["exited_early", "restarts_exhausted"]
    assert "it printed:\n    cannot open display" in builds.run.run_reporter[0].sentence
    # No game has played: it is the life that asked for a place whose game does not come.
    assert {word.session_id for word in builds.run.run_reporter} == {builds.run.joins[0].session_id}


def test_a_build_that_never_dials_is_given_up_at_once(builds: Builds, tmp_path: Path) -> None:
    builds.env.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec sleep 60\n")
    with builds.playing(timeout_wait_seconds=1.0) as playing, pytest.raises(GivenUp, match="has not dialled") as error:
        playing.result()

    assert error.value.code == "never_dialled"
    assert [(word.code, word.sentence) for word in builds.run.run_reporter] == [("never_dialled", str(error.value))]
    (pid,) = (tmp_path / "pids").read_text().split()
    assert not psutil.pid_exists(int(pid))


@pytest.mark.long
def test_a_build_that_hangs_is_ended(builds: Builds) -> None:
    started = time.monotonic()
    with (
        builds.playing("--hang-at", "3", timeout_wait_seconds=4.0, max_lifetime_restarts=0) as playing,
        pytest.raises(GivenUp, match="has not called for 4 s") as error,
    ):
        playing.result()

    assert time.monotonic() - started < 30
    assert [word.sentence for word in builds.run.run_reporter] == [str(error.value)]


def test_a_build_lives_through_the_death_of_its_collector(builds: Builds) -> None:
    builds.finish_after(10**9)
    with builds.playing() as playing:
        eventually(lambda: builds.run.steps > 20)
        builds.run.kill_collector()
        eventually(lambda: builds.run.waits > 1)
        steps = builds.run.steps
        builds.finish_after(steps + 50)
        builds.run.start_collector()
        assert playing.result().finished

    (game,) = builds.reported("ended")
    assert game["resets"] == 2
    assert len(builds.reported()) == 1


@pytest.mark.long
def test_a_player_that_follows_unity_step_by_step_lives_through_it_too(run: FakeRun, tmp_path: Path) -> None:
    env = tmp_path / "Player"
    env.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tests.unity.player "$@"\n')
    env.chmod(0o755)
    behaviors = json.dumps([{"name": "Jumper?team=0", "continuous": 2}, {"name": "Seer?team=1", "continuous": 2}])
    settings = GameSettings(
        Target(run.address, "balls"),
        env=env,
        env_args=("--behaviors", behaviors, "--steps", "150", "--pace", "0.01"),
        base_port=free_port(),
        logs=tmp_path / "logs",
        max_lifetime_restarts=0,
    )
    run.side_channel = b""
    with Playing(settings) as playing:
        eventually(lambda: run.steps > 50)
        run.restart_collector()
        with pytest.raises(GivenUp, match="ended the session by itself"):
            playing.result()

    summary = json.loads((tmp_path / "logs" / "Player-0.out").read_text().splitlines()[-1])
    assert (summary["ending"], summary["steps"], summary["resets"]) == ("left", 150, 1)
    assert sorted(run.sessions[1].known) == sorted(run.sessions[0].known)
    assert len(run.sessions[0].known) == 2


def test_an_interrupt_tells_the_games_to_quit(builds: Builds) -> None:
    with builds.playing(num_envs=2) as playing:
        eventually(lambda: sum(session.calls > 3 for session in builds.run.sessions) == 2, "both games play")
        playing.interrupt()
        playing.result()

    assert len(builds.reported("ended")) == 2


@pytest.mark.long
def test_a_game_that_does_not_quit_in_time_is_killed(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.games.builds.KILL_SECONDS", 0.5)
    with builds.playing("--stubborn", timeout_wait_seconds=3.0) as playing:
        eventually(lambda: builds.run.steps > 3)
        interrupted = time.monotonic()
        playing.interrupt()
        playing.result()

    assert len(builds.reported("ended")) == 1
    assert 3.0 <= time.monotonic() - interrupted < 10


def test_a_second_interrupt_does_not_wait(builds: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.games.builds.KILL_SECONDS", 0.5)
    with builds.playing("--stubborn", timeout_wait_seconds=60.0) as playing:
        eventually(lambda: builds.run.steps > 3)
        playing.interrupt()
        eventually(lambda: builds.reported("ended"))
        interrupted = time.monotonic()
        playing.interrupt()
        playing.result()

    assert time.monotonic() - interrupted < 5


def test_cameras_without_graphics_are_pointed_out(builds: Builds, caplog: pytest.LogCaptureFixture) -> None:
    builds.finish_after(5)
    with builds.playing("--cameras", no_graphics=True) as playing:
        assert playing.result().finished

    assert "cameras show nothing there" in caplog.text
    assert builds.run_reporter() == ["cameras_without_graphics"]


def test_a_port_among_the_users_arguments_is_refused(builds: Builds) -> None:
    with builds.playing("--mlagents-port", "5005") as playing, pytest.raises(GivenUp, match="--base-port"):
        playing.result()


def test_a_build_that_is_not_there_is_refused(builds: Builds, tmp_path: Path) -> None:
    with builds.playing(env=tmp_path / "Gone") as playing, pytest.raises(GivenUp, match="looked for"):
        playing.result()


def test_a_file_that_is_no_program_is_refused(builds: Builds) -> None:
    builds.env.write_bytes(b"\x00\x01\x02")

    with builds.playing() as playing, pytest.raises(GivenUp, match="cannot be started"):
        playing.result()


def test_what_is_wrong_with_the_run_is_said_before_a_build_is_launched(builds: Builds) -> None:
    builds.run.ended = "SUCCEEDED"
    with builds.playing() as playing:
        assert playing.result().finished

    assert builds.reported() == []
