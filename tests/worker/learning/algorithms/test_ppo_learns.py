"""PPO on toys with known answers, in seconds."""

from typing import Any

import pytest

from ludus.collector.segments import SegmentEnd
from tests.toys.hall import Hall
from tests.toys.playing import training
from tests.worker.rollouts import make_config
from tests.worker.toys import Bandit, OneStepToy, Target, TwoBranches, learn, learn_endless


@pytest.mark.long
@pytest.mark.parametrize(
    ("toy", "updates", "best", "margin", "shared_critic"),
    [
        pytest.param(Bandit(), 10, 0.8, 0.05, False, id="bandit"),
        pytest.param(TwoBranches(), 15, 1.0, 0.05, True, id="two-branches-with-masks-and-a-shared-critic"),
        pytest.param(Target(columns=3), 25, 0.0, 0.04, False, id="three-continuous-targets"),
    ],
)
def test_reaches_the_best_reward(
    toy: OneStepToy, updates: int, best: float, margin: float, shared_critic: bool
) -> None:
    config = make_config(
        network={"normalize": True},
        learning_rate=2e-3,
        batch_size=128,
        num_epoch=4,
        beta=1e-3,
        shared_critic=shared_critic,
    )

    rewards = learn(toy, config, updates=updates)

    assert rewards[0] < best - 2 * margin, "a toy that is solved at the start shows nothing"
    assert rewards[-1] > best - margin


@pytest.mark.long
def test_value_of_an_endless_task_is_the_geometric_series() -> None:
    # Rewards of 1 for ever: V = 1 / (1 - 0.8) = 5, where a limit ends the segments and not the task.
    config = make_config(gamma=0.8, lambd=0.9, num_epoch=4, batch_size=64, buffer_size=256, epsilon=1.0)

    stats = learn_endless(config, updates=40, ending=SegmentEnd.TRUNCATED)

    assert stats["Policy/Extrinsic Value Estimate"] == pytest.approx(5.0, abs=0.3)


INTRINSIC = {"gamma": 0.9, "learning_rate": 1e-3, "network_settings": {"hidden_units": 16, "num_layers": 1}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("signals", "finds_it"),
    [
        pytest.param({}, False, id="plain"),
        pytest.param({"curiosity": {**INTRINSIC, "strength": 0.1}}, True, id="curiosity"),
        pytest.param({"rnd": {**INTRINSIC, "strength": 0.1}}, True, id="rnd"),
    ],
)
def test_a_reward_that_nothing_leads_to_is_found_by_exploring(signals: dict[str, Any], finds_it: bool) -> None:
    game = Hall()
    hyper = {"num_epoch": 3, "batch_size": 256, "buffer_size": 1024, "learning_rate": 1e-2}
    network = {"hidden_units": 16, "num_layers": 1}

    scores = training(game, signals={"extrinsic": {}, **signals}, network=network, **hyper).run(30)

    # Best: 9 or 10 of 32 steps are left for the end of a hall of 24 cells. A round is one episode of all agents.
    assert (max(scores) > 5.0) if finds_it else (max(scores) < 0.5)
    assert bool(game.seen.all()) == finds_it
