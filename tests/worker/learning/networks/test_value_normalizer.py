"""Normalised values: the statistics, values that stay the same while they move, and PPO with them."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.worker.learning.algorithms.test_ppo import make_ppo
from tests.worker.rollouts import acted_rollout, equal_states
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.networks.dense import xavier_dense
from worker.learning.networks.value_normalizer import ValueNormalizer

RETURNS = torch.tensor([[1.0, -200.0], [3.0, 200.0], [5.0, 600.0]])


def test_the_first_statistics_are_those_of_the_first_returns() -> None:
    normalizer = ValueNormalizer(2)

    normalizer.merge(RETURNS, RETURNS, xavier_dense(4, 2, torch.Generator()))

    # deviations: the root of (4 + 0 + 4) / 3, and a hundred times twice that
    assert normalizer.mean.tolist() == pytest.approx([3.0, 200.0])
    assert normalizer.deviation().tolist() == pytest.approx([(8 / 3) ** 0.5, 200 * (8 / 3) ** 0.5])
    assert normalizer.normalized(RETURNS).mean(0).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_statistics_are_a_mean_over_ten_updates_and_then_move_a_tenth_of_the_way() -> None:
    normalizer, heads = ValueNormalizer(1), xavier_dense(4, 1, torch.Generator())
    for value in range(10):
        normalizer.merge(*[torch.full((3, 1), float(value))] * 2, heads)

    assert normalizer.mean.item() == pytest.approx(4.5)
    normalizer.merge(*[torch.full((3, 1), 14.5)] * 2, heads)
    assert normalizer.mean.item() == pytest.approx(5.5)


def test_values_stay_the_same_while_statistics_move() -> None:
    normalizer, generator = ValueNormalizer(2), torch.Generator().manual_seed(1)
    heads = xavier_dense(4, 2, generator)
    features = torch.randn(10, 4, generator=generator)

    for scale in (1.0, 50.0, 0.01):
        before = normalizer(heads(features)).detach()
        normalizer.merge(RETURNS * scale, before[:3], heads)
        torch.testing.assert_close(normalizer(heads(features)), before, rtol=1e-4, atol=1e-3)


def test_returns_that_are_all_alike_and_far_from_the_values_are_one_deviation_from_the_mean() -> None:
    normalizer, returns = ValueNormalizer(1), torch.full((3, 1), 1000.0)

    normalizer.merge(returns, torch.zeros(3, 1), xavier_dense(4, 1, torch.Generator()))

    # 0 and 1000: mean 500, deviation 500
    assert normalizer.normalized(returns)[0].tolist() == pytest.approx([1.0])


def test_constant_values_do_not_divide_by_nothing() -> None:
    normalizer, constant = ValueNormalizer(1), torch.full((3, 1), 7.0)

    normalizer.merge(constant, constant, xavier_dense(4, 1, torch.Generator()))

    assert torch.isfinite(normalizer.normalized(constant)).all()


@pytest.mark.parametrize("options", [{}, {"shared_critic": True}, {"clip_value_loss": True}], ids=str)
def test_the_critic_learns_normalised_returns_and_reports_values_in_the_units_of_rewards(
    options: dict[str, Any],
) -> None:
    ppo, policy = make_ppo(normalize_values=True, num_epoch=10, learning_rate=1e-2, **options)
    metrics: dict[str, float] = {}
    for seed in range(6):
        rollout = acted_rollout(policy, np.random.default_rng(seed), version=ppo.version, rewards=np.full(256, 1000.0))
        metrics = ppo.update(rollout, step=0)
        policy.load(ppo.flat_weights())

    assert metrics["Losses/Value Loss"] < 5.0, "in units of the returns' variance, not of 1000 squared"
    assert metrics["Policy/Extrinsic Value Estimate"] == pytest.approx(1000.0, rel=0.05), "episodes of one step"
    assert ppo.model.value_normalizer is not None
    assert 500.0 < float(ppo.model.value_normalizer.mean) < 1050.0


def test_a_resumed_learner_goes_on_with_its_statistics() -> None:
    (ppo, policy), (resumed, _) = (make_ppo(normalize_values=True, seed=seed) for seed in (1, 2))
    rng = np.random.default_rng(3)
    ppo.update(acted_rollout(policy, rng), step=0)

    resumed.load_state_dict(ppo.state_dict())
    policy.load(ppo.flat_weights())
    rollout = acted_rollout(policy, rng, version=1)

    assert resumed.update(rollout, step=256) == ppo.update(rollout, step=256)
    assert equal_states(ppo.state_dict(), resumed.state_dict())


def test_a_diverged_update_leaves_statistics_and_heads_as_they_were() -> None:
    ppo, policy = make_ppo(normalize_values=True)
    ppo.update(acted_rollout(policy, np.random.default_rng(3)), step=0)
    before = ppo.state_dict()
    policy.load(ppo.flat_weights())

    with pytest.raises(Diverged):
        ppo.update(acted_rollout(policy, np.random.default_rng(4), rewards=np.full(256, np.nan)), step=256)

    assert equal_states(before["model"], ppo.state_dict()["model"])
