"""Presets that are shipped have no finding in a real run, at no time."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import server.config
from ludus.adapters.gymnasium import make_simulation
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
