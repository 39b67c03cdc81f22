"""Unity builds in a real stack: they dial `ludus unity`, train, and live through whatever happens behind it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime
import psutil
import pytest
import yaml

from ludus.client import Client
from ludus.schemas import Run
from tests.e2e.games import Games
from tests.e2e.stack import LudusUp, wait_for_step
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]

PUSH_BUTTON = Path(__file__).resolve().parents[1] / "data" / "pushbutton"
"""A project of the field: its configuration, and what its author recorded."""
WALKER = {"name": "Walker?team=0", "continuous": 2, "agents": 2}

Launch = Callable[..., Games]


@pytest.fixture
def launch(stack: LudusUp, tmp_path: Path) -> Iterator[Launch]:
    """Start games; they are ended with the test."""
    started: list[Games] = []

    def start(run: str, *behaviors: dict[str, Any], count: int = 1) -> Games:
        started.append(Games(stack, run, tmp_path, *behaviors, count=count))
        return started[-1]

    yield start
    for games in started:
        games.kill()


def walking(**settings: Any) -> dict[str, Any]:
    """A configuration for the walker that checkpoints often and does not end."""
    behavior = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 32, "buffer_size": 128, "num_epoch": 1},
        "network_settings": {"hidden_units": 16},
        "max_steps": 1_000_000,
        "summary_freq": 200,
        "checkpoint_interval": 200,
    }
    return {"behaviors": {"Walker": behavior}, "seed": 1, **settings}


def the(processes: list[psutil.Process]) -> psutil.Process:
    """Return the one process, where there are two with the warm one that waits for the next run."""
    return max(processes, key=lambda process: process.cpu_times().user)


@pytest.mark.long
def test_the_push_button_project_trains_with_its_own_configuration_and_recording(
    client: Client, launch: Launch, tmp_path: Path
) -> None:
    document = yaml.safe_load((PUSH_BUTTON / "PushButtonAgent_Config.yaml").read_text())
    shown = client.demonstrations.upload(PUSH_BUTTON / "PushButtonAgent_Demo.demo", name="push-button").id
    behavior = document["behaviors"]["PushButton"]
    for section in (behavior["reward_signals"]["gail"], behavior["behavioral_cloning"]):
        del section["demo_path"]
        section["demonstrations"] = [shown]
    behavior |= {"max_steps": 2560, "summary_freq": 256}
    run = client.runs.create(document)

    games = launch(
        run.id,
        {
            "name": "PushButton?team=0",
            "branches": [3, 3, 2],
            "sensors": [{"name": "VectorSensor_size4", "shape": [4]}],
            "agents": 8,
        },
    )
    ended = client.runs.wait(run.id, timeout=120)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    assert games.process.wait(30) == 0, games.said
    keys = {metric.key for metric in client.metrics.list(run.id)}
    assert {"Losses/GAIL Loss", "Losses/Pretraining Loss", "Environment/Cumulative Reward"} <= keys
    client.checkpoints.download(run.id, "latest", "PushButton.onnx", tmp_path / "PushButton.onnx")
    model = onnxruntime.InferenceSession(tmp_path / "PushButton.onnx")
    theirs = onnxruntime.InferenceSession(PUSH_BUTTON.parent / "mlagents" / "PushButton.onnx")
    assert [(item.name, item.shape) for item in model.get_inputs()] == [
        (item.name, item.shape) for item in theirs.get_inputs()
    ]
    assert [item.name for item in model.get_outputs()] == [item.name for item in theirs.get_outputs()]


@pytest.mark.faults
def test_games_live_through_the_death_of_trainer_and_worker(stack: LudusUp, client: Client, launch: Launch) -> None:
    run = client.runs.create(walking())
    games = launch(run.id, WALKER, count=2)
    eventually(lambda: len(client.simulators.list(run.id, "connected")) == 2, "two games", 60)
    eventually(lambda: client.checkpoints.list(run.id), "a checkpoint", 60)
    players = games.pids
    assert len(players) == 2

    the(stack.processes("worker.trainer")).kill()
    eventually(lambda: client.runs.get(run.id).attempt == 2, "a second attempt", 60)
    wait_for_step(client, run, client.runs.get(run.id).step + 400)
    assert games.pids == players, "no game was started again"

    stack.children()["worker"].kill()
    eventually(lambda: client.runs.get(run.id).attempt == 3, "a third attempt", 60)
    wait_for_step(client, run, client.runs.get(run.id).step + 400)
    assert games.pids == players, "no game was started again"

    ended = finish(client, run)
    assert ended.state == "SUCCEEDED"
    assert games.process.wait(30) == 0, games.said
    endings = [(summary["ending"], summary["resets"]) for summary in games.summaries()]
    assert endings == [("ended", 2), ("ended", 2)], "both were reset twice, and told the end"


@pytest.mark.long
def test_a_build_that_crashes_is_started_again_and_the_other_goes_on(client: Client, launch: Launch) -> None:
    def playing() -> bool:
        now = [(one.behaviors, one.agents) for one in client.simulators.list(run.id, "connected")]
        return now == [(("Walker?team=0",), 2)] * 2

    run = client.runs.create(walking())
    games = launch(run.id, WALKER, count=2)
    eventually(playing, "two games", 60)
    victim, survivor = sorted(eventually(lambda: games.pids if len(games.pids) == 2 else None, "two processes"))

    psutil.Process(victim).kill()
    eventually(lambda: len(games.pids) == 2 and victim not in games.pids, "a new process", 60)
    eventually(lambda: len(client.simulators.list(run.id, "left")) == 1, "the end of the first one", 60)
    eventually(playing, "two games again, with what they play", 60)

    assert survivor in games.pids
    assert finish(client, run).state == "SUCCEEDED"


@pytest.mark.long
def test_a_behavior_that_is_not_configured_is_named_by_command_and_events_alike(client: Client, launch: Launch) -> None:
    run = client.runs.create(walking())

    games = launch(run.id, {"name": "Runner?team=0", "continuous": 2})

    assert games.process.wait(60) != 0
    sentence = "the run's configuration has no behavior 'Runner', only: Walker"
    assert sentence in games.said
    assert any(sentence in event.message for event in client.events.list(run.id))
    (left,) = eventually(lambda: client.simulators.list(run.id, "left"), "the end of its session")
    assert left.leave_reason == sentence


def finish(client: Client, run: Run) -> Run:
    """Stop a run and return how it ended."""
    client.runs.stop(run.id)
    return client.runs.wait(run.id, timeout=60)
