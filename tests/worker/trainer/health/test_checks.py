"""Real runs with small games: each mistake is found and blamed on nothing else, and healthy runs have no finding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import server.config
from ludus.adapters import pettingzoo
from ludus.adapters.gymnasium import EnvironmentSimulation, make_simulation
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, StepBuilder
from tests.ludus.test_examples import EXAMPLES, imported
from tests.toys.chase import Chase
from tests.toys.roshambo import OUTCOMES, REWARDS, Roshambo
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


@pytest.mark.long
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
    "rewards of 1e5 that are scaled": (
        {"reward": 1e5},
        {"reward_signals": {"extrinsic": {"gamma": 0.9, "normalize_reward": True}}},
        set(),
    ),
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
@pytest.mark.parametrize("section", [pytest.param(SAC, marks=pytest.mark.slow, id="sac"), pytest.param(DQN, id="dqn")])
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
    ("module", "game", "config"), [("custom_simulator", "Field", "forager"), ("lantern", "Lantern", "lantern")]
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


SELF_PLAY: dict[str, Any] = {"save_steps": 500, "team_change": 1000, "swap_steps": 300, "window": 5}


class Duel(Roshambo):
    """Rock, paper, scissors that reports no outcomes; what is seen is noise."""

    behaviors = tuple(
        BehaviorSpec(f"Duel?team={team}", (ObservationSpec((2,)),), ActionSpec(0, (3,))) for team in (0, 1)
    )

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self._mistake = mistake
        self._rng = np.random.default_rng(1)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            self._moves[int(action.behavior[-1])] = int(action.discrete[0])
        if len(self._moves) < 2:
            return
        for team, spec in enumerate(self.behaviors):
            reward = REWARDS[OUTCOMES[(self._moves[team] - self._moves[1 - team]) % 3]]
            reward = {"both win": 1.0 + 0.1 * self._moves[team], "nobody wins": 0.0}.get(self._mistake, reward)
            late = self._mistake in {"nobody wins", "time is up"}
            builder.end_episode(agent=team, observation=[0.0, 0.0], reward=reward, truncated=late, behavior=spec.name)
        self._begin(builder)

    def _begin(self, builder: StepBuilder) -> None:
        self._moves.clear()
        for team, spec in enumerate(self.behaviors):
            seen = self._rng.standard_normal(2).tolist()
            builder.request_decision(agent=team, observation=seen, behavior=spec.name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("none", set()),
        ("both win", {"both_teams_win"}),
        pytest.param("nobody wins", {"matches_drawn"}, marks=pytest.mark.slow),
        pytest.param("time is up", {"matches_unrated"}, marks=pytest.mark.slow),
    ],
)
def test_a_game_that_rewards_the_wrong_side_is_found(start: StartTrainer, mistake: str, expected: set[str]) -> None:
    section = {**SECTION, "max_steps": 4096, "self_play": SELF_PLAY}

    assert set(play_through(start, Duel(mistake), {"behaviors": {"Duel": section}}).findings) == expected
