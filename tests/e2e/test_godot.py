"""Debian's real Godot 3.2, with a game of our own: it learns, it is killed, and it waits for its server; and a scripted
game of Godot 4, with teams, cameras and lessons.
"""

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
from tests.ludus.games.godot.peer import build
from tests.ports import free_port
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.xdist_group("stack")]

GAME = Path(__file__).parents[1] / "toys" / "seekers"
ENGINE = "godot3-server"
PLAYS = ("--env", ENGINE, "--no-graphics", "--env-args", "--path", str(GAME), "--actions=mixed")
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
        [sys.executable, "-m", "ludus.cli", "godot", *arguments],
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


@pytest.mark.godot
def test_a_game_learns_from_its_configuration_alone_though_it_is_killed(
    stack: LudusUp, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "seekers.yaml").write_text(yaml.safe_dump(seekers(14_000)))
    command = start(
        tmp_path,
        *("--config", "seekers.yaml", "--num-envs", "2"),
        *("--base-port", str(free_port()), "--server", stack.gateway, *PLAYS),
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


@pytest.mark.long
def test_two_policies_with_cameras_play_against_themselves_through_the_lessons_of_the_run(
    stack: LudusUp, client: Client, tmp_path: Path
) -> None:
    until = {"behavior": "Duel", "measure": "progress", "threshold": 0.3, "min_lesson_length": 1}
    lessons = [{"name": "low", "value": 1, "completion_criteria": until}, {"name": "high", "value": 2.5}]
    learns = {
        "trainer_type": "ppo",
        "max_steps": 1024,
        "time_horizon": 4,
        "summary_freq": 256,
        "hyperparameters": {"batch_size": 32, "buffer_size": 128, "num_epoch": 1},
        "network_settings": {"hidden_units": 16, "num_layers": 1},
        "self_play": {"save_steps": 128, "swap_steps": 64, "team_change": 256},
    }
    config = {"behaviors": {"Duel": learns}, "environment_parameters": {"height": {"curriculum": lessons}}}
    run = client.runs.create(config, name="duel")
    command = start(
        tmp_path,
        *("duel", "--server", stack.gateway, "--env", str(build(tmp_path, "duel")), "--base-port", str(free_port())),
        *("--behavior", "Duel", "--call", "height=set_height"),
    )

    output = finish(command)

    assert (command.returncode, client.runs.wait(run.id, timeout=60).state) == (0, "SUCCEEDED"), output
    (log,) = (tmp_path / "results" / "duel" / "run_logs").glob("Player-*.out")
    called = [line for line in log.read_text().splitlines() if line.startswith("called ")]
    assert called == ["called set_height_1", "called set_height_2_5"]
    matches = list(client.ladders.list_matches(run.id, limit=1000))
    assert {match.outcome for match in matches} == {"win", "draw", "loss"}
    assert {player.kind for player in client.ladders.list_players(run.id)} == {"policy", "snapshot"}
    model = client.checkpoints.download(run.id, "latest", "Duel.onnx", tmp_path / "Duel.onnx")
    shapes = [entry.shape[1:] for entry in onnxruntime.InferenceSession(model).get_inputs()]
    assert [3, 20, 20] in shapes


@pytest.mark.godot
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
                *("held", "--server", stack.gateway, "--base-port", str(free_port()), *PLAYS),
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
