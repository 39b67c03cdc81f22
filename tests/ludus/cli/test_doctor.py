"""`ludus doctor`: sentences, exit codes, and games that dial by themselves."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ludus.adapters.gymnasium import EnvironmentSimulation
from ludus.cli import ludus
from ludus.cli.exits import Exit
from ludus.play.checks.first_steps import FirstSteps
from ludus.protocol.batches import ActionBatch
from ludus.sdk import SimulatorError, connect
from tests.ludus.adapters.table import Table
from tests.ports import free_port
from tests.toys.ailing import Walk
from tests.unity.builds import write_build

WALK = "tests.toys.ailing:Walk"


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(ludus, ["doctor", *arguments], env={"LUDUS_SIMULATOR_SERVER": None})


@pytest.mark.long
def test_a_sound_game_is_said_to_be_so_with_its_speed() -> None:
    result = doctor(WALK)

    assert result.exit_code == Exit.OK, result.output
    assert "behavior  Walk: sees vector 4 float32; acts by choices of 3, 3" in result.output
    assert "steps/s of the game alone: at most" in result.output
    assert "nothing was found" in result.output


@pytest.mark.long
def test_a_fault_is_a_sentence_with_what_to_do() -> None:
    result = doctor(WALK, "--env-arg", "fault=pays nothing")

    assert result.exit_code == Exit.UNMET
    assert "finding   Walk: All" in result.output
    assert "had a return of exactly 0. Let the game's reward depend on what the agent does." in result.output


def test_a_game_that_cannot_be_played_is_refused_with_the_line_of_its_own_code() -> None:
    result = doctor(WALK, "--env-arg", "fault=crashes")

    assert result.exit_code == Exit.REFUSED
    assert "RuntimeError: the level file is missing (ailing.py:" in result.output


@pytest.mark.long
def test_json_has_the_findings_and_the_figures() -> None:
    result = doctor(WALK, "--env-arg", "fault=sees millions", "--json")

    report = json.loads(result.stdout)
    (finding,) = report["findings"]
    assert (finding["code"], finding["behavior"]) == ("observation_scale", "Walk")
    assert "normalize" in finding["remedy"]
    assert report["steps_per_day"] > report["steps_per_second"] > 0
    assert report["gateway"]["server"] == "127.0.0.1:7070"


@pytest.mark.long
def test_a_gateway_that_is_not_there_has_its_own_exit_code() -> None:
    address = f"127.0.0.1:{free_port()}"

    alone, with_game = doctor("--server", address), doctor(WALK, "--server", address, "--steps", "100")

    assert (alone.exit_code, with_game.exit_code) == (Exit.UNREACHABLE, Exit.UNREACHABLE)
    assert f"nothing listens at {address}" in alone.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gymnasium:Nope-v1"], "Nope"),
        (["nothing at all"], "names no game"),
        ([WALK, "--port", "7075"], "give one"),
        ([WALK, "--steps", "0"], "0 is not in the range"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments: list[str], words: str) -> None:
    result = doctor(*arguments)

    assert result.exit_code == Exit.USAGE
    assert words in result.output


@pytest.mark.long
def test_a_game_that_dials_by_itself_is_looked_at() -> None:
    port = free_port()

    def play() -> None:
        try:
            game = EnvironmentSimulation([Walk("pays nothing")], "Walk")
            connect(game, run="any", server=f"127.0.0.1:{port}", connect_timeout_seconds=30.0)
        except SimulatorError:
            return  # the doctor has seen enough

    player = threading.Thread(target=play, daemon=True)
    player.start()
    result = doctor("--port", str(port), "--seconds", "60")

    assert result.exit_code == Exit.UNMET, result.output
    assert "returns_constant" in result.output


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="the build is a script of POSIX")
def test_a_unity_build_is_started_and_looked_at(tmp_path: Path) -> None:
    behaviors = json.dumps([{"name": "Ball", "continuous": 2}, {"name": "Wall", "branches": [3]}])
    build = write_build(tmp_path / "Balls.x86_64", "--behaviors", behaviors)

    result = doctor("--env", str(build), "--steps", "300", "--seconds", "60")

    assert "behavior  Ball" in result.output, result.output
    assert "behavior  Wall" in result.output
    assert "random decisions" in result.output
    assert result.exit_code in {Exit.OK, Exit.UNMET}


@pytest.mark.skipif(sys.platform == "win32", reason="the build is a script of POSIX")
def test_a_build_that_ends_is_said_so_with_its_last_lines(tmp_path: Path) -> None:
    build = tmp_path / "Broken.x86_64"
    build.write_text("#!/bin/sh\necho no license >&2\nexit 3\n")
    build.chmod(0o755)

    result = doctor("--env", str(build))

    assert result.exit_code == Exit.REFUSED
    assert "The build ended with" in result.output
    assert "no license" in result.output


def test_a_build_that_is_not_there_is_a_wrong_command_line(tmp_path: Path) -> None:
    result = doctor("--env", str(tmp_path / "Nothing"))

    assert result.exit_code == Exit.USAGE


@pytest.mark.long
def test_no_game_that_dials_is_said_so() -> None:
    result = doctor("--port", str(free_port()), "--seconds", "0.2")

    assert result.exit_code == Exit.REFUSED
    assert "No game has shown an agent" in result.output


def test_the_first_steps_of_a_game_that_plays_are_looked_at_once() -> None:
    said: list[str] = []
    observe = FirstSteps(lambda _level, sentence: said.append(sentence))
    simulation = EnvironmentSimulation([Walk("pays nothing")], "Walk")
    table = Table(simulation)
    specs = {spec.name: spec for spec in simulation.behaviors}
    batches: dict[str, Any] = table.reset()
    wanted = True
    steps = 0
    while steps < 2600:
        wanted = observe(list(batches.values()), specs) and wanted
        batches = table.act(ActionBatch("Walk", None, np.zeros((1, 0), np.float32), np.ones((1, 2), np.int32)))
        steps += 1

    assert not wanted
    assert len(said) == 1
    assert "returns_constant" in said[0]
