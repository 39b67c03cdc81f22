"""DQN on toys with known answers, in seconds."""

from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.segments import SegmentEnd
from tests.toys.drills import Recall
from tests.toys.playing import Arcade, Training
from tests.worker.learning.algorithms.off_policy_world import make_dqn, make_dqn_config, one_episode
from tests.worker.rollouts import make_spec
from tests.worker.toys import Bandit, OneStepToy, TwoBranches, play
from worker.collectors.acting import POLICIES

AGENTS = 16
LSTM = {"memory": {"sequence_length": 4, "memory_size": 32}}
ALL = {"dueling": True, "n_step": 3, "prioritized": True}


@pytest.mark.long
@pytest.mark.parametrize(
    ("toy", "best", "hyper"),
    [
        pytest.param(Bandit(), 0.8, {}, id="bandit-plain"),
        pytest.param(TwoBranches(), 1.0, ALL, id="two-branches-with-masks-all"),
    ],
)
def test_reaches_the_best_reward(toy: OneStepToy, best: float, hyper: dict[str, Any]) -> None:
    updates = 150
    config = make_dqn_config(
        batch_size=64,
        buffer_size=5000,
        steps_per_update=AGENTS,
        tau=0.05,
        exploration_steps=80 * AGENTS,
        exploration_final_eps=0.02,
        **hyper,
    )
    dqn = make_dqn(toy.spec, config)
    policy = POLICIES.policy(toy.spec, config.network_settings, config.head)

    means = play(toy, dqn, policy, steps=range(AGENTS, (updates + 1) * AGENTS, AGENTS), agents=AGENTS)

    assert np.mean(means[:10]) < best - 0.2, "a toy that is solved at the start shows nothing"
    assert np.mean(means[-25:]) > best - 0.12


EXTENDED = {"dueling": True, "prioritized": True, "n_step": 2, "burn_in": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    ("network", "hyper"),
    [
        pytest.param(LSTM, {}, id="memory"),
        pytest.param(LSTM, EXTENDED, id="memory-all"),
        pytest.param({}, {}, id="control-without"),
    ],
)
def test_a_cue_is_remembered_with_a_memory_only(network: dict[str, Any], hyper: dict[str, Any]) -> None:
    game = Recall(agents=AGENTS)
    config = make_dqn_config(
        network={"hidden_units": 32, "num_layers": 1, **network},
        batch_size=256,
        buffer_size=20_000,
        steps_per_update=AGENTS,
        tau=0.05,
        exploration_steps=2000,
        exploration_final_eps=0.02,
        **hyper,
    )
    dqn = make_dqn(game.spec, config)

    scores = Training(dqn, Arcade(game, config, steps=64)).run(50)

    score = float(np.mean(scores[-10:]))
    assert (score > 0.9) if network else (0.3 < score < 0.7)


@pytest.mark.long
@pytest.mark.parametrize(
    "hyper",
    [
        pytest.param({}, id="plain", marks=pytest.mark.long),
        pytest.param({"dueling": True, "prioritized": True}, id="all"),
    ],
)
def test_values_of_a_chain_are_those_of_the_best_choices(hyper: dict[str, Any]) -> None:
    # Four steps; choice 1 pays 1 at the last of them, choice 0 nothing, and nothing else pays. gamma is 0.5.
    dqn = make_dqn(
        make_spec(observations=(1,), branches=(2,)),
        make_dqn_config(batch_size=64, steps_per_update=1.0, tau=0.1, learning_rate=5e-3, **hyper),
    )
    rng = np.random.default_rng(1)
    for episode in range(60):
        choices = rng.integers(0, 2, (4, 1))
        rewards = [0.0, 0.0, 0.0, float(choices[3, 0])]
        rollout = one_episode(rewards, SegmentEnd.TERMINATED, discrete=choices.tolist(), episodes=[episode])
        dqn.update(rollout, 4 * (episode + 1))
    for _ in range(400):
        dqn.gradient_step(2e-3)

    best = dqn.model.q([torch.arange(4.0).unsqueeze(1)])[:, 0].amax(1)

    np.testing.assert_allclose(best.detach().numpy(), [0.125, 0.25, 0.5, 1.0], atol=0.05)
