"""The update itself: what it starts from, what it changes, what it reports, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.policy import ActingPolicy
from tests.worker.rollouts import acted_rollout, make_config, make_spec
from worker.learning.algorithms.ppo import PPO

SPACES = [(0, (3,)), (0, (3, 2)), (2, ()), (2, (3, 2))]
CPU = torch.device("cpu")


def make_ppo(
    continuous: int = 2, branches: tuple[int, ...] = (3,), *, seed: int = 1, normalize: bool = True, **overrides: Any
) -> tuple[PPO, ActingPolicy]:
    """A learner, and a policy with its weights."""
    config = make_config(network={"normalize": normalize}, **overrides)
    spec = make_spec(observations=(3, 2), continuous=continuous, branches=branches)
    ppo = PPO(config, spec, CPU, seed=seed)
    policy = ActingPolicy(spec, config.network_settings)
    policy.load(ppo.flat_weights())
    return ppo, policy


def train(ppo: PPO, policy: ActingPolicy, rng: np.random.Generator, updates: int) -> None:
    for _ in range(updates):
        policy.load(ppo.flat_weights())
        ppo.update(acted_rollout(policy, rng, version=ppo.version), step=ppo.version * 256)


@pytest.mark.parametrize("shared_critic", [False, True])
@pytest.mark.parametrize(("continuous", "branches"), SPACES)
def test_ratio_is_one_on_the_first_minibatch(continuous: int, branches: tuple[int, ...], shared_critic: bool) -> None:
    ppo, policy = make_ppo(continuous, branches, num_epoch=1, batch_size=256, shared_critic=shared_critic)
    train(ppo, policy, np.random.default_rng(1), updates=2)  # weights and normalizer have moved
    policy.load(ppo.flat_weights())
    rollout = acted_rollout(policy, np.random.default_rng(2), masked=bool(branches))

    stats = ppo.update(rollout, step=0)  # of one minibatch

    assert stats["Policy/Approximate KL"] < 1e-9
    assert stats["Policy/Clip Fraction"] == 0.0
    assert stats["Losses/Policy Loss"] == pytest.approx(0.0, abs=1e-5)  # minus the mean of normalised advantages


def test_ratio_moves_away_from_one_afterwards() -> None:
    ppo, policy = make_ppo(num_epoch=2, batch_size=256)

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(2)), step=0)

    assert stats["Policy/Approximate KL"] > 1e-6


def test_value_clip_acts_where_it_is_asked_for() -> None:
    free, _ = make_ppo(epsilon=0.01, num_epoch=8, learning_rate=0.01)
    clipped, policy = make_ppo(epsilon=0.01, num_epoch=8, learning_rate=0.01, clip_value_loss=True)
    rollout = acted_rollout(policy, np.random.default_rng(5), rewards=np.full(256, 100.0))

    before = free.prepare(rollout).batch.values
    moved = []
    for ppo in (free, clipped):
        ppo.actor.body.normalizer = None
        ppo.update(rollout, step=0)
        moved.append(float((ppo.prepare(rollout).batch.values - before).abs().mean()))

    # Once a value has left the range of 0.01, nothing pulls it any further; Adam's momentum still does a little.
    assert moved[1] < moved[0] / 3


def test_entropy_is_reported_as_ml_agents_does() -> None:
    # Two columns with sigma 1: mean 0.5 ln(2 pi e) = 1.4189; one branch of 3 equally likely choices: ln 3 = 1.0986.
    ppo, policy = make_ppo(2, (3,), learning_rate=1e-9, num_epoch=1)
    with torch.no_grad():
        ppo.actor.head.weight.zero_()
    policy.load(ppo.flat_weights())

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(10)), step=0)

    assert stats["Policy/Entropy"] == pytest.approx(1.4189 + 1.0986, abs=1e-3)
    assert stats["Policy/Continuous Entropy"] == pytest.approx(1.4189, abs=1e-3)
    assert stats["Policy/Branch 0 Entropy"] == pytest.approx(1.0986, abs=1e-3)


def test_metrics_have_ml_agents_names() -> None:
    ppo, policy = make_ppo(2, (3, 2))

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(20)), step=0)

    assert set(stats) == {
        "Losses/Policy Loss",
        "Losses/Value Loss",
        "Policy/Entropy",
        "Policy/Continuous Entropy",
        "Policy/Branch 0 Entropy",
        "Policy/Branch 1 Entropy",
        "Policy/Learning Rate",
        "Policy/Epsilon",
        "Policy/Beta",
        "Policy/Extrinsic Value Estimate",
        "Policy/Approximate KL",
        "Policy/Clip Fraction",
        "Losses/Explained Variance",
        "Losses/Gradient Norm",
        "Policy/Lag",
        "Policy/Acting KL",
    }


def test_flat_weights_are_as_long_as_the_layout_says() -> None:
    ppo, policy = make_ppo()

    assert ppo.flat_weights().shape == (policy.flat_size,)
    assert ppo.flat_weights().dtype == np.float32
