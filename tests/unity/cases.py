"""Builds, each with a configuration in ML-Agents' format: conversations that every trainer of the protocol must hold.

ML-Agents itself plays them in `test_mlagents.py`.
"""

from dataclasses import dataclass, field
from typing import Any

from tests.unity.descriptions import PACKAGES, Behavior, Package, Sensor

SEED = 11


@dataclass(frozen=True)
class Case:
    """A build, how long it plays, and what the trainer is configured with."""

    behaviors: tuple[Behavior, ...]
    steps: int
    trainer: str = "ppo"
    max_steps: int = 500_000
    sections: dict[str, Any] = field(default_factory=dict)
    """Of the configuration file, beside `behaviors`."""
    package: Package = field(default_factory=Package)
    stats: bool = False

    @property
    def configuration(self) -> dict[str, Any]:
        """What the YAML file says."""
        names = {behavior.name.partition("?")[0] for behavior in self.behaviors}
        return {"behaviors": {name: self._behavior() for name in sorted(names)}, **self.sections}

    def _behavior(self) -> dict[str, Any]:
        return {
            "trainer_type": self.trainer,
            "hyperparameters": {
                "batch_size": 64,
                "buffer_size": 640,
                "learning_rate": 0.003,
                "learning_rate_schedule": "constant",
                "beta": 0.001,
                "num_epoch": 3,
            },
            "network_settings": {"hidden_units": 32, "num_layers": 1},
            "max_steps": self.max_steps,
            "time_horizon": 16,
            "summary_freq": 500,
        }


CURRICULUM = {
    "size": {
        "curriculum": [
            {
                "name": "First",
                "value": 1.0,
                "completion_criteria": {
                    "measure": "progress",
                    "behavior": "Pupil",
                    "min_lesson_length": 5,
                    "threshold": 0.2,
                    "require_reset": True,
                },
            },
            {
                "name": "Second",
                "value": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 3, "max_value": 4}},
            },
        ]
    }
}
PARAMETERS = {
    "size": 1.5,
    "gravity": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1, "max_value": 2}},
    "wind": {"sampler_type": "gaussian", "sampler_parameters": {"mean": 1, "st_dev": 0.5, "seed": 9}},
    "load": {"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[1, 2], [3, 4]], "seed": 3}},
}

CASES = {
    "twelve continuous agents and parameters": Case(
        (Behavior("Walker?team=0", agents=12, continuous=2, episode_length=20),),
        steps=100,
        sections={"environment_parameters": PARAMETERS},
    ),
    "hybrid actions, masks, staggered decisions, cut episodes": Case(
        (
            Behavior(
                "Hybrid?team=0",
                agents=6,
                continuous=1,
                branches=(3, 2),
                masked=True,
                decision_period=3,
                staggered=True,
                episode_length=40,
                max_step=25,
            ),
        ),
        steps=300,
    ),
    "groups whose members die": Case(
        (Behavior("Team?team=0", agents=6, branches=(3,), group_size=3, casualties=True, episode_length=12, jitter=3),),
        steps=150,
        trainer="poca",
    ),
    "every kind of observation": Case(
        (
            Behavior(
                "Watcher?team=0",
                agents=2,
                branches=(3,),
                sensors=(
                    Sensor("color", "png", (3, 20, 20)),
                    Sensor("gray", "png", (1, 20, 20)),
                    Sensor("gray stack", "png", (2, 20, 20), mapping=(0, 0, 0, 1, 1, 1)),
                    Sensor("grid", "png", (4, 20, 20), mapping=(0, 1, 2, 3, -1, -1)),
                    Sensor("color stack", "png", (6, 20, 20)),
                    Sensor("plain", "visual", (2, 20, 20)),
                    Sensor("entities", "buffer", (4, 3)),
                    Sensor("goal", "vector", (3,), goal=True),
                ),
            ),
        ),
        steps=30,
    ),
    "a late behavior of two teams, agents with several lives, stats": Case(
        (
            Behavior("Early?team=0", agents=2, continuous=1),
            Behavior("Late?team=0", agents=2, branches=(2,), appears_at=40, episodes_per_life=2),
            Behavior("Late?team=1", agents=2, branches=(2,), appears_at=70),
        ),
        steps=200,
        stats=True,
    ),
    "a lesson that resets, and an end": Case(
        (Behavior("Pupil?team=0", agents=4, branches=(2,), episode_length=5),),
        steps=3000,
        max_steps=1000,
        sections={"environment_parameters": CURRICULUM},
    ),
    "an old package, continuous": Case(
        (Behavior("Old?team=0", agents=4, continuous=2),), steps=60, package=PACKAGES["1.0.8"]
    ),
    "an old package, discrete": Case(
        (Behavior("Old?team=0", agents=4, branches=(3, 2), masked=True),), steps=60, package=PACKAGES["1.0.8"]
    ),
}
