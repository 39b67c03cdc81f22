"""`ludus simulate` starts, watches and ends its processes, and its exit code says how the run ended."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import psutil
import pytest
from click.testing import CliRunner

from ludus.cli.simulate import Reporter, simulate
from ludus.demonstrations import read
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode
from ludus.protocol.credentials import CLIENT_TOKEN, SIMULATOR_TOKEN
from ludus.sdk.contract.scripted import Peer, Script, ScriptedServer, assign, finish_after, refuse
from ludus.sdk.errors import Failure
from ludus.sdk.join import Target
from tests.waiting import eventually

CARTPOLE = "gymnasium:CartPole-v1"
TICTACTOE = "pettingzoo:classic.tictactoe_v3"
SECONDS = 60


def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "ludus.cli", "simulate", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command here, and the processes that it starts as ever; return its exit code and all that was said."""

    def invoke(*arguments: str, **environment: str) -> tuple[int, str]:
        result = CliRunner().invoke(simulate, arguments, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stderr + capfd.readouterr().err  # tracebacks come from the processes themselves

    return invoke


@pytest.mark.long
def test_every_process_plays_all_its_environments_until_the_run_is_finished_and_records_them(
    run: Run, tmp_path: Path
) -> None:
    with ScriptedServer(finish_after(60), finish_after(60), token="secret") as server:
        code, errors = run(
            *(CARTPOLE, "--run", "cartpole", "--count", "2", "--envs", "3", "--server", server.address),
            *("--token", "secret", "--record", str(tmp_path / "shown.npz")),
        )

    assert code == 0, errors
    assert sorted(file.name for file in tmp_path.iterdir()) == ["shown-0.npz", "shown-1.npz"]
    shown = read(tmp_path / "shown-0.npz")
    assert f"shown-0.npz holds {shown.steps} transitions" in errors
    assert [observation.shape for observation in shown.spec.observations] == [(4,)]
    assert shown.rewards.tolist() == [1.0] * shown.steps
    assert shown.complete.any()
    assert server.violations == []
    assert len(server.session_ids) == 2
    assert all(peer.running["CartPole"] == {0, 1, 2} for peer in server.streams)
    assert all(join.label.startswith("CartPole-v1 x3") for join in server.joins)
    connected = [line for line in errors.splitlines() if " connected to run " in line]
    assert connected
    for line in connected:
        assert re.fullmatch(r"process [01]: connected to run \S+ as simulator \d+", line), "simulators have one number"


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        pytest.param([], {CLIENT_TOKEN: "secret"}, marks=pytest.mark.long),
        ([], {CLIENT_TOKEN: "another", SIMULATOR_TOKEN: "secret"}),
        (["--token", "secret"], {CLIENT_TOKEN: "another", SIMULATOR_TOKEN: "another"}),
    ],
)
def test_the_token_comes_from_the_command_line_or_the_more_specific_variable(
    run: Run, options: list[str], environment: dict[str, str]
) -> None:
    with ScriptedServer(finish_after(3), token="secret") as server:
        code, errors = run(CARTPOLE, "--run", "cartpole", "--server", server.address, *options, **environment)

    assert code == 0, errors


@pytest.mark.long
def test_games_that_do_not_take_an_option_end_with_its_sentence_and_are_not_started_again(
    run: Run, tmp_path: Path
) -> None:
    game = tmp_path / "poles.py"
    game.write_text("import gymnasium\n\ndef make():\n    return gymnasium.make_vec('CartPole-v1', num_envs=2)\n")
    with ScriptedServer(forever) as server:
        code, errors = run(f"python:{game}:make", *("--run", "poles", "--envs", "4", "--server", server.address))

    assert (code, server.streams) == (2, [])
    assert "has as many games as it was made with: leave out --envs" in errors
    assert "Traceback" not in errors
    assert "starting it again" not in errors


