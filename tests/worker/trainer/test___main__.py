"""A trainer process by itself: several behaviors, each with its own rounds and its own end."""

import json
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.protocol.codes import CloseCode
from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder
from server.kit.errors import InvalidConfig
from tests.e2e.stack import environment
from tests.worker.trainer.conftest import StartTrainer, TrainAlone
from tests.worker.trainer.test_demonstrated import document, show
from worker.trainer.__main__ import main, run_alone

PPO = {"batch_size": 32, "num_epoch": 1}
NETWORK = {"hidden_units": 8, "num_layers": 1}


class HideAndSeek(Simulation):
    """Two hiders and one seeker who all act in every step; nothing they do matters. Episodes last ten steps."""

    behaviors = (
        BehaviorSpec("Hider", (ObservationSpec((2,)),), ActionSpec(discrete_branches=(3, 2))),
        BehaviorSpec("Seeker", (ObservationSpec((3,)), ObservationSpec((1,))), ActionSpec(continuous_size=2)),
    )

    def __init__(self) -> None:
        self.tick = 0
        self.acted: set[int] = set()
        self.actions: set[tuple[str, int, int]] = set()

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        self._ask(builder, 0.0)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            self.acted.add(action.agent)
            self.actions.add((action.behavior, len(action.continuous), len(action.discrete)))
        if len(self.acted) < 3:
            return  # answers may come in parts: behaviors have rounds of their own
        self.acted.clear()
        self.tick += 1
        if self.tick % 10 == 0:
            for agent in (0, 1):
                builder.end_episode(agent=agent, observation=[0.0] * 2, reward=1.0, behavior="Hider")
            builder.end_episode(agent=9, observation=[[0.0] * 3, [0.0]], reward=-1.0, behavior="Seeker", truncated=True)
        self._ask(builder, 0.1)

    def _ask(self, builder: StepBuilder, reward: float) -> None:
        for agent in (0, 1):
            builder.request_decision(
                agent=agent, observation=[0.1 * self.tick % 1.0, 1.0], reward=reward, behavior="Hider"
            )
        builder.request_decision(agent=9, observation=[[0.5] * 3, [1.0]], reward=reward, behavior="Seeker")


@pytest.mark.long
def test_each_behavior_learns_in_its_own_rounds_and_the_run_ends_with_the_last_one(start: StartTrainer) -> None:
    config = {
        "seed": 1,
        "behaviors": {
            "Hider": {
                "hyperparameters": {**PPO, "buffer_size": 128},
                "network_settings": NETWORK,
                "max_steps": 400,
                "summary_freq": 100,
            },
            "Seeker": {
                "hyperparameters": {**PPO, "buffer_size": 96},
                "network_settings": {**NETWORK, "normalize": True},
                "max_steps": 1000,
                "summary_freq": 100,
                "threaded": True,
            },
        },
    }
    trainer = start(config)
    game = HideAndSeek()

    messages = trainer.played_by(game)

    checkpoint = [message for message in messages if message["type"] == "checkpoint_written"][-1]
    assert checkpoint["steps"] == {"Hider": 400, "Seeker": 1000}, "each ends at its own max_steps exactly"
    assert messages[-1]["outcome"] == "succeeded"
    assert [ending.code for ending in trainer.endings] == [CloseCode.RUN_FINISHED]
    assert game.actions == {("Hider", 0, 2), ("Seeker", 2, 0)}
    points = [point for message in messages if message["type"] == "metrics" for point in message["points"]]
    returns = {
        name: {point["value"] for point in points if (point["behavior"], point["key"]) == (name, REWARD)}
        for name in ("Hider", "Seeker")
    }
    # Nine rewards of 0.1 and the last one; the first reward of an episode belongs to nobody.
    assert all(value == pytest.approx(1.9) for value in returns["Hider"]), returns
    assert all(value == pytest.approx(-0.1) for value in returns["Seeker"]), returns
    files = {path.name for path in Path(checkpoint["folder"]).iterdir()}
    assert files == {"Hider.onnx", "Seeker.onnx", "state.json", "state.safetensors"}


REWARD = "Environment/Cumulative Reward"


