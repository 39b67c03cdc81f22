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
        ({"behavioral_cloning": DEMONSTRATED}, "behavioral_cloning", "take trainer_type sac or ppo"),
        ({"hyperparameters": {"burn_in": 4}}, "hyperparameters.burn_in", "add network_settings.memory: {}"),
        (
            {"hyperparameters": {"burn_in": 8}, "network_settings": {"memory": {"sequence_length": 8}}},
            "hyperparameters.burn_in",
            "lower it to at most 7",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_way_out(section: dict[str, Any], path: str, named: str) -> None:
    problem = problem_of(behavior(trainer_type="dqn", **section))

    assert (problem.path, problem.code) == (f"behaviors.A.{path}", "contradiction")
    assert named in problem.message


def test_dqn_has_a_memory_by_choice() -> None:
    memory = {"sequence_length": 8, "memory_size": 32}
    config = config_of(
        behavior(trainer_type="dqn", hyperparameters={"burn_in": 4}, network_settings={"memory": memory})
    )

    assert config.network_settings.memory is not None
    assert (config.network_settings.memory.sequence_length, config.hyperparameters.burn_in) == (8, 4)
