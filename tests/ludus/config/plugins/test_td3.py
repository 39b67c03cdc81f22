"""TD3: its defaults, and what does not go together with it."""

from typing import Any

import pytest

from ludus.config.plugins.td3 import TD3Config
from tests.server.config.checks import DEMONSTRATION, behavior, config_of, problem_of


def test_defaults_are_those_of_the_paper() -> None:
    config = config_of(behavior(trainer_type="td3"))

    assert isinstance(config, TD3Config)
    hyper = config.hyperparameters
    assert (hyper.exploration_sigma, hyper.policy_delay, hyper.tau) == (0.1, 2, 0.005)
    assert (hyper.target_noise, hyper.target_noise_clip) == (0.2, 0.5)
    assert config.head == "gaussian_noise"


@pytest.mark.parametrize(
    ("section", "path", "named"),
    [
        ({"network_settings": {"memory": {}}}, "network_settings.memory", "td3 has no memory"),
        ({"behavioral_cloning": {"demonstrations": [DEMONSTRATION]}}, "behavioral_cloning", "no behavioral_cloning"),
    ],
)
def test_what_td3_does_not_have_is_refused_with_the_way_out(section: dict[str, Any], path: str, named: str) -> None:
    problem = problem_of(behavior(trainer_type="td3", **section))

    assert (problem.path, problem.code) == (f"behaviors.A.{path}", "contradiction")
    assert named in problem.message
    assert "sac" in problem.message
