"""`target_kl` ends an update early; `desired_kl` adapts the learning rate. With worked numbers, and exact resume."""

import numpy as np
import pytest
import torch

from tests.worker.learning.algorithms.test_ppo import make_ppo
from tests.worker.rollouts import acted_rollout, equal_states

SLOW = {"learning_rate": 3e-4}


def test_an_update_ends_before_the_minibatch_that_is_too_far_from_the_policy_that_acted() -> None:
    (free, policy), (stopped, _) = make_ppo(num_epoch=8, **SLOW), make_ppo(num_epoch=8, target_kl=0.004, **SLOW)
    rollout = acted_rollout(policy, np.random.default_rng(2))
    seen: list[float] = []
    differentiate = free.differentiate

    def noted(*arguments):  # type: ignore[no-untyped-def]  # as the method that it calls
        terms, log_ratio = differentiate(*arguments)
        seen.append(float((log_ratio.expm1() - log_ratio).mean()))
        return terms, log_ratio

    free.differentiate = noted  # type: ignore[method-assign]
    free.update(rollout, step=0)
    metrics = stopped.update(rollout, step=0)

    first = next(index for index, kl in enumerate(seen) if kl > 1.5 * 0.004)
    assert 1 < first < len(seen) == 32
    assert metrics["Policy/Minibatches"] == first
    assert float(stopped.optimizer.state_dict()["steps"]) == first


def test_a_target_that_is_never_reached_changes_nothing() -> None:
    (free, policy), (bounded, _) = make_ppo(), make_ppo(target_kl=1e6)
    rollout = acted_rollout(policy, np.random.default_rng(2))

    expected, metrics = free.update(rollout, step=0), bounded.update(rollout, step=0)

    assert metrics.pop("Policy/Minibatches") == 12  # three passes over 256 steps in minibatches of 64
    assert metrics == expected
    assert equal_states(free.state_dict(), bounded.state_dict())


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        pytest.param(0.021, 1.0 / 1.5, id="above twice: slower"),
        pytest.param(0.019, 1.0, id="below twice: as before"),
        pytest.param(0.006, 1.0, id="above half: as before"),
        pytest.param(0.004, 1.5, id="below half: faster"),
    ],
)
def test_the_learning_rate_follows_the_divergence_of_the_last_update(kl: float, factor: float) -> None:
    ppo, _ = make_ppo(learning_rate=1e-3, critic_learning_rate=2e-3, desired_kl=0.01)
    assert ppo._rate_factor is not None

    ppo._adapt_rate(ppo._rate_factor, kl)

    rates = ppo.rates(0)
    assert rates.learning_rate == pytest.approx(1e-3 * factor)
    assert rates.critic_learning_rate == pytest.approx(2e-3 * factor)


def test_the_adapted_learning_rate_stays_within_its_limits() -> None:
    ppo, _ = make_ppo(learning_rate=1e-3, desired_kl=0.01)
    assert ppo._rate_factor is not None

    found = []
    for kl in (1.0, 0.0):
        for _ in range(40):
            ppo._adapt_rate(ppo._rate_factor, kl)
        found.append(ppo.rates(0).learning_rate)

    assert found == pytest.approx([1e-5, 1e-2])


def test_an_update_adapts_the_rate_of_the_next_one_and_a_resumed_learner_goes_on_with_it() -> None:
    (ppo, policy), (resumed, _) = (make_ppo(desired_kl=10.0, seed=seed) for seed in (1, 2))
    rng = np.random.default_rng(3)

    first = ppo.update(acted_rollout(policy, rng), step=0)
    resumed.load_state_dict(ppo.state_dict())
    policy.load(ppo.flat_weights())
    rollout = acted_rollout(policy, rng, version=1)
    metrics = ppo.update(rollout, step=256)

    assert metrics["Policy/Learning Rate"] == pytest.approx(1.5 * first["Policy/Learning Rate"])
    assert resumed.update(rollout, step=256) == metrics
    assert equal_states(ppo.state_dict(), resumed.state_dict())


def test_without_the_key_a_checkpoint_has_no_rate_of_its_own() -> None:
    ppo, _ = make_ppo()

    assert ppo.state_dict()["rate_factor"] is None
    assert not torch.is_tensor(ppo._rate_factor)
