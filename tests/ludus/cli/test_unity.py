"""`ludus unity` takes what is typed to the builds, says what happens, and its exit code says how it ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from ludus.cli.unity import unity
from ludus.protocol.codes import CloseCode
from ludus.protocol.credentials import CLIENT_TOKEN, SIMULATOR_TOKEN
from ludus.protocol.mlagents import unity_pb2 as pb
from ludus.protocol.options import GATEWAY_VARIABLE
from ludus.protocol.side_channels import EngineConfiguration, engine_configuration, split
from tests.ludus.games.test_builds import ROOT
from tests.ludus.games.unity.fakes import SECONDS, FakeRun, Game, Session, SessionEnds
from tests.ports import free_port
from tests.waiting import eventually


@pytest.fixture
def run() -> Iterator[FakeRun]:
    with FakeRun(side_channel=b"") as run:
        yield run
        assert run.violations == []


@pytest.fixture
def build(tmp_path: Path) -> Path:
    file = tmp_path / "Game.x86_64"
    file.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tests.ludus.games.unity.game "$@"\n')
    file.chmod(0o755)
    return file


def play(run: FakeRun, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run the command here to its end; return its exit code and what it said. Builds are processes all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(unity, arguments, env={GATEWAY_VARIABLE: run.address})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stderr


def start(run: FakeRun, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "ludus.cli", "unity", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), GATEWAY_VARIABLE: run.address},
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, errors = process.communicate(timeout=3 * SECONDS)
    return process.returncode, errors


def reported(folder: Path, event: str = "began") -> list[dict[str, Any]]:
    report = folder / "report"
    lines = report.read_text().splitlines() if report.exists() else []
    return [line for line in map(json.loads, lines) if line["event"] == event]


def ends_with(run: FakeRun, code: CloseCode) -> None:
    def on_step(_session: Session, _message: pb.UnityMessageProto) -> None:
        if run.steps >= 10:
            raise SessionEnds(code, "the run is over")

    run.on_step = on_step


@pytest.mark.parametrize(("code", "expected"), [(CloseCode.RUN_FAILED, 4), (CloseCode.BEHAVIOR_NOT_CONFIGURED, 1)])
def test_the_exit_code_says_how_the_run_ended(
    run: FakeRun, build: Path, tmp_path: Path, code: CloseCode, expected: int
) -> None:
    ends_with(run, code)

    outcome, errors = play(run, tmp_path, "balls", "--env", str(build), "--base-port", str(free_port()))

    assert outcome == expected, errors
    assert "the run is over" in errors
    assert "Traceback" not in errors


def test_everything_behind_env_args_goes_to_the_build(run: FakeRun, build: Path, tmp_path: Path) -> None:
    ends_with(run, CloseCode.RUN_FINISHED)
    typed = ("--no-graphics", "--base-port", str(port := free_port()), "--logs", "kept", "--label", "my service")

    code, errors = play(
        run, tmp_path, "balls", "--env", "Game", *typed, "--env-args", "--report", "report", "--quit-at", "1000"
    )

    assert code == 0, errors
    (game,) = reported(tmp_path)
    assert game["arguments"] == [
        *("-nographics", "-batchmode", "--mlagents-port", str(port)),
        *("-logFile", str(tmp_path / "kept" / "Player-0.log"), "--report", "report", "--quit-at", "1000"),
    ]
    assert {join.label for join in run.joins} == {"my service"}
    assert {join.run for join in run.joins} == {"balls"}


def test_player_logs_are_kept_where_ml_agents_keeps_them(run: FakeRun, build: Path, tmp_path: Path) -> None:
    ends_with(run, CloseCode.RUN_FINISHED)

    play(run, tmp_path, "my run/3", "--env", str(build), "--base-port", str(free_port()))

    assert "last words" in (tmp_path / "results" / "my_run_3" / "run_logs" / "Player-0.log").read_text()


@pytest.mark.long
def test_engine_settings_that_were_typed_reach_the_game(run: FakeRun, tmp_path: Path) -> None:
    ends_with(run, CloseCode.RUN_FINISHED)
    port = free_port()
    process = start(
        run,
        tmp_path,
        *("balls", "--editor-port", str(port), "--width", "640", "--height", "360", "--quality-level", "1"),
        *("--time-scale", "2.5", "--target-frame-rate", "-1", "--capture-frame-rate", "0"),
    )

    game = Game(port)
    game.introduce()
    frames = split(game.get_ready().unity_input.rl_input.side_channel)
    *_, last = game.play()

    assert frames == engine_configuration(EngineConfiguration(640, 360, 1, 2.5, -1, 0))
    assert last.header.status == 400
    assert finish(process)[0] == 0


@pytest.mark.long
def test_engine_settings_are_the_runs_where_nothing_was_typed(run: FakeRun, tmp_path: Path) -> None:
    run.side_channel = b"the run's frames, whatever they are"
    ends_with(run, CloseCode.RUN_FINISHED)
    process = start(run, tmp_path, "balls", "--editor-port", str(port := free_port()))

    game = Game(port).begin()
    list(game.play())

    assert finish(process)[0] == 0
    assert game.heard[:-1] == run.sessions[0].replies


def test_a_gateway_out_of_reach_has_an_exit_code_and_no_game_is_started(
    run: FakeRun, build: Path, tmp_path: Path
) -> None:
    typed = ("--server", "127.0.0.1:1", "--connect-timeout", "0", "--env-args", "--report", "report")

    code, errors = play(run, tmp_path, "balls", "--env", str(build), *typed)

    assert code == 3
    assert errors.count("nothing listens at 127.0.0.1:1") == 1
    assert reported(tmp_path) == []


def test_a_token_is_sent(run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.token, run.ended = "secret", "SUCCEEDED"

    assert play(run, tmp_path, "balls", "--token", "secret")[0] == 0
    monkeypatch.setenv(CLIENT_TOKEN, "secret")
    assert play(run, tmp_path, "balls")[0] == 0
    monkeypatch.setenv(SIMULATOR_TOKEN, "wrong")
    code, errors = play(run, tmp_path, "balls")
    assert code == 1
    assert "does not accept the token in LUDUS_SIMULATOR_TOKEN" in errors


@pytest.mark.long
def test_an_interrupt_tells_the_games_to_quit_and_waits_for_them(run: FakeRun, build: Path, tmp_path: Path) -> None:
    process = start(
        run,
        tmp_path,
        *("balls", "--env", str(build), "--num-envs", "2", "--base-port", str(free_port(2))),
        *("--env-args", "--report", "report"),
    )
    eventually(lambda: sum(session.calls > 3 for session in run.sessions) == 2, "both games play")

    process.send_signal(signal.SIGINT)

    code, errors = finish(process)
    assert code == 130, errors
    assert "telling the games to quit" in errors
    assert len(reported(tmp_path, "ended")) == 2
    assert not any(psutil.pid_exists(game["pid"]) for game in reported(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["balls", "--num-envs", "2"], "--num-envs counts copies of a build"),
        (["balls", "--time-scale", "-1", "--env", "x"], "--time-scale"),
        (["--env", "x"], "Missing argument 'RUN'"),
        (["balls", "--env-arg", "x"], "No such option"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(unity, arguments)

    assert result.exit_code == 2
    assert problem in result.output


def test_a_build_that_is_not_there_is_named(run: FakeRun, tmp_path: Path) -> None:
    code, errors = play(run, tmp_path, "balls", "--env", "Gone")

    assert code == 1
    assert "there is no build Gone" in errors
