"""Each mistake that people made, in a real run with a small game: its finding names it, and blames nothing else."""

from typing import Any

import pytest

from ludus.adapters.gymnasium import EnvironmentSimulation
from tests.toys.chase import Chase
from tests.worker.trainer.conftest import StartTrainer
from tests.worker.trainer.health.runs import SECTION, Ended, merged, play_through

SAC: dict[str, Any] = {
    "trainer_type": "sac",
    "hyperparameters": {"batch_size": 64, "buffer_size": 10_000, "buffer_init_steps": 500, "steps_per_update": 8},
    "network_settings": SECTION["network_settings"],
    "max_steps": 6000,
    "summary_freq": 300,
}
DQN = SAC | {"trainer_type": "dqn"}


def chase(start: StartTrainer, section: dict[str, Any], **game: Any) -> Ended:
    """Let eight games of `Chase` play a run of this section."""
    simulation = EnvironmentSimulation([Chase(**game) for _ in range(8)], "Chase")
    return play_through(start, simulation, {"behaviors": {"Chase": section}})


def test_a_reward_that_is_always_0_is_named_with_the_number_of_episodes(start: StartTrainer) -> None:
    run = chase(start, SECTION, constant_reward=0.0)

    assert run.ever == {"returns_constant"}
    finding = run.findings["returns_constant"]
    assert finding["behavior"] == "Chase"
    assert finding["message"] == f"All {finding['figures']['episodes']:,} episodes had a return of exactly 0."
    assert finding["figures"]["episodes"] > 250
    assert finding["since_step"] == 5120


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "episodes never end": ({"ends": False}, {}, {"no_episode_ended"}),
    "an ignored action": ({"ignores_actions": True}, {}, {"action_ignored"}),
    "an ignored column": ({"ignores_actions": True, "continuous": True}, {}, {"action_ignored"}),
    "gamma 0.1": ({"sparse": True}, {"reward_signals": {"extrinsic": {"gamma": 0.1}}}, {"gamma_short"}),
    "rewards of 1e5": ({"reward": 1e5}, {}, {"reward_scale"}),
    "rewards of 1e-6": ({"reward": 1e-6}, {}, {"reward_scale"}),
    "observations of 1e6": ({"observation": 1e6}, {}, {"observation_scale"}),
    "observations of 1e-6": ({"observation": 1e-6}, {}, {"observation_scale"}),
    "learning rate 0.5": ({}, {"hyperparameters": {"learning_rate": 0.5}}, {"kl_exploded"}),
    "learning rate 1e-8": ({}, {"hyperparameters": {"learning_rate": 1e-8}}, {"policy_unmoved"}),
    "buffer 16": ({}, {"hyperparameters": {"buffer_size": 16, "batch_size": 16}, "max_steps": 512}, {"updates_slow"}),
    "summary_freq above max_steps": ({}, {"summary_freq": 50_000}, {"no_summary"}),
    "buffer above max_steps": ({}, {"hyperparameters": {"buffer_size": 4096}, "max_steps": 2048}, {"no_update"}),
    "a forgotten element": ({"stuck": 0.0}, {}, {"observation_constant"}),
    "empty observations": ({"blind": True}, {}, {"observation_constant"}),
    "a target that is not shown": ({"hides_target": True}, {}, {"plateau"}),
    "rewards and ends": ({"constant_reward": 0.0, "ends": False}, {}, {"returns_constant", "no_episode_ended"}),
    "rewards and actions": (
        {"constant_reward": 0.0, "ignores_actions": True},
        {},
        {"returns_constant", "action_ignored"},
    ),
    "large rewards and actions": ({"reward": 1e5, "ignores_actions": True}, {}, {"reward_scale", "action_ignored"}),
    "large observations and rewards": ({"observation": 1e6, "reward": 1e5}, {}, {"observation_scale", "reward_scale"}),
    "large observations and learning rate": (
        {"observation": 1e6},
        {"hyperparameters": {"learning_rate": 0.5}},
        {"observation_scale", "kl_exploded"},
    ),
    "summary_freq and rewards": ({"reward": 1e5}, {"summary_freq": 50_000}, {"no_summary", "reward_scale"}),
}


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named_and_nothing_else_is_blamed(start: StartTrainer, mistake: str) -> None:
    game, changes, expected = MISTAKES[mistake]

    run = chase(start, merged(SECTION, changes), **game)

    assert set(run.findings) == expected
    assert all(finding["remedy"].endswith(".") for finding in run.findings.values())


@pytest.mark.long
@pytest.mark.parametrize("section", [SAC, DQN], ids=["sac", "dqn"])
@pytest.mark.parametrize(
    "mistake", ["an ignored action", "rewards of 1e5", "observations of 1e6", "episodes never end"]
)
def test_mistakes_are_named_by_trainers_with_a_replay_buffer_too(
    start: StartTrainer, section: dict[str, Any], mistake: str
) -> None:
    game, changes, expected = MISTAKES[mistake]

    assert set(chase(start, merged(section, changes), **game).findings) == expected


@pytest.mark.long
@pytest.mark.parametrize("game", [{}, {"continuous": True}, {"sparse": True}], ids=["plain", "continuous", "sparse"])
@pytest.mark.parametrize("section", [SECTION, SECTION | {"trainer_type": "poca"}], ids=["ppo", "poca"])
def test_a_game_without_mistakes_has_no_finding(
    start: StartTrainer, section: dict[str, Any], game: dict[str, Any]
) -> None:
    assert chase(start, section, **game).lists == []
