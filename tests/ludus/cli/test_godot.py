"""`ludus godot` takes what is typed to the builds, starts games again that die or hang, and waits for the editor."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from ludus.cli.godot import godot
from ludus.demonstrations import read
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import GATEWAY_VARIABLE
from ludus.sdk.contract.scripted import Peer, ScriptedServer, finish_after
from tests.ludus.games.godot.peer import ScriptedGame, at, build
from tests.ports import free_port
from tests.waiting import eventually

SECONDS = 60
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run the command here; return its exit code and all that was said."""

    def invoke(server: ScriptedServer, *arguments: str) -> tuple[int, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            result = CliRunner().invoke(godot, arguments, env={GATEWAY_VARIABLE: server.address})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stderr + capfd.readouterr().err

    return invoke


def forever(peer: Peer) -> Iterator[pb.ConnectResponse]:
    peer.hello()
    yield peer.welcome({"difficulty": 1.0})
    while True:
        yield from peer.play(1)


def ports() -> tuple[str, str]:
    return "--base-port", str(free_port())


@pytest.mark.long
def test_copies_of_a_build_play_until_the_run_ends_and_are_recorded(run: Run, tmp_path: Path) -> None:
    program = build(tmp_path, "plain")
    with ScriptedServer(finish_after(30), finish_after(30)) as server:
        code, errors = run(server, "chase", "--env", str(program), "--num-envs", "2", *ports(), "--record", "shown.npz")

    assert code == 0, errors
    assert server.violations == []
    assert {join.label.partition(" on ")[0] for join in server.joins} == {"plain.x86_64"}
    assert len({join.session_id for join in server.joins}) == 2
    spec = server.specs["shared_policy"]
    assert spec.actions.continuous_size == 1
    assert '"godot"' in spec.game_layout
    assert read(tmp_path / "shown-0.npz").spec.observations[0].shape == (5,)
    assert list((tmp_path / "results" / "chase" / "run_logs").glob("Player-*.out"))
    assert "the game does not tell how its episodes end" in errors
    assert {report.code for report in server.reports} == {"no_terminal_observation"}


@pytest.mark.long
def test_what_is_typed_reaches_the_build(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "says.x86_64"
    program.write_text('#!/bin/sh\necho "$@" >&2\nexit 3\n')
    program.chmod(0o755)
    port = free_port()
    typed = ("--no-graphics", "--speedup", "8", "--action-repeat", "4", "--seed", "5", "--restarts", "0")
    with ScriptedServer() as server:
        code, errors = run(
            server, "chase", "--env", "./says", "--base-port", str(port), *typed, "--env-args", "--level=2", "--", "--x"
        )

    assert code == 1
    assert "the game exited with code 3 before it had dialled" in errors
    line = f"--port={port} --env_seed=5 --disable-render-loop --headless --fixed-fps 60 --action_repeat=4 --speedup=8"
    assert f"{line} --level=2 -- --x" in errors
    codes = [report.code for report in server.reports]
    assert codes == ["exited_early", "restarts_exhausted"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "says"),
    [("crashes", "killed by signal 9"), ("hangs", "has not answered 'action' for 2 s"), ("text", "no JSON")],
)
def test_a_game_that_dies_hangs_or_talks_nonsense_ends_its_own_session_and_is_started_again(
    script: str, says: str, run: Run, tmp_path: Path
) -> None:
    program = build(tmp_path, script)
    with ScriptedServer(forever, finish_after(5)) as server:
        code, errors = run(server, "chase", "--env", str(program), *ports(), "--timeout-wait", "2")

    assert code == 0, errors
    assert says in errors
    assert "starting it again in 1 s" in errors
    assert len(server.streams) == 2
    assert any(says in report.sentence for report in server.reports)


@pytest.mark.long
def test_the_editor_is_waited_for_and_may_be_stopped(tmp_path: Path) -> None:
    port = free_port()
    with ScriptedServer(forever, finish_after(5)) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "ludus.cli", "godot", "chase", "--base-port", str(port), "--call", "difficulty=set"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, GATEWAY_VARIABLE: server.address},
        )
        with ScriptedGame(port, at(10, None)) as stopped:
            pass
        with ScriptedGame(port):
            _, errors = process.communicate(timeout=SECONDS)

    assert process.returncode == 0, errors
    assert f"press Play in the Godot editor (port {port})" in errors
    assert "Stop was pressed: press Play to go on" in errors
    assert {"type": "call", "method": "set_1"} in stopped.received


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_command_leaves_no_game(number: signal.Signals, tmp_path: Path) -> None:
    program = build(tmp_path, "plain")
    with ScriptedServer(forever) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "ludus.cli", "godot", "chase", "--env", str(program), *ports()],
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
            env={**os.environ, GATEWAY_VARIABLE: server.address},
        )
        eventually(lambda: any(peer.last_step > 5 for peer in server.streams))
        games = psutil.Process(process.pid).children(recursive=True)
        assert len(games) == 2
        process.send_signal(number)
        process.wait(SECONDS)
        eventually(lambda: not any(game.is_running() and game.status() != psutil.STATUS_ZOMBIE for game in games))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a RUN, or a configuration"),
        (["chase", "--num-envs", "2"], "--num-envs counts copies of a build"),
        (["chase", "--env", "nowhere/game"], "there is no build nowhere/game"),
        (["chase", "--resume"], "--resume belongs to --config"),
        (["chase", "--call", "difficulty"], "'difficulty' names no method"),
        (["chase", "--call", "difficulty=set difficulty"], "names no method"),
        (["chase", "--teams", "red"], "'red' names no teams"),
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_starts(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(godot, arguments)

    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
