"""DQN: its defaults, and what does not go together with it."""

from typing import Any

import pytest

from ludus.config.plugins.dqn import DQNConfig
from tests.server.config.checks import DEMONSTRATION, behavior, config_of, problem_of

DEMONSTRATED = {"demonstrations": [DEMONSTRATION]}


def test_dqn_explores_less_and_less_and_has_its_extensions_by_choice() -> None:
    config = config_of(behavior(trainer_type="dqn"))

    assert isinstance(config, DQNConfig)
    hyper = config.hyperparameters
    assert (hyper.exploration_initial_eps, hyper.exploration_final_eps, hyper.exploration_steps) == (1.0, 0.05, None)
    assert (hyper.double, hyper.dueling, hyper.n_step, hyper.prioritized) == (True, False, 1, False)
    assert config.head == "epsilon_greedy"


@pytest.mark.parametrize(
    ("section", "path", "named"),
    [
        ({"network_settings": {"memory": {}}}, "network_settings.memory", "has no memory"),
        ({"behavioral_cloning": DEMONSTRATED}, "behavioral_cloning", "learns values of choices"),
    ],
)
def test_what_dqn_does_not_have_is_refused_with_the_way_out(section: dict[str, Any], path: str, named: str) -> None:
    problem = problem_of(behavior(trainer_type="dqn", **section))

    assert (problem.path, problem.code) == (f"behaviors.A.{path}", "contradiction")
    assert named in problem.message
    assert "sac" in problem.message
