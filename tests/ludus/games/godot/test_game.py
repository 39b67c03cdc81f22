"""Builds of Godot: their command line, their port, and how they end."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ludus.games.godot.game import GodotGame, GodotSettings, find_build
from ludus.sdk.crashes import GameNotMade
from ludus.sdk.errors import GameLost
from tests.ludus.games.godot.peer import build
from tests.ports import free_port

OBSERVE = {"type": "env_info"}
ACT = {"type": "action", "action": [{"move": [0.0], "jump": 0}] * 2}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, ["--port=11009", "--env_seed=7"]),
        ({"fixed_fps": 30}, ["--port=11009", "--env_seed=7", "--fixed-fps", "30"]),
        (
            {"no_graphics": True},
            ["--port=11009", "--env_seed=7", "--disable-render-loop", "--headless", "--fixed-fps", "60"],
        ),
        (
            {"speedup": 8, "action_repeat": 4, "difficulty": 2, "fog": True, "level": "cave", "wind": 0.5},
            [
                *("--port=11009", "--env_seed=7", "--action_repeat=4", "--speedup=8", "--difficulty=2", "--fog=true"),
                *("--level=cave", "--wind=0.5"),
            ],
        ),
        ({"env_args": ["--path", "."]}, ["--port=11009", "--env_seed=7", "--path", "."]),
    ],
)
def test_a_build_is_started_as_its_plug_in_reads_it(arguments: dict[str, Any], line: list[str]) -> None:
    assert GodotSettings.of(arguments).arguments(11009, 7) == line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"speedup": "fast"}, "speedup is 'fast'; give a number above 0"),
        ({"action_repeat": 0}, "action_repeat is 0"),
        ({"fixed_fps": 59.5}, "fixed_fps is 59.5"),
        ({"call": "set_difficulty"}, "call is 'set_difficulty'; write call="),
    ],
)
def test_settings_of_another_type_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(GameNotMade, match=says):
        GodotSettings.of(arguments)


def test_a_build_is_a_file_or_an_engine_on_the_search_path(tmp_path: Path) -> None:
    assert find_build(str(tmp_path / build(tmp_path, "plain").stem)) == tmp_path / "plain.x86_64"
    assert find_build("sh").name == "sh"
    with pytest.raises(GameNotMade, match="there is no build chase"):
        find_build("chase")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Other tests of this process may have children of their own."""
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert {child.pid for child in psutil.Process().children()} <= before


def play(folder: Path, script: str, **settings: Any) -> GodotGame:
    options = GodotSettings(**{"base_port": free_port(), "timeout_wait": 20.0, "logs": str(folder), **settings})
    return GodotGame(build(folder, script), options, None)


def test_a_build_that_quits_when_it_is_asked_leaves_its_log(tmp_path: Path) -> None:
    port = free_port()
    game = play(tmp_path, "plain", base_port=port)
    assert game.ask(OBSERVE)["n_agents"] == 2
    game.close()

    assert (tmp_path / f"Player-{port}.out").read_text() == f"playing on port {port}\n"


def test_a_port_that_is_taken_is_left_to_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        game = play(tmp_path, "plain", base_port=port)
        game.close()
    [log] = tmp_path.glob("*.out")
    assert log.name > f"Player-{port}.out"

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(GameNotMade, match=f"port {port}, which the editor dials, is taken"):
            GodotGame(None, GodotSettings(base_port=port), None)


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("early", "exited_early", "exited with code 1 before it had dialled; it printed:\n    there is no level"),
        ("silent", "never_dialled", "silent.x86_64 runs, but has not dialled 127.0.0.1:.*Sync node"),
    ],
)
def test_a_build_that_does_not_dial_is_lost_with_what_it_printed(
    script: str, code: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(GameLost, match=says) as lost:
        play(tmp_path, script, timeout_wait=1.0 if script == "silent" else 20.0)
    assert lost.value.code == code


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("crashes", "exited", "the game was killed by signal 9; it printed:\n    playing on port"),
        ("hangs", "stopped_answering", "has not answered 'action' for 4 s: .*; it printed:\n    playing on port"),
        ("text", "no_json", "hello.*; it printed:\n    playing on port"),
    ],
)
def test_a_build_that_dies_hangs_or_talks_nonsense_is_lost_and_leaves_no_process(
    script: str, code: str, says: str, tmp_path: Path
) -> None:
    game = play(tmp_path, script, timeout_wait=4.0 if script == "hangs" else 20.0)
    game.ask(OBSERVE)
    for _ in range(20):
        game.ask(ACT, "step")
    with pytest.raises(GameLost, match=says) as lost:
        game.ask(ACT, "step")
    game.close()

    assert lost.value.code == code
