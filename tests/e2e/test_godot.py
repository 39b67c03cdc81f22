"""Debian's real Godot 3.2, with a game of our own: it learns, it is killed, and it waits for its server."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
import pytest
import yaml

from ludus.client import Client
from tests.e2e.stack import LudusUp, wait_for_step
from tests.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.godot, pytest.mark.timeout(240), pytest.mark.xdist_group("stack")]

GAME = Path(__file__).parents[1] / "toys" / "seekers"
ENGINE = "godot3-server"
SECONDS = 100


def seekers(max_steps: int) -> dict[str, Any]:
    return {
        "behaviors": {
            "seeker": {
                "trainer_type": "ppo",
                "max_steps": max_steps,
                "time_horizon": 20,
                "summary_freq": 1000,
                "checkpoint_interval": 1000,
                "hyperparameters": {"batch_size": 128, "buffer_size": 512, "learning_rate": 0.003, "num_epoch": 6},
                "network_settings": {"hidden_units": 32, "num_layers": 2, "normalize": True},
            }
        }
    }


def start(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "ludus.cli", "godot", *arguments, "--env-args", "--path", str(GAME), "--actions=mixed"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    )


def finish(command: "subprocess.Popen[str]") -> str:
    """Wait for the end of the command, which is killed where it takes too long; return what it said."""
    try:
        return command.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        command.kill()
        pytest.fail(command.communicate()[0])


def engines(command: "subprocess.Popen[str]") -> list[psutil.Process]:
    below = psutil.Process(command.pid).children(recursive=True)
    return [process for process in below if process.name().startswith(ENGINE[:15])]


def test_a_game_learns_from_its_configuration_alone_though_it_is_killed(
    stack: LudusUp, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "seekers.yaml").write_text(yaml.safe_dump(seekers(14_000)))
    command = start(
        tmp_path,
        *("--config", "seekers.yaml", "--env", ENGINE, "--num-envs", "2", "--no-graphics"),
        *("--base-port", str(free_port()), "--server", stack.gateway),
        LUDUS_SERVER=stack.api,
    )
    try:
        run = eventually(lambda: next((run for run in client.runs.list(limit=5) if run.name == "seekers"), None))
        wait_for_step(client, client.runs.get(run.id), 1000, SECONDS)
        engines(command)[0].kill()
    finally:
        output = finish(command)
    assert command.returncode == 0, output
    assert client.runs.get(run.id).state == "SUCCEEDED"
    codes = {event.data.get("code") for event in client.events.list(run.id)}
    assert {"exited", "no_terminal_observation"} <= codes

    model = tmp_path / "results" / "seekers" / "godot" / "seeker.onnx"
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    places = np.array([[-0.8, 0.5], [0.8, 0.5]], np.float32)
    (acted,) = session.run(["output"], {"obs": places, "state_ins": np.ones(2, np.float32)})
    assert acted.shape == (2, 5), "three choices of boost, then the mean of move, twice"
    assert acted[0, 3] > 0.2 > -0.2 > acted[1, 3], f"towards the middle: {acted}"


@pytest.mark.faults
def test_a_game_waits_while_its_server_is_killed_and_started_again(tmp_path: Path) -> None:
    def up() -> LudusUp:
        options = ("--port", str(api), "--gateway-port", str(gateway))
        return LudusUp(tmp_path, *options, LUDUS_WORKER__LEASE_SECONDS="3", LUDUS_WORKER__HEARTBEAT_SECONDS="0.5")

    api, gateway = free_port(), free_port()
    stack = up()
    command = None
    try:
        with stack.client() as client:
            run = client.runs.create(seekers(1_000_000), name="held")
            command = start(
                tmp_path,
                *("held", "--env", ENGINE, "--no-graphics", "--server", stack.gateway),
                *("--base-port", str(free_port())),
            )
            wait_for_step(client, run, 1500, SECONDS)
        (game,) = engines(command)
        stack.process.kill()
        stack.process.wait()
        stack.output.close()
        stack = up()
        with stack.client() as client:
            wait_for_step(client, run, client.runs.get(run.id).step + 1000, SECONDS)
            assert engines(command) == [game], "the same process plays on"
            client.runs.cancel(run.id)
        finish(command)
        assert command.returncode != 0
    finally:
        if command is not None:
            command.kill()
            command.communicate()
        stack.stop()