@pytest.mark.long
def test_a_game_that_crashes_is_started_again_and_tells_its_run_why_with_the_line_of_its_own_code(
    run: Run, tmp_path: Path
) -> None:
    crashes = tmp_path / "crashes"
    crashes.write_text("1")
    with ScriptedServer(forever, finish_after(10)) as server:
        code, errors = run(
            "gymnasium:tests.toys.crashing:Crashing-v0",
            *("--run", "crashing", "--server", server.address),
            LUDUS_TEST_CRASHES=str(crashes),
        )

    assert code == 0, errors
    assert "RuntimeError: the game crashed" in errors
    assert "process 0: crashed; starting it again in 1 s" in errors
    (report,) = server.reports
    assert report.code == "game_crashed"
    assert re.fullmatch(r"the game crashed: RuntimeError: the game crashed \(crashing\.py:\d+\)", report.sentence)
    assert report.session_id == server.joins[0].session_id


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_a_process_that_is_killed_and_given_up_is_reported_to_the_run_with_the_games_last_lines(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = tmp_path / "killed.py"
    game.write_text(
        """
import os, signal
import gymnasium
from tests.toys.crashing import Crashing

class Killed(Crashing):
    def step(self, action):
        print("out of memory", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    monkeypatch.setattr("ludus.cli.simulate.FIRST_PAUSE_SECONDS", 0.1)
    with ScriptedServer(forever, forever) as server:
        code, errors = run(f"python:{game}:Killed", *("--run", "killed", "--server", server.address, "--restarts", "1"))

    assert code == 1, errors
    first, report = server.reports
    assert first.code == "exited"
    assert (report.code, report.session_id) == ("restarts_exhausted", server.joins[1].session_id)
    assert report.sentence == (
        "the process of the game ended with signal SIGKILL for the 2. time in a row; it is not started again; "
        "it printed:\n    out of memory"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("statement", "said", "reported"),
    [
        ("sys.exit()", "SystemExit", r"the game crashed: SystemExit \(exiting\.py:12\)"),
        (
            "os._exit(3)",
            "process 0: ended with exit code 3; starting it again in 0.1 s",
            "the process of the game ended with exit code 3",
        ),
    ],
)
def test_a_game_that_exits_is_started_again_and_its_exit_code_is_not_that_of_the_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, said: str, reported: str
) -> None:
    monkeypatch.setattr("ludus.cli.simulate.FIRST_PAUSE_SECONDS", 0.1)
    exits = tmp_path / "exits"
    exits.write_text("1")
    game = tmp_path / "exiting.py"
    game.write_text(
        f"""
import os
import sys
from pathlib import Path
from tests.toys import crashing

class Exiting(crashing.Crashing):
    def step(self, action):
        exits = Path(os.environ["LUDUS_TEST_CRASHES"])
        if exits.read_text() == "1":
            exits.write_text("0")
            {statement}
        return super().step(action)
"""
    )
    with ScriptedServer(forever, finish_after(10)) as server:
        code, errors = run(
            f"python:{game}", *("--run", "exiting", "--server", server.address), LUDUS_TEST_CRASHES=str(exits)
        )

    assert code == 0, errors
    assert len(server.joins) == 2
    assert said in errors
    (report,) = server.reports
    assert re.fullmatch(reported, report.sentence)


class SlowToReport(ScriptedServer):
    """A gateway that answers a report once a process has come back, or after a while."""

    came_back = threading.Event()
    answers: tuple[bool, ...] = ()
    """For each report, whether a process had come back by then."""

    def Join(self, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:  # noqa: N802
        if self.joins and self.joins[0].session_id != request.session_id:
            self.came_back.set()
        return super().Join(request, context)

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportResponse:  # noqa: N802
        self.answers += (self.came_back.wait(30),)
        return super().Report(request, context)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="no signals")
def test_a_process_that_is_killed_is_started_again_while_its_end_is_reported(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ludus.cli.simulate.FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr("ludus.sdk.join.REPORT_SECONDS", 60.0)
    game = tmp_path / "killed_once.py"
    game.write_text(
        f"""
import os, signal
from pathlib import Path
from gymnasium.envs.classic_control import CartPoleEnv

class KilledOnce(CartPoleEnv):
    def step(self, action):
        killed = Path({str(tmp_path / "killed")!r})
        if not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
"""
    )
    with SlowToReport(forever, finish_after(5)) as server:
        code, errors = run(f"python:{game}:KilledOnce", *("--run", "killed", "--server", server.address))

    assert code == 0, errors
    assert server.answers == (True,)


def test_a_report_that_can_not_be_sent_keeps_none_of_the_following_and_none_is_sent_after_the_end(
    tmp_path: Path,
) -> None:
    problem = Failure("exited", "it was killed", permanent=False)
    with ScriptedServer() as server:
        target, reporter = Target(server.address, "run"), Reporter()
        reporter.report(replace(target, ca_file=tmp_path / "gone.pem"), problem)
        reporter.report(target, problem)
        eventually(lambda: len(server.reports) == 1)
        reporter.close(drop=True)
        reporter.report(target, problem)
        reporter.end()

    assert len(server.reports) == 1


def forever(peer: Peer) -> Iterator[pb.ConnectResponse]:
    """Script: answer until the client goes away."""
    peer.hello()
    yield peer.welcome()
    yield from peer.play(10**9)


def closing(code: CloseCode) -> Script:
    def script(peer: Peer) -> Iterator[pb.ConnectResponse]:
        peer.hello()
        yield peer.welcome()
        yield peer.close(code)

    return script


@pytest.mark.long
def test_a_behavior_that_the_run_does_not_have_is_answered_with_the_option_that_renames_it(run: Run) -> None:
    with ScriptedServer(closing(CloseCode.BEHAVIOR_NOT_CONFIGURED)) as server:
        code, errors = run(CARTPOLE, "--run", "cartpole", "--server", server.address)

    assert code == 1
    assert "; --behavior NAME gives the game's behavior another name" in errors


@pytest.mark.long
def test_processes_that_say_the_same_are_heard_once(run: Run) -> None:
    def no_such_run(_: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        refuse(context, grpc.StatusCode.NOT_FOUND, "run_not_found", f"There is no run {request.run!r}.")

    with ScriptedServer(join=no_such_run) as server:
        code, errors = run(CARTPOLE, "--run", "nothing", "--count", "2", "--server", server.address)

    assert code == 1
    assert errors.count("There is no run 'nothing'.") == 1


@pytest.mark.long
def test_a_gateway_out_of_reach_has_an_exit_code(run: Run) -> None:
    code, errors = run(CARTPOLE, "--run", "cartpole", "--server", "127.0.0.1:1", "--connect-timeout", "0")

    assert code == 3
    assert "nothing listens at 127.0.0.1:1" in errors


@pytest.fixture
def playing() -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """A command whose two processes play."""
    with ScriptedServer(forever, forever) as server:
        process = start(CARTPOLE, "--run", "cartpole", "--count", "2", "--server", server.address)
        eventually(lambda: sum(peer.last_step > 5 for peer in server.streams) == 2)
        yield process, psutil.Process(process.pid).children()
        process.kill()
        process.communicate(timeout=SECONDS)


def gone(children: list[psutil.Process]) -> bool:
    return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupt_ends_every_process(
    playing: tuple["subprocess.Popen[str]", list[psutil.Process]], number: signal.Signals
) -> None:
    process, children = playing

    process.send_signal(number)

    assert process.wait(SECONDS) == 130
    assert len(children) == 2
    assert gone(children)


def test_processes_end_with_a_command_that_was_killed(
    playing: tuple["subprocess.Popen[str]", list[psutil.Process]],
) -> None:
    process, children = playing

    process.kill()
    process.wait(SECONDS)

    eventually(lambda: gone(children))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("CartPole-v1", "write envpool:ID, godot:BUILD, gymnasium:ID"),
        ("gymnasium:", "write envpool:ID, godot:BUILD, gymnasium:ID"),
        ("gymnasium:Nothing-v0", "Environment `Nothing` doesn't exist"),
        ("gymnasium:CartPole-v9", "cannot be simulated"),
        ("gymnasium:no_such_module:Game-v0", "No module named 'no_such_module'"),
        ("pettingzoo:classic.tictactoe_v99", "there is no game classic.tictactoe_v99"),
    ],
)
def test_what_cannot_be_simulated_is_a_usage_error(source: str, problem: str) -> None:
    result = CliRunner().invoke(simulate, [source, "--run", "x"])

    assert result.exit_code == 2
    assert problem in result.output


class TestPettingZoo:
    @pytest.mark.long
    def test_every_player_of_every_game_is_an_agent_and_can_be_recorded(self, run: Run, tmp_path: Path) -> None:
        record = tmp_path / "shown.npz"
        with ScriptedServer(finish_after(40)) as server:
            code, errors = run(
                TICTACTOE, "--run", "t", "--envs", "3", "--server", server.address, "--record", str(record)
            )

        assert code == 0, errors
        assert server.violations == []
        (peer,) = server.streams
        assert peer.running == {"tictactoe?team=0": {0, 2, 4}, "tictactoe?team=1": {1, 3, 5}}
        assert peer.episodes > 0
        assert server.joins[0].label.startswith("classic.tictactoe_v3 x3")
        shown = read(record)
        assert shown.spec.behavior == "tictactoe"
        assert shown.action_masks is not None
        assert int(shown.complete.sum()) == peer.episodes

    @pytest.mark.long
    def test_a_scripted_team_is_played_in_the_simulator_and_its_games_are_counted(self, run: Run) -> None:
        with ScriptedServer(finish_after(60)) as server:
            code, errors = run(
                TICTACTOE,
                *("--run", "t", "--envs", "2", "--server", server.address),
                *("--behavior", "XO", "--scripted", "0=random"),
            )

        assert code == 0, errors
        assert server.violations == []
        (peer,) = server.streams
        assert set(peer.running) == {"XO?team=1"}
        reported = {stat.key for stat in server.stats}
        assert reported == {"Environment/Win", "Environment/Draw", "Environment/Loss"}
        assert sum(stat.value for stat in server.stats) == peer.episodes

    @pytest.mark.long
    def test_the_server_can_seed_the_episodes(self, tmp_path: Path) -> None:
        seen = tmp_path / "seeds"
        (tmp_path / "noting.py").write_text(
            "from tests.toys.arena import Arena\n"
            "class Noting(Arena):\n"
            "    def reset(self, seed=None, options=None):\n"
            f"        open({str(seen)!r}, 'a').write(f'{{seed}} {{options}}\\n')\n"
            "        super().reset(seed=seed, options=options)\n"
        )

        def seeding(peer: Peer) -> Iterator[pb.ConnectResponse]:
            peer.hello()
            yield peer.welcome({"opening": 7.0})
            yield from peer.play(1)
            yield peer.reset({"opening": 9.0, "gravity": 2.0})
            yield from peer.play(1)
            yield peer.close()

        with ScriptedServer(seeding) as server:
            process = start(
                "pettingzoo:noting:Noting",
                *("--run", "t", "--server", server.address, "--seed-parameter", "opening"),
                PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path.cwd())]),
            )
            _, errors = process.communicate(timeout=SECONDS)

        assert process.returncode == 0, errors
        assert seen.read_text().splitlines() == ["7 None", "9 {'gravity': 2.0}"]

    @pytest.mark.long
    def test_a_parameter_that_is_no_seed_ends_the_simulator_with_a_sentence(self, run: Run) -> None:
        def half(peer: Peer) -> Iterator[pb.ConnectResponse]:
            peer.hello()
            yield peer.welcome({"opening": 0.5})
            peer.step()

        with ScriptedServer(half) as server:
            code, errors = run(
                TICTACTOE, "--run", "t", "--server", server.address, "--seed-parameter", "opening", "--restarts", "3"
            )

        assert code == 1
        assert "the environment parameter 'opening' is 0.5, which is no seed" in errors
        assert "starting it again" not in errors

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (["--scripted", "2=random"], "the game has no team 2, only 0, 1"),
            (["--scripted", "0=random", "--scripted", "1=random"], "no team is left to train"),
            (["--scripted", "1=nobody.onnx"], "'nobody.onnx' is neither 'random' nor a file"),
            (["--scripted", "random"], "write for instance 1=random or 1=champion.onnx"),
            (["--teams", "0,1,2"], "names 3 teams, but tictactoe has 2 players (player_1, player_2)"),
            (["--separate", "--behavior", "XO"], "leave out --behavior"),
        ],
    )
    def test_what_cannot_be_is_refused_before_anything_dials(self, arguments: list[str], problem: str) -> None:
        with ScriptedServer() as server:
            result = CliRunner().invoke(simulate, [TICTACTOE, "--run", "t", "--server", server.address, *arguments])

        assert result.exit_code == 2
        assert problem in " ".join(result.output.split())
        assert server.joins == []

    def test_a_scripted_model_must_be_one_of_this_game(self, tmp_path: Path) -> None:
        model = tmp_path / "broken.onnx"
        model.write_text("my thesis")

        result = CliRunner().invoke(simulate, [TICTACTOE, "--run", "t", "--scripted", f"1={model}"])

        assert result.exit_code == 2
        assert "cannot be loaded" in result.output

    def test_a_missing_runtime_of_a_scripted_model_is_named(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        model = tmp_path / "champion.onnx"
        model.write_bytes(b"")
        monkeypatch.setitem(sys.modules, "onnxruntime", None)

        result = CliRunner().invoke(simulate, [TICTACTOE, "--run", "t", "--scripted", f"1={model}"])

        assert result.exit_code == 2
        assert "onnxruntime is not installed here; pip install onnxruntime" in result.output


def test_a_game_of_one_has_no_team_to_be_scripted() -> None:
    result = CliRunner().invoke(simulate, [CARTPOLE, "--run", "x", "--scripted", "0=random"])

    assert result.exit_code == 2
    assert "the game has no team 0, nor any other" in result.output


class TestRecording:
    def test_a_kill_loses_at_most_the_running_episodes(self, tmp_path: Path) -> None:
        path = tmp_path / "shown.npz"
        with ScriptedServer(forever) as server:
            process = start(CARTPOLE, "--run", "cartpole", "--server", server.address, "--record", str(path))
            eventually(lambda: sum(peer.episodes for peer in server.streams) >= 20)
            ended = sum(peer.episodes for peer in server.streams)
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()
            process.communicate()

        assert read(path).complete.sum() >= ended

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("shown.demo", "recordings are .npz files; name it shown.npz"),
            ("nowhere/shown.npz", "there is no folder"),
            ("precious.npz", "it cannot be continued, name another file"),
        ],
    )
    def test_a_file_that_cannot_be_written_is_refused_before_anything_is_played(
        self, name: str, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / "precious.npz").write_text("my thesis")

        result = CliRunner().invoke(simulate, [CARTPOLE, "--run", "cartpole", "--record", str(tmp_path / name)])

        assert result.exit_code == 2
        assert message in result.output


MAZES = "tests/toys/mazes.py"


class TestPythonGames:
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("source", "options", "running"),
        [
            (f"python:{MAZES}:Maze", ("--envs", "3", "--count", "2"), {"Maze": {0, 1, 2}}),
            pytest.param("tests.toys.mazes:Maze", ("--behavior", "Runner"), {"Runner": {0}}, marks=pytest.mark.long),
            (f"python:{MAZES}:Race", ("--teams", "0,1"), {"Race?team=0": {0}, "Race?team=1": {1}}),
            pytest.param(
                *(f"python:{MAZES}:Crowd", ("--env-arg", "walkers=3"), {"Walker": {0, 1, 2, 3}}), marks=pytest.mark.long
            ),
        ],
    )
    def test_a_game_of_ones_own_plays_in_supervised_processes_and_is_recorded(
        self, run: Run, tmp_path: Path, source: str, options: tuple[str, ...], running: dict[str, set[int]]
    ) -> None:
        several = "--count" in options
        with ScriptedServer(finish_after(80), finish_after(80)) as server:
            code, errors = run(
                source, "--run", "m", "--server", server.address, "--record", str(tmp_path / "shown.npz"), *options
            )

        assert code == 0, errors
        assert server.violations == []
        assert len(server.session_ids) == 1 + several
        assert all(peer.running == running for peer in server.streams)
        for name in ["shown-0.npz", "shown-1.npz"] if several else ["shown.npz"]:
            assert read(tmp_path / name).action_masks is not None

    @pytest.mark.long
    def test_a_crash_shows_the_games_traceback_and_not_that_of_ludus(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "broken.py").write_text(
            "from tests.toys.mazes import Maze\n"
            "class Broken(Maze):\n"
            "    def step(self, action):\n"
            "        raise RuntimeError('the floor gave way')\n"
        )
        with ScriptedServer(forever) as server:
            code, errors = run(
                *(f"python:{tmp_path / 'broken.py'}", "--run", "m", "--server", server.address, "--restarts", "0"),
                PYTHONPATH=str(Path.cwd()),
            )

        assert code == 1
        assert "RuntimeError: the floor gave way" in errors
        assert errors.count("  File ") == 1

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("method", "expected"),
        [
            (
                "def step(self, action):\n        return 0, 0.0, True, {}\n",
                (
                    "Old.step (old.py:3): it returns a tuple of 4; in Gymnasium it returns "
                    "observation, reward, terminated, truncated, info"
                ),
            ),
            (
                "def reset(self, *, seed=None, options=None):\n        return 0\n",
                "Old.reset (old.py:3): it returns 0; in Gymnasium it returns observation, info",
            ),
        ],
    )
    def test_a_game_that_answers_as_in_openai_gym_ends_with_a_sentence_and_no_restart(
        self, run: Run, tmp_path: Path, method: str, expected: str
    ) -> None:
        (tmp_path / "old.py").write_text(f"from tests.toys.mazes import Maze\nclass Old(Maze):\n    {method}")
        with ScriptedServer(forever) as server:
            code, errors = run(
                *(f"python:{tmp_path / 'old.py'}", "--run", "m", "--server", server.address), PYTHONPATH=str(Path.cwd())
            )

        assert code == 1
        assert expected in errors
        assert "Traceback" not in errors
        assert len(server.streams) == 1

    def test_a_reset_without_gymnasiums_arguments_is_a_usage_error(self, tmp_path: Path) -> None:
        (tmp_path / "older.py").write_text(
            "from tests.toys.mazes import Maze\nclass Older(Maze):\n    def reset(self):\n        return 0\n"
        )

        result = CliRunner().invoke(simulate, [f"python:{tmp_path / 'older.py'}", "--run", "x"])

        assert result.exit_code == 2
        assert "write def reset(self, *, seed=None, options=None)" in " ".join(result.output.split())

    @pytest.mark.long
    def test_a_simulator_of_a_queued_run_says_that_it_waits_and_for_what(self, run: Run) -> None:
        def queued(server: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
            if len(server.joins) < 3:
                return pb.JoinResponse(
                    wait=pb.Wait(reason="Run m is QUEUED: no slot is free.", retry_after_seconds=0.1)
                )
            return assign(server, request, context)

        with ScriptedServer(finish_after(5), join=queued) as server:
            code, errors = run(f"python:{MAZES}:Maze", "--run", "m", "--server", server.address)

        assert code == 0, errors
        assert errors.count("process 0: waiting: Run m is QUEUED: no slot is free.") == 1

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("python:no_such.py", "there is no file"),
            (f"python:{MAZES}", f"has several games: Maze, Race, Crowd; write {MAZES}:Maze"),
            (f"python:{MAZES}:Score", "Score in tests/toys/mazes.py is a class, but not a gymnasium.Env"),
            ("tests.toys.mazes:Nothing", "tests.toys.mazes has no Nothing; it defines the classes Maze,"),
            ("pettingzo:classic", "there is no module pettingzo"),
            (
                "python:",
                "pettingzoo:MODULE, python:FILE.py[:CLASS] or MODULE:CLASS",
            ),
        ],
    )
    def test_what_is_no_game_is_a_usage_error(self, source: str, problem: str) -> None:
        result = CliRunner().invoke(simulate, [source, "--run", "x"])

        assert result.exit_code == 2
        assert problem in " ".join(result.output.split())
        assert "Traceback" not in result.output

    def test_an_error_in_the_constructor_is_shown_with_the_games_traceback(self) -> None:
        result = CliRunner().invoke(simulate, [f"python:{MAZES}:Maze", "--run", "x", "--env-arg", "size=1"])

        assert result.exit_code == 2
        assert "Maze raises ValueError: a maze of 1 cells has no way" in " ".join(result.output.split())
        assert result.output.count("\n  File ") == 1
        assert "\\n" not in result.output, "a traceback has lines"
