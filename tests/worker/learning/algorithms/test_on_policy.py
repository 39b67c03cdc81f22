"""The update that PPO and POCA share, shown on PPO: schedules, statistics, and what is taken back."""

import numpy as np
import pytest
import torch

from tests.worker.learning.algorithms.test_ppo import make_ppo, train
from tests.worker.rollouts import acted_rollout, equal_states
from worker.experience.rollout import Rollout
from worker.learning.algorithms.numeric_check import Diverged


def test_normalizer_merges_the_rollout_after_the_update() -> None:
    ppo, policy = make_ppo(num_epoch=1)
    rollout = acted_rollout(policy, np.random.default_rng(4))
    normalizer = ppo.actor.normalizer
    assert normalizer is not None

    batch = ppo.prepare(rollout).batch
    ppo.update(rollout, step=0)

    observations = torch.cat(rollout.observations, 1)
    torch.testing.assert_close(batch.encoded[0], observations.clamp(-5, 5))  # the statistics that acted: mean 0, std 1
    torch.testing.assert_close(normalizer.mean, observations.double().sum(0) / 257)  # 256 and the imagined one


def test_gradients_are_clipped_where_it_is_asked_for() -> None:
    free, policy = make_ppo()
    clipped, _ = make_ppo(max_grad_norm=1e-6)
    rollout = acted_rollout(policy, np.random.default_rng(5), rewards=np.full(256, 100.0))

    assert free.update(rollout, step=0)["Losses/Gradient Norm"] > 1.0
    clipped.update(rollout, step=0)

    # Adam divides by the gradient's size, except where its epsilon of 1e-8 is not small beside it.
    assert not np.array_equal(free.flat_weights(), clipped.flat_weights())
    assert float(clipped.optimizer.gradient.norm()) == pytest.approx(1e-6, rel=1e-3)


def test_schedules_are_read_at_the_policys_step() -> None:
    ppo, policy = make_ppo(learning_rate=1e-3, learning_rate_schedule="linear", epsilon=0.3, beta=0.01, max_steps=1000)

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(9)), step=500)

    assert stats["Policy/Learning Rate"] == pytest.approx(5e-4, rel=1e-6)
    assert stats["Policy/Epsilon"] == pytest.approx(0.2)  # half-way from 0.3 to its floor of 0.1
    assert stats["Policy/Beta"] == pytest.approx(0.005005)  # half-way from 0.01 to its floor of 1e-5


def test_policy_lag_counts_versions_behind() -> None:
    ppo, policy = make_ppo()
    train(ppo, policy, np.random.default_rng(11), updates=3)

    stats = ppo.update(acted_rollout(policy, np.random.default_rng(12), version=1), step=0)

    assert stats["Policy/Lag"] == 2.0  # version 3 is updated, version 1 acted
    assert ppo.version == 4


def poisoned(rollout: Rollout, column: str) -> Rollout:
    """The rollout with one value of a column made infinite."""
    tensor = getattr(rollout, column)
    (tensor[0] if isinstance(tensor, list) else tensor).view(-1)[5] = torch.inf
    return rollout


@pytest.mark.parametrize(
    ("column", "named"),
    [("observations", "observations"), ("rewards", "returns"), ("continuous", "continuous"), ("log_probs", "log-prob")],
)
def test_a_value_that_is_not_finite_is_named_and_the_update_taken_back(column: str, named: str) -> None:
    ppo, policy = make_ppo(normalize=False)
    train(ppo, policy, np.random.default_rng(13), updates=1)
    before = ppo.state_dict()

    with pytest.raises(Diverged, match="taken back") as diverged:
        ppo.update(poisoned(acted_rollout(policy, np.random.default_rng(14)), column), step=0)

    assert diverged.value.tensor == named
    after = ppo.state_dict()
    del before["generator"], after["generator"]  # the order of minibatches was drawn
    assert equal_states(before, after)


def test_an_exploding_loss_is_named_with_its_minibatch() -> None:
    ppo, policy = make_ppo(learning_rate=1.0)
    rollout = acted_rollout(policy, np.random.default_rng(15), rewards=np.full(256, 1e25))

    with pytest.raises(Diverged) as diverged:
        ppo.update(rollout, step=0)

    assert (diverged.value.tensor, diverged.value.minibatch) == ("value loss", 0)  # (1e25)^2 is past float32
    assert "value loss is not finite in minibatch 0" in str(diverged.value)
