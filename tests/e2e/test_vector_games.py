"""Vector environments through a whole stack: one message for all of them, in every way to name them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ludus.client import Client
from tests.e2e.stack import Player

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("stack")]

SHORT: dict[str, Any] = {
    "trainer_type": "ppo",
    "hyperparameters": {"batch_size": 64, "buffer_size": 256},
    "network_settings": {"hidden_units": 16},
    "max_steps": 1024,
    "summary_freq": 256,
}
FACTORY = """
import gymnasium

def make(envs=8):
    return gymnasium.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="sync")
"""


@pytest.mark.parametrize(
    ("game", "envs", "options"),
    [
        ("gymnasium-vec:CartPole-v1", 16, []),
        ("gymnasium-vec:Acrobot-v1", 2, ["--autoreset", "same-step"]),
        ("envpool:CartPole-v1", 16, ["--env-arg", "batch_size=4"]),
        ("python:poles.py:make", 1, ["--env-arg", "envs=4", "--behavior", "CartPole"]),
    ],
)
def test_a_vector_environment_is_trained(
    client: Client, play: Callable[..., Player], tmp_path: Path, game: str, envs: int, options: list[str]
) -> None:
    if game.startswith("envpool:"):
        pytest.importorskip("envpool")
    if "poles.py" in game:
        file = tmp_path / "poles.py"
        file.write_text(FACTORY)
        game = game.replace("poles.py", str(file))
    behavior = "Acrobot" if "Acrobot" in game else "CartPole"
    run = client.runs.create({"behaviors": {behavior: SHORT}})

    play(run.id, *options, game=game, environments=envs)

    assert client.runs.wait(run.id, timeout=90).state == "SUCCEEDED"
    assert {metric.key for metric in client.metrics.list(run.id)} >= {"Losses/Value Loss"}