@pytest.mark.parametrize("key", ["device", "collector_device"])
def test_a_device_that_the_worker_lacks_fails_the_run_before_training(start: StartTrainer, key: str) -> None:
    messages = list(start({"torch_settings": {key: "cuda:999"}, "behaviors": {"Hider": {}}}).reports())

    (finished,) = messages
    assert (finished["outcome"], finished["reason"]) == ("failed", "invalid_config")
    assert re.match(rf"torch_settings.{key} is cuda:999; this worker has \d+ GPUs?; .*set cpu", finished["detail"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("behaviors: {A: {hyperparameters: {batch_sise: 3, buffer_size: -1}}}", ["batch_sise", "buffer_size"]),
        ("checkpoint_settings: {load_model: true, resume: true}\nbehaviors: {A: {}}", ["load_model", "resume"]),
    ],
    ids=["mistakes", "not supported yet"],
)
def test_a_configuration_that_cannot_be_run_is_told_in_full_and_nothing_starts(
    tmp_path: Path, alone: TrainAlone, capsys: pytest.CaptureFixture[str], text: str, named: list[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(text)

    code = alone(str(config), "--scratch", str(tmp_path / "scratch"))

    said = capsys.readouterr().err
    assert code == 2
    assert all(name in said for name in named)
    assert "Traceback" not in said
    assert not (tmp_path / "scratch").exists()


def test_uploaded_demonstrations_are_refused_where_there_is_no_server_to_get_them_from(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"behaviors: {{A: {{trainer_type: clone, demonstrations: [dem_{'0' * 26}]}}}}")

    with pytest.raises(InvalidConfig) as caught:
        run_alone(config, tmp_path / "scratch", port=0)

    assert str(caught.value) == (
        "behaviors.A.demonstrations: a trainer that runs alone has no uploaded demonstrations; "
        "name a file or folder in `demo_path` instead"
    )
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("port", ["65536", "-1", "eighty"])
def test_a_port_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], port: str) -> None:
    with pytest.raises(SystemExit):
        main(["config.yaml", f"--port={port}"])

    assert f"argument --port: must be a port, 0 to 65535, but is '{port}'" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_without_a_traceback(
    tmp_path: Path, alone: TrainAlone, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("behaviors: {A: {}}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        code = alone(str(config), "--scratch", str(tmp_path / "scratch"), f"--port={port}")

    said = capfd.readouterr()
    assert code == 1
    finished = json.loads(said.out.splitlines()[-1])
    assert (finished["outcome"], finished["detail"]) == (
        "lost",
        f"collector 0 did not start: no free port to listen on: 127.0.0.1, ports ({port}, {port})",
    )
    assert "Traceback" not in said.out + said.err


@dataclass
class Interrupted:
    """What is left of a trainer that was a process of its own, and got a Ctrl-C while it learned."""

    exit_code: int
    finished: dict[str, Any]
    checkpoints: list[dict[str, Any]]
    frozen: int
    """Objects that are not collected when the process ends."""
    others: int


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    """Run a clone, which would learn for hours, until it has learned something."""
    folder = tmp_path_factory.mktemp("interrupted")
    config = folder / "config.yaml"
    clone = document(show(folder / "expert.npz"), max_steps=10_000_000, evaluation_episodes=0)
    config.write_text(yaml.safe_dump(clone))
    program = (
        "import atexit, gc, runpy; "
        "atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects()))); "
        "runpy.run_module('worker.trainer', run_name='__main__', alter_sys=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(config), "--scratch", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as trainer:
        assert trainer.stdout is not None
        messages: list[dict[str, Any]] = []
        for line in trainer.stdout:
            if not line.startswith("{"):
                break
            messages.append(json.loads(line))
            if messages[-1]["type"] == "metrics":
                trainer.send_signal(signal.SIGINT)
    frozen, others = map(int, line.split())
    checkpoints = [message for message in messages if message["type"] == "checkpoint_written"]
    return Interrupted(trainer.returncode, messages[-1], checkpoints, frozen, others)


def test_ctrl_c_ends_a_trainer_with_a_checkpoint_of_what_it_has_learnt(interrupted: Interrupted) -> None:
    assert interrupted.exit_code == 0
    assert (interrupted.finished["outcome"], interrupted.finished["reason"]) == ("succeeded", "user")
    (checkpoint,) = interrupted.checkpoints
    assert 0 < checkpoint["step"] < 10_000_000
    assert (Path(checkpoint["folder"]) / "Echo.onnx").exists()


@pytest.mark.long
def test_a_trainer_that_is_done_leaves_its_memory_to_the_kernel(interrupted: Interrupted) -> None:
    # Collecting torch's modules takes most of a second, and the run would not be over before.
    assert interrupted.frozen > 100_000
    assert interrupted.others < 1000
