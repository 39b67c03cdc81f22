"""Steps of policies that are too old are not learned from: which they are, what stays as it was, what is counted."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from ludus.config.behavior import POCAConfig, PPOConfig, SACConfig
from ludus.protocol.batches import Array
from tests.toys.balance import CartPole
from tests.toys.playing import training
from tests.worker.learning.algorithms.test_vtrace import NETWORKS, make, played
from tests.worker.rollouts import equal_states
from worker.experience.rollout import Rollout
from worker.learning.algorithms.on_policy import OnPolicy
from worker.trainer.health.monitor import HealthMonitor

LENGTHS = (3, 9, 1, 7, 4, 8)
"""Of the segments of `played`."""


def aged(algorithm: OnPolicy[Any, Any], *, old: int) -> Rollout:
    """Segments whose first `old` steps are 2 versions older than the policy, and the others its own."""
    rollout = played(algorithm, version=algorithm.version)
    for first, length in zip(rollout.firsts.tolist(), LENGTHS, strict=True):
        rollout.versions[first : first + min(old, length)] -= 2
    return rollout


def experienced(algorithm: OnPolicy[Any, Any]) -> OnPolicy[Any, Any]:
    """The algorithm as version 2."""
    for version in range(2):
        algorithm.update(played(algorithm, version=version, seed=version), 32)
    return algorithm


def learned_steps(algorithm: OnPolicy[Any, Any], rollout: Rollout) -> set[int]:
    """Rows that the minibatches of an update have."""
    with torch.no_grad():
        experience = algorithm.prepare(rollout)
        return {row for minibatch in algorithm.minibatches(experience) for row in minibatch.steps.tolist()}


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_steps_that_are_too_old_are_in_no_minibatch_and_are_counted(trainer: str) -> None:
    algorithm = experienced(make(trainer, "plain", max_policy_lag=1, batch_size=4))
    rollout = aged(algorithm, old=3)
    stale = {row for row in range(32) if rollout.versions[row] == 0}

    rows = learned_steps(algorithm, rollout)
    measured = algorithm.update(rollout, 96)

    assert len(stale) == 3 + 3 + 1 + 3 + 3 + 3
    assert rows == set(range(32)) - stale
    assert measured["Policy/Stale Share"] == pytest.approx(16 / 32)
    assert measured["Policy/Lag"] == pytest.approx(2 * 16 / 32), "the lag is that of the whole round"


@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_with_a_memory_a_sequence_is_learned_from_whole_or_not_at_all(trainer: str) -> None:
    algorithm = experienced(make(trainer, "memory", max_policy_lag=1, batch_size=4))  # sequences of 4 steps
    rollout = aged(algorithm, old=3)

    rows = learned_steps(algorithm, rollout)
    measured = algorithm.update(rollout, 96)

    # Each segment's first sequence has old steps; behind it the segments of 9, 7 and 8 steps have 5, 3 and 4 more.
    assert rows == {*range(7, 12), *range(17, 20), *range(28, 32)}
    assert measured["Policy/Stale Share"] == pytest.approx(1 - 12 / 32)


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_a_limit_that_no_step_exceeds_changes_no_bit(trainer: str, network: str) -> None:
    limited, free = (experienced(make(trainer, network, max_policy_lag=limit)) for limit in (2, None))

    measured = [algorithm.update(aged(algorithm, old=3), 96) for algorithm in (limited, free)]

    assert equal_states(limited.state_dict(), free.state_dict())
    assert measured[0].pop("Policy/Stale Share") == 0.0
    assert measured[0] == measured[1]


def test_the_steps_behind_the_old_ones_have_the_returns_that_they_had() -> None:
    limited, free = (experienced(make("ppo", "plain", max_policy_lag=limit)) for limit in (0, None))
    rollout = aged(limited, old=3)

    with torch.no_grad():
        some, every = (algorithm.prepare(rollout).batch for algorithm in (limited, free))

    torch.testing.assert_close(some.returns, every.returns[some.steps])
    assert float(some.advantage.mean()) == pytest.approx(0.0, abs=1e-6), "normalised over what is learned from"
    assert float(some.advantage.square().mean()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("key", ["vtrace", "decoupled_objective"])
def test_old_actions_and_rewards_change_no_weight(key: str) -> None:
    one, other = (experienced(make("ppo", "plain", max_policy_lag=1, **{key: True})) for _ in range(2))
    rollout, changed = aged(one, old=3), aged(other, old=3)
    changed.rewards[changed.versions == 0] = 7.0
    changed.continuous[changed.versions == 0] = 0.3
    changed.log_probs[changed.versions == 0] = -2.0

    one.update(rollout, 96)
    other.update(changed, 96)

    assert np.array_equal(one.flat_weights(), other.flat_weights())


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_of_a_round_that_is_too_old_as_a_whole_nothing_is_learned_and_it_is_counted(trainer: str, network: str) -> None:
    algorithm = experienced(make(trainer, network, max_policy_lag=1))
    rollout = aged(algorithm, old=100)
    before = algorithm.flat_weights()

    measured = algorithm.update(rollout, 96)

    assert measured["Policy/Stale Share"] == 1.0
    assert measured["Policy/Lag"] == 2.0
    assert "Losses/Policy Loss" not in measured
    assert algorithm.version == 2, "there is nothing new to publish"
    assert np.array_equal(algorithm.flat_weights(), before)
    assert algorithm.update(played(algorithm, version=2), 128)["Policy/Stale Share"] == 0.0, "and it goes on"


@pytest.mark.parametrize("old", [3, 100], ids=["some of them", "all"])
@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_a_learner_resumed_after_steps_were_too_old_goes_on_bit_for_bit(trainer: str, network: str, old: int) -> None:
    algorithm = experienced(make(trainer, network, max_policy_lag=1))
    resumed = make(trainer, network, max_policy_lag=1)
    dropped = algorithm.update(aged(algorithm, old=old), 96)

    resumed.load_state_dict(algorithm.state_dict())
    rollout = aged(algorithm, old=3)
    measured = [learner.update(rollout, 128) for learner in (algorithm, resumed)]

    assert dropped["Policy/Stale Share"] > 0.0
    assert 0.0 < measured[0]["Policy/Stale Share"] < 1.0
    assert measured[0] == measured[1]
    assert equal_states(algorithm.state_dict(), resumed.state_dict())


@pytest.mark.parametrize("kind", [PPOConfig, POCAConfig])
def test_a_limit_of_0_is_refused_with_threaded_collection_and_says_why(
    kind: type[PPOConfig] | type[POCAConfig],
) -> None:
    document = {"trainer_type": kind.model_fields["trainer_type"].default, "threaded": True}

    with pytest.raises(ValidationError, match="would drop every second round; set max_policy_lag to 1 or more"):
        kind.model_validate({**document, "hyperparameters": {"max_policy_lag": 0}})
    kind.model_validate({**document, "hyperparameters": {"max_policy_lag": 1}})
    kind.model_validate({**document, "threaded": False, "hyperparameters": {"max_policy_lag": 0}})


@pytest.mark.parametrize("kind", [PPOConfig, POCAConfig])
def test_waiting_for_late_steps_needs_a_limit_that_games_of_turns_can_keep(
    kind: type[PPOConfig] | type[POCAConfig],
) -> None:
    document = {"trainer_type": kind.model_fields["trainer_type"].default}

    for limit in ({}, {"max_policy_lag": None}, {"max_policy_lag": 0}):
        with pytest.raises(ValidationError, match="late_steps: wait needs a max_policy_lag of 1 or more"):
            kind.model_validate({**document, "hyperparameters": {**limit, "late_steps": "wait"}})
    waits = {"max_policy_lag": 1, "late_steps": "wait"}
    with pytest.raises(ValidationError, match="takes one more; set max_policy_lag to 2 or more"):
        kind.model_validate({**document, "threaded": True, "hyperparameters": waits})
    assert kind.model_validate({**document, "hyperparameters": waits}).rounds_ahead == 1
    threaded = kind.model_validate({**document, "threaded": True, "hyperparameters": {**waits, "max_policy_lag": 3}})
    assert threaded.rounds_ahead == 2
    assert kind.model_validate({**document, "hyperparameters": {"max_policy_lag": 1}}).rounds_ahead is None


def test_trainers_that_replay_old_steps_have_no_such_limit() -> None:
    with pytest.raises(ValidationError, match="max_policy_lag"):
        SACConfig.model_validate({"trainer_type": "sac", "hyperparameters": {"max_policy_lag": 4}})


def test_games_that_no_new_policy_reaches_are_reported_and_learning_goes_on_when_one_does() -> None:
    trained = training(CartPole(), max_policy_lag=1, buffer_size=256, batch_size=64)
    monitor = HealthMonitor(trained.arcade.config.model_copy(update={"max_steps": 10_000}), CartPole().spec)
    first = trained.algorithm.flat_weights()

    def play(weights: Array, version: int) -> None:
        rollout = trained.arcade.collect(weights, version)
        trained.step += rollout.steps
        measured = trained.algorithm.update(rollout, trained.step)
        assert measured is not None
        monitor.experienced(rollout, trained.step)
        monitor.updated(measured, rollout)
        monitor.learned()

    for _ in range(12):
        play(first, 0)

    assert trained.algorithm.version == 2, "the learner is never further ahead than the limit"
    (fact,) = (fact for fact in monitor.facts if fact.code == "steps_stale")
    assert fact.message.startswith("Nothing of the newest ")
    assert fact.remedy.startswith("Raise hyperparameters.max_policy_lag")

    play(trained.algorithm.flat_weights(), trained.algorithm.version)

    assert trained.algorithm.version == 3
