"""V-trace weights the steps of an older policy by how likely the newest one is to take them, and its own by 1."""

from typing import Any

import numpy as np
import pytest
import torch

from ludus.config.behavior import PPOConfig
from tests.worker.learning.algorithms.test_poca import make_poca
from tests.worker.rollouts import equal_states, make_spec, random_rollout
from worker.experience.rollout import Rollout
from worker.learning.algorithms.on_policy import OnPolicy
from worker.learning.build import Demonstrations, build_algorithm

CPU = torch.device("cpu")
SPEC = make_spec(observations=(3, 2), continuous=2, branches=(3, 2))
NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {"normalize": True},
    "memory": {"normalize": True, "memory": {"memory_size": 8, "sequence_length": 4}},
}
HYPER = {"batch_size": 64, "buffer_size": 256, "learning_rate": 1e-2, "num_epoch": 2, "lambd": 0.9}


def make(trainer: str, network: str, **hyperparameters: Any) -> OnPolicy[Any, Any]:
    if trainer == "poca":
        return make_poca(SPEC, network=NETWORKS[network], **{**HYPER, **hyperparameters})
    config = PPOConfig.model_validate(
        {
            "trainer_type": "ppo",
            "hyperparameters": {**HYPER, **hyperparameters},
            "network_settings": {"hidden_units": 16, "num_layers": 1, **NETWORKS[network]},
        }
    )
    algorithm = build_algorithm(config, SPEC, CPU, 1, Demonstrations({}))
    assert isinstance(algorithm, OnPolicy)
    return algorithm


def played(algorithm: OnPolicy[Any, Any], *, version: int, seed: int = 1) -> Rollout:
    """Segments with odd lengths, masks and teams of two; log-probabilities are about a likely action's."""
    size = algorithm.config.network_settings.memory
    return random_rollout(
        SPEC,
        [3, 9, 1, 7, 4, 8],
        np.random.default_rng(seed),
        memory_size=0 if size is None else size.memory_size,
        group_size=2,
        masked=True,
        version=version,
    )


def all_ratios(algorithm: OnPolicy[Any, Any], rollout: Rollout) -> list[float]:
    """The ratio of each step by the loss that is descended, sorted."""
    ratios = []
    with torch.no_grad():
        experience = algorithm.prepare(rollout)
        steps = 0
        for minibatch in algorithm.minibatches(experience):
            log_ratio = algorithm.loss(experience, minibatch, algorithm.rates(0)).log_ratio
            real = slice(None) if minibatch.real is None else minibatch.real
            ratios += log_ratio[real].exp().tolist()
            steps += len(minibatch.steps)
            if steps >= rollout.steps:
                break
    return sorted(ratios)


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_an_older_step_counts_by_the_ratio_of_the_loss_and_never_above_1(trainer: str, network: str) -> None:
    algorithm = make(trainer, network, vtrace=True)
    algorithm.update(played(algorithm, version=0), 32)
    rollout = played(algorithm, version=0, seed=2)

    with torch.no_grad():
        experience = algorithm.prepare(rollout)
        pool = algorithm.actor.encode(experience.transitions.observations)
        importance = algorithm.correction(rollout, pool, experience.transitions).importance

    assert importance is not None
    ratios = all_ratios(algorithm, rollout)
    assert sorted(importance.tolist()) == pytest.approx([min(ratio, 1.0) for ratio in ratios], rel=1e-4, abs=1e-7)
    assert len({round(value, 3) for value in importance.tolist()}) > 5, "they differ"


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_in_lockstep_it_changes_no_bit(trainer: str, network: str) -> None:
    corrected, plain = (make(trainer, network, vtrace=vtrace) for vtrace in (True, False))

    for algorithm in (corrected, plain):
        for version in range(2):
            algorithm.update(played(algorithm, version=version, seed=version), 32)

    assert equal_states(corrected.state_dict(), plain.state_dict())


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_own_steps_in_a_mixed_round_count_whole(trainer: str) -> None:
    algorithm = make(trainer, "plain", vtrace=True)
    algorithm.update(played(algorithm, version=0), 32)
    rollout = played(algorithm, version=0)
    rollout.versions[10:] = 1

    with torch.no_grad():
        experience = algorithm.prepare(rollout)
        pool = algorithm.actor.encode(experience.transitions.observations)
        importance = algorithm.correction(rollout, pool, experience.transitions).importance

    assert importance is not None
    assert importance[10:].tolist() == [1.0] * (rollout.steps - 10)
    assert min(importance[:10].tolist()) < 1.0


def test_a_step_that_the_policy_would_never_take_again_teaches_the_critic_nothing() -> None:
    algorithm = make("ppo", "plain", vtrace=True)
    algorithm.update(played(algorithm, version=0), 32)
    rollout = played(algorithm, version=0)
    rollout.continuous[5] = 1e3  # so far from the mean that its probability is 0

    with torch.no_grad():
        batch = algorithm.prepare(rollout).batch

    torch.testing.assert_close(batch.returns[5], batch.values[5])
    assert bool(batch.advantage.isfinite().all())
