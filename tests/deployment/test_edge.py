"""Runs whose only collectors are on another host (a network namespace) learn, to the same bits as with local ones."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ludus.schemas.states import RunState
from tests.deployment.conftest import Up
from tests.deployment.hosts import Host
from tests.e2e.games import write_build
from tests.e2e.stack import cartpole

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(300)]

REWARD = "Environment/Cumulative Reward"
STRIKER = {"continuous": 1, "agents": 1}


def behavior(name: str, max_steps: int, buffer_size: int = 512, **more: Any) -> dict[str, Any]:
    """A configuration that learns quickly, in lockstep."""
    section = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 64, "buffer_size": buffer_size, "learning_rate": 1e-3},
        "network_settings": {"hidden_units": 32},
        "max_steps": max_steps,
        "time_horizon": 16,
        "summary_freq": 512,
        **more,
    }
    return {"behaviors": {name: section}, "seed": 1}


MEMORY = {"hidden_units": 32, "memory": {"memory_size": 16, "sequence_length": 8}}
SELF_PLAY = {"save_steps": 512, "swap_steps": 128, "team_change": 2048, "play_against_latest_model_ratio": 0.5}


@pytest.mark.parametrize(
    ("name", "config", "game"),
    [
        ("CartPole", cartpole(16_384), ["simulate", "gymnasium:CartPole-v1", "--count", "1"]),
        pytest.param(
            "Lights",
            behavior("Lights", 16_384, network_settings=MEMORY),
            ["simulate", "python:tests/toys/lights.py:Lights", "--count", "1"],
            marks=pytest.mark.slow,
        ),
        pytest.param("Striker", behavior("Striker", 16_384, self_play=SELF_PLAY), ["unity"], marks=pytest.mark.slow),
    ],
    ids=["vectors", "pictures", "self-play-of-unity"],
)
def test_a_run_whose_only_collector_is_on_another_host_learns_to_the_same_bits(
    hosts: dict[str, Host], up: Up, tmp_path: Path, name: str, config: dict[str, Any], game: list[str]
) -> None:
    teams = [{**STRIKER, "name": f"Striker?team={team}"} for team in (0, 1)]
    build = write_build(tmp_path, *teams)
    found: dict[str, dict[str, Any]] = {}
    rewards: list[float] = []
    for collect, places in (("there", {"local": 1}), ("here", {"local": 0, "edge": 1})):

        def create(places: dict[str, int] = places) -> str:
            with up.client() as client:
                return client.runs.create({**config, "simulators": {"collectors": places}}).id

        run = hosts["games"].do(create)
        words = {
            "simulate": [*game, "--run", run],
            "unity": ["unity", run, "--env", str(build), "--num-envs", "1", "--no-graphics", "--logs", str(tmp_path)],
        }[game[0]]
        playing = up.start(hosts["games"], "game.log", *words, "--server", "server:7070", "--collect", collect)
        assert playing.wait(120) == 0, (tmp_path / "game.log").read_text() + (tmp_path / "up.log").read_text()

        def read(run: str = run, collect: str = collect) -> None:
            with up.client() as client:
                ended = client.runs.wait(run, timeout=60)
                assert ended.state == RunState.SUCCEEDED, ended.stop_detail
                file = client.checkpoints.download(run, "latest", f"{name}.onnx", tmp_path / f"{collect}.onnx")
                model = onnx.load(file)
                found[collect] = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
                (series,) = client.metrics.series(run, REWARD, behavior=name)
                rewards[:] = [value for value in series.values if value is not None]

        hosts["games"].do(read)

    assert found["here"].keys() == found["there"].keys()
    assert all(np.array_equal(found["here"][each], values) for each, values in found["there"].items())
    assert np.mean(rewards[-3:]) > 1.3 * np.mean(rewards[:2]), rewards
