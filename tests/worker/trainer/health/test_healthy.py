"""Presets and examples that are shipped have no finding in a real run, at no time."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import server.config
from ludus.adapters import pettingzoo
from ludus.adapters.gymnasium import make_simulation
from tests.ludus.test_examples import EXAMPLES, imported
from tests.worker.trainer.conftest import StartTrainer
from tests.worker.trainer.health.runs import merged, play_through

PRESETS = Path(server.config.__file__).parent / "presets"


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "environment", "changes"),
    [
        ("cartpole", "CartPole-v1", {"max_steps": 30_000}),
        pytest.param("cartpole_dqn", "CartPole-v1", {"max_steps": 15_000}, marks=pytest.mark.slow),
        pytest.param(
            "pendulum",
            "Pendulum-v1",
            {"max_steps": 6000, "hyperparameters": {"batch_size": 64, "steps_per_update": 2}},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_preset_has_no_finding(start: StartTrainer, preset: str, environment: str, changes: dict[str, Any]) -> None:
    ((name, section),) = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text())["behaviors"].items()

    run = play_through(
        start, make_simulation(environment, 8, behavior=name), {"behaviors": {name: merged(section, changes)}}
    )

    assert run.ever == set()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("module", "game", "config"),
    [
        ("custom_simulator", "Field", "forager"),
        ("lantern", "Lantern", "lantern"),
    ],
)
def test_an_example_has_no_finding(start: StartTrainer, module: str, game: str, config: str) -> None:
    document = yaml.safe_load((EXAMPLES / f"{config}.yaml").read_text())

    assert play_through(start, getattr(imported(module), game)(), document).ever == set()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_preset_of_a_board_game_has_no_finding(start: StartTrainer) -> None:
    document = yaml.safe_load((PRESETS / "connect_four.yaml").read_text())
    changes = {"connect_four": {"max_steps": 60_000, "summary_freq": 6000}}
    game = pettingzoo.make_simulation("classic.connect_four_v3", 8)

    assert play_through(start, game, {"behaviors": merged(document["behaviors"], changes)}).ever == set()
