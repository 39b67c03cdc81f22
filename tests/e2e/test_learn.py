"""`ludus learn`, with a server of its own and with one that runs: from one command to a results folder, and Ctrl-C."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest
import yaml

from ludus.client import Client
from tests.e2e.stack import LUDUS, LudusUp, Player, cartpole, environment
from tests.ludus.mlagents.results.reading import PPO, events_in, shown
from tests.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
NOT_HERE = re.compile(r".*_hist|Environment/Lesson Number/.*")
"""Tags of ML-Agents' that this run has nothing for: no distributions are kept, and there is no curriculum."""

NETWORK = {"hidden_units": 16}
SIGNALS = {"extrinsic": {}, "curiosity": {"network_settings": NETWORK}, "rnd": {"network_settings": NETWORK}}


class Learn:
    """One `ludus learn` in a folder of its own, and a game that plays in its run."""

    def __init__(self, folder: Path, config: dict[str, Any], *arguments: str) -> None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        self.folder = folder
        self.out = folder / "learn.out"
        with self.out.open("wb") as output:
            self.process = subprocess.Popen(
                [*LUDUS, "learn", "config.yaml", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )
        self.player: Player | None = None

    def play(self) -> None:
        """Start a game as soon as it is known where."""

        def place() -> re.Match[str] | None:
            assert self.process.poll() is None, self.text
            return re.search(r"Run (run_\w+) on .* games dial (\S+)\.$", self.text, re.MULTILINE)

        found = eventually(place, "ludus learn says where games dial", 120)
        self.player = Player(SimpleNamespace(gateway=found[2]), found[1])  # type: ignore[arg-type]

    @property
    def text(self) -> str:
        return self.out.read_text()

    def end(self) -> None:
        if self.player is not None:
            self.player.kill()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def learns(tmp_path: Path) -> Iterator[list[Learn]]:
    started: list[Learn] = []
    yield started
    for each in started:
        each.end()


def on(stack: LudusUp) -> tuple[str, ...]:
    """Return the options that train on a server that runs already."""
    return "--server", stack.api, "--gateway", stack.gateway


def below(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in a server's folder."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        home = (process.info["environ"] or {}).get("LUDUS_HOME", "")
        if home.startswith(str(folder)) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.mark.long
def test_one_command_trains_and_writes_what_mlagents_would(learns: list[Learn], tmp_path: Path) -> None:
    learn = Learn(
        tmp_path,
        cartpole(max_steps=1024, reward_signals=SIGNALS) | {"simulators": {}},
        "--run",
        "first",
        "--remote-env",
    )
    learns.append(learn)
    learn.play()

    code = learn.process.wait(180)

    assert code == 0, learn.text
    results = tmp_path / "results" / "first"
    files = {path.relative_to(results).as_posix() for path in results.rglob("*") if path.is_file()}
    models = {"CartPole.onnx", "CartPole/CartPole-1024.onnx", "CartPole/CartPole-1024.pt", "CartPole/checkpoint.pt"}
    logs = {"run_logs/timers.json", "run_logs/training_status.json", "configuration.yaml"}
    assert files >= models | logs
    assert "[INFO] Copied results/first/CartPole/CartPole-1024.onnx to results/first/CartPole.onnx." in learn.text
    written = shown(results / "CartPole")
    theirs = {tag for tag in shown(PPO) if not NOT_HERE.fullmatch(tag)}
    assert written.keys() >= theirs
    for tag in ("Environment/Cumulative Reward", "Environment/Episode Length"):
        assert [step for step, _ in written[tag]] == [500, 1000], tag
    names = {value.tag for event in events_in(results / "CartPole") for value in event.summary.value}
    assert "Hyperparameters/text_summary" in names
    assert not below(tmp_path), "the server that was started is ended"


@pytest.mark.long
@pytest.mark.xdist_group("stack")
@pytest.mark.usefixtures("client")
def test_a_run_begins_with_the_networks_of_another_ones_results(
    stack: LudusUp, learns: list[Learn], tmp_path: Path
) -> None:
    for name, arguments in (("first", ()), ("second", ("--initialize-from", "first"))):
        learn = Learn(
            tmp_path,
            cartpole(max_steps=512, reward_signals=SIGNALS),
            *arguments,
            "--run-id",
            name,
            *on(stack),
            "--remote-env",
        )
        learns.append(learn)
        learn.play()
        assert learn.process.wait(180) == 0, learn.text

    assert "[INFO] Initializing from results/first/CartPole/checkpoint.pt." in learn.text
    assert (tmp_path / "results" / "second" / "CartPole" / "CartPole-512.onnx").exists()


@pytest.mark.faults
def test_ctrl_c_saves_everything_and_resume_goes_on_from_there_learning_or_not(
    learns: list[Learn], tmp_path: Path
) -> None:
    def begin(max_steps: int, *arguments: str) -> Learn:
        # It learns so slowly that episodes stay short: an episode ends before each summary.
        hyperparameters = {"batch_size": 64, "buffer_size": 512, "num_epoch": 2, "learning_rate": 1e-6}
        config = cartpole(max_steps, hyperparameters=hyperparameters)
        learn = Learn(tmp_path, config, "--run-id", "stopped", "--remote-env", *arguments)
        learns.append(learn)
        learn.play()
        return learn

    def interrupt(learn: Learn) -> None:
        learn.process.send_signal(signal.SIGINT)
        assert learn.process.wait(180) == 0, learn.text
        assert "[INFO] Learning was interrupted. Please wait while the graph is generated." in learn.text
        assert not below(tmp_path), "the server that was started is ended"

    results = tmp_path / "results" / "stopped"
    learn = begin(100_000)
    eventually(lambda: ". Step: 500. " in learn.text, "the first summary", 120)
    interrupt(learn)
    model = results / "CartPole.onnx"
    first = model.read_bytes()
    stopped_at = max(saved_steps(results))

    resumed = begin(stopped_at + 1024, "--resume")

    assert resumed.process.wait(180) == 0, resumed.text
    assert f"[INFO] Resuming training from step {stopped_at}." in resumed.text
    assert saved_steps(results)[-1] == stopped_at + 1024
    assert stopped_at in saved_steps(results), "what was saved before is kept"
    steps = [step for step, _ in shown(results / "CartPole")["Environment/Cumulative Reward"]]
    assert steps == list(range(500, stopped_at + 1025, 500)), "every summary once"
    learned = model.read_bytes()
    assert learned != first

    played = begin(stopped_at + 1024, "--resume", "--inference")
    eventually(lambda: ". Not Training." in played.text, "a summary of playing", 120)
    interrupt(played)

    assert ". Training." not in played.text
    assert model.read_bytes() == learned
    assert saved_steps(results)[-1] == stopped_at + 1024, "nothing was saved"


def saved_steps(results: Path) -> list[int]:
    """Return the steps of the models that a folder has."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in (results / "CartPole").glob("CartPole-*.onnx"))


def write_build(folder: Path, behaviors: str) -> Path:
    """Write a Unity build: what is started, and dials the port that it is told."""
    path = folder / "builds" / "game.x86_64"
    path.parent.mkdir()
    path.write_text(
        f"#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m tests.unity.player --behaviors '{behaviors}' \"$@\"\n"
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A Unity build with four agents."""
    return write_build(tmp_path, '[{"name": "Learner?team=0", "continuous": 2, "agents": 4}]')


@pytest.mark.long
@pytest.mark.xdist_group("stack")
@pytest.mark.usefixtures("client")
def test_builds_are_launched_play_and_are_told_to_quit(
    stack: LudusUp, learns: list[Learn], tmp_path: Path, build: Path
) -> None:
    behavior = cartpole(max_steps=1500)["behaviors"]["CartPole"]
    arguments = ("--env", "builds/game", "--num-envs", "2", "--base-port", str(free_port(2)), "--run-id", "unity")
    learn = Learn(
        tmp_path, {"behaviors": {"Learner": behavior}}, *arguments, "--no-graphics", "--seed", "5", *on(stack)
    )
    learns.append(learn)

    code = learn.process.wait(180)

    assert code == 0, learn.text
    assert "[INFO] Connected to Unity environment with package version 3.0.0 and communication version" in learn.text
    assert "[INFO] Connected new brain: Learner?team=0" in learn.text
    assert re.search(r"^\[INFO\] Learner\. Step: 500\. .* Training\.$", learn.text, re.MULTILINE)
    results = tmp_path / "results" / "unity"
    assert (results / "Learner.onnx").exists()
    summaries = [json.loads(log.read_text().splitlines()[-1]) for log in sorted(results.glob("run_logs/Player-?.log"))]
    assert [summary["ending"] for summary in summaries] == ["ended", "ended"]
    assert {summary["seed"] for summary in summaries} == {5, 6}


@pytest.mark.long
@pytest.mark.xdist_group("stack")
def test_a_build_whose_only_behavior_is_refused_fails_the_run_with_the_refusal_as_its_reason(
    stack: LudusUp, client: Client, learns: list[Learn], tmp_path: Path, build: Path
) -> None:
    arguments = ("--env", str(build), "--base-port", str(free_port()), "--run-id", "refused", "--no-graphics")
    learn = Learn(tmp_path, cartpole(), *arguments, *on(stack))
    learns.append(learn)

    code = learn.process.wait(180)

    refusal = "the run's configuration has no behavior 'Learner', only: CartPole"
    assert code == 1, learn.text
    assert f"Error: the run ended as FAILED: {refusal}" in learn.text
    run = client.runs.get("refused")
    assert (run.state, run.stop_reason) == ("FAILED", "behavior_refused")
    assert run.stop_detail == f"stopped on request before any behavior was trained: {refusal}"
    junit = tmp_path / "report.xml"
    for command in (("wait", "refused", "--junit", str(junit)), ("show", "refused")):
        done = subprocess.run(
            [*LUDUS, "run", *command, "--server", stack.api],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert refusal in done.stdout + done.stderr, command
    assert [refusal in each.attrib["message"] for each in ET.parse(junit).iter() if "message" in each.attrib] == [True]


@pytest.mark.long
@pytest.mark.xdist_group("stack")
def test_a_build_that_no_collector_can_read_ends_the_run_without_success_and_its_events_say_why(
    stack: LudusUp, client: Client, learns: list[Learn], tmp_path: Path
) -> None:
    sensors = '[{"kind": "visual", "shape": [0, 2, 2]}]'
    build = write_build(tmp_path, f'[{{"name": "CartPole?team=0", "continuous": 2, "sensors": {sensors}}}]')
    arguments = ("--env", str(build), "--base-port", str(free_port()), "--run-id", "unread", "--no-graphics")
    learn = Learn(tmp_path, cartpole(max_steps=1000), *arguments, *on(stack))
    learns.append(learn)

    code = learn.process.wait(180)

    run = client.runs.get("unread")
    problem = "behavior 'CartPole?team=0': observation 0"
    assert (code, run.state, run.step) == (1, "CANCELLED", 0), learn.text
    assert f"Error: the run ended as CANCELLED: {problem}" in learn.text
    events = client.events.list(run.id)
    left = [event for event in events if event.type == "simulator_left"]
    assert left
    assert all(event.data["code"] == "bad_spec" and problem in event.message for event in left)
    assert "behavior_refused" not in {event.type for event in events}


@pytest.mark.long
def test_a_build_that_only_crashes_ends_the_run_with_an_error(learns: list[Learn], tmp_path: Path) -> None:
    build = tmp_path / "game"
    build.write_text("#!/bin/sh\necho no display\nexit 3\n")
    build.chmod(0o755)
    learn = Learn(
        tmp_path, cartpole(), *("--env", "game", "--max-lifetime-restarts", "1", "--base-port", str(free_port()))
    )
    learns.append(learn)

    code = learn.process.wait(180)

    assert code == 1
    assert "[WARNING] the game exited with code 3 before it had dialled" in learn.text
    assert not below(tmp_path)
