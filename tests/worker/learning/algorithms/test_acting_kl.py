"""Collectors act in numpy or ONNX Runtime, learners evaluate in torch: `Policy/Acting KL` shows live that both agree.

The game, the collector's policy and recorder, and the algorithm are the real ones.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ludus.protocol.batches import Array
from ludus.protocol.spec import BehaviorSpec
from tests.toys.drills import Drill
from tests.toys.playing import Training, training
from tests.worker.learning.networks import kinds
from tests.worker.learning.networks.kinds import Kind
from tests.worker.rollouts import make_spec, random_masks, random_observation
from worker.learning.algorithms.acting_kl import ACTING_INTERVAL, END_OF_RANGE, acting_kl
from worker.trainer.health.evidence import DISAGREEMENT
from worker.trainer.health.monitor import HealthMonitor

KINDS = {name: kind for name, kind in kinds.KINDS.items() if kind.head == "gaussian"}  # that of PPO and POCA
HYPER: dict[str, Any] = {"batch_size": 64, "buffer_size": 128, "num_epoch": 2}
ROUNDING = 1e-6
"""The most that single precision may cost, in nats."""


class Noise(Drill):
    """Shows noise to 8 agents in episodes of 6 steps, forbids choices at random, and rewards at random."""

    name = "Walker"
    length = 6

    def __init__(self, spec: BehaviorSpec, group_size: int = 0) -> None:
        super().__init__(spec.observations, spec.actions, agents=8, seed=3)
        self.group_size = group_size

    def deal(self) -> None:
        pass

    def see(self) -> tuple[Array, ...]:
        return tuple(random_observation(part, self.agents, self.rng) for part in self.spec.observations)

    def allowed(self) -> Array | None:
        branches = self.spec.actions.discrete_branches
        return random_masks(self.rng, self.agents, branches).astype(np.uint8) if branches else None

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        return self.rng.normal(size=self.agents).astype(np.float32)


OFF_POLICY = {"squashed": "sac", "epsilon_greedy": "dqn", "gaussian_noise": "td3"}
"""The trainer that each head is learned by."""
REPLAYED = {name: kind for name, kind in kinds.KINDS.items() if kind.head in OFF_POLICY}


def learning(kind: Kind, trainer: str = "ppo", **hyperparameters: Any) -> Training:
    network = {"hidden_units": 16, **kind.settings}
    game = Noise(kind.spec, group_size=2 if trainer == "poca" else 0)
    return training(game, trainer=trainer, network=network, **{**HYPER, **hyperparameters})


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "kind"),
    [*(("ppo", kind) for kind in sorted(KINDS)), *(("poca", kind) for kind in ("everything", "hybrid", "memory"))],
)
def test_what_acts_and_what_learns_are_one_policy_for_every_kind_of_network(trainer: str, kind: str) -> None:
    trained = learning(KINDS[kind], trainer)

    for _ in range(3):  # with weights that were never learned, and with others
        trained.advance()

        assert 0 <= trained.metrics["Policy/Acting KL"] < ROUNDING
        assert trained.metrics["Policy/Approximate KL"] > trained.metrics["Policy/Acting KL"]


@pytest.mark.parametrize("memory", [None, {"memory_size": 12, "sequence_length": 4}], ids=["plain", "memory"])
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_an_actor_with_other_weights_than_the_learners_is_seen(trainer: str, memory: dict[str, int] | None) -> None:
    kind = Kind(make_spec(observations=(3,), continuous=2, branches=(3,)), {"normalize": True, "memory": memory})
    trained = learning(kind, trainer)
    weights = trained.algorithm.flat_weights()
    damaged = weights + np.random.default_rng(1).normal(0.0, 0.1, weights.shape).astype(np.float32)

    faithful = trained.algorithm.update(trained.arcade.collect(weights, 0), 128)
    assert faithful is not None
    wrong = trained.algorithm.update(trained.arcade.collect(damaged, trained.algorithm.version), 256)
    assert wrong is not None

    assert faithful["Policy/Acting KL"] < ROUNDING
    assert wrong["Policy/Acting KL"] > DISAGREEMENT
    for measured, codes in ((faithful, []), (wrong, ["actors_disagree"])):
        monitor = HealthMonitor(trained.arcade.config, kind.spec)
        rollout = trained.arcade.collect(weights, 0)
        monitor.experienced(rollout, 128)
        monitor.updated(measured, rollout)
        monitor.learned()
        assert [fact.code for fact in monitor.facts] == codes


def test_steps_of_an_older_policy_are_no_disagreement() -> None:
    trained = learning(KINDS["hybrid"], learning_rate=0.03)
    old = trained.algorithm.flat_weights()
    trained.advance()

    late = trained.algorithm.update(trained.arcade.collect(old, 0), 256)

    assert late is not None
    assert late["Policy/Lag"] == 1.0
    assert "Policy/Acting KL" not in late, "it is about the policy's own steps, and there are none"


@pytest.mark.parametrize("key", ["vtrace", "decoupled_objective"])
def test_a_correction_for_older_steps_hides_no_disagreement(key: str) -> None:
    trained = learning(KINDS["hybrid"], **{key: True})
    damaged = trained.algorithm.flat_weights() + np.float32(0.1)

    wrong = trained.algorithm.update(trained.arcade.collect(damaged, 0), 128)

    assert wrong is not None
    assert wrong["Policy/Acting KL"] > DISAGREEMENT


def replaying(kind: Kind) -> Training:
    """A learner with a replay buffer, with one gradient step for each round of 8 agents."""
    numbers = {"batch_size": 64, "buffer_size": 500, "steps_per_update": 8.0}
    if kind.head == "epsilon_greedy":  # where all choices are random, none tells the policy
        numbers["exploration_initial_eps"] = 0.1
    return training(Noise(kind.spec), trainer=OFF_POLICY[kind.head], network=kind.network.model_dump(), **numbers)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.long] * k.startswith("everything")) for k in sorted(REPLAYED)]
)
def test_what_explores_and_what_learns_are_one_policy_for_every_kind_of_network(kind: str) -> None:
    trained, measured = replaying(REPLAYED[kind]), []
    while trained.algorithm.version <= ACTING_INTERVAL:
        trained.advance()
        if trained.algorithm.version == len(measured) * ACTING_INTERVAL + 1:  # the update behind each interval
            measured.append(trained.metrics.get("Policy/Acting KL"))

    assert all(kl is not None and 0 <= kl < ROUNDING for kl in measured)


@pytest.mark.parametrize(
    "kind", ["squashed hybrid", "memory, squashed", "memory, epsilon greedy", "simba, epsilon greedy", "noisy"]
)
def test_an_explorer_with_other_weights_than_the_learners_is_seen(kind: str) -> None:
    trained = replaying(REPLAYED[kind]._replace(settings={**REPLAYED[kind].settings, "normalize": False}))
    algorithm = trained.algorithm
    while not algorithm.version or algorithm.version % ACTING_INTERVAL:
        trained.advance()
    weights, version = algorithm.flat_weights(), algorithm.version
    damaged = weights + np.random.default_rng(1).normal(0.0, 0.2, weights.shape).astype(np.float32)
    rounds = [trained.arcade.collect(damaged, version) for _ in range(4)]

    wrong = algorithm.update(rounds[0].followed_by(*rounds[1:]), trained.step + 8)

    assert wrong is not None
    assert wrong["Policy/Acting KL"] > DISAGREEMENT
    monitor = HealthMonitor(trained.arcade.config, trained.arcade.game.spec)
    monitor.experienced(rounds[0], 8)
    monitor.updated(wrong, rounds[0])
    monitor.learned()
    assert "actors_disagree" in [fact.code for fact in monitor.facts]


def test_of_two_choices_that_are_equally_good_but_for_rounding_either_may_be_the_best() -> None:
    trained = replaying(REPLAYED["simba, epsilon greedy"])
    actor = trained.algorithm.actor
    values = np.zeros(5, np.float32)

    def measured(value: float) -> float | None:
        with torch.no_grad():
            actor.head.weight.zero_()
            actor.head.bias.copy_(torch.from_numpy(values))
            rollout = trained.arcade.collect(trained.algorithm.flat_weights(), 0)
            actor.head.bias[1] += value
        return acting_kl(actor, rollout, 0, torch.device("cpu"))

    with torch.no_grad():
        actor.head_parameters()["epsilon"].fill_(0.1)
    values[:] = [10.0, 9.0, 1.0, 1.0, 0.0]

    assert measured(1.0 + 2e-5) == pytest.approx(0.0, abs=ROUNDING), "10 and 10.00002"
    disagreed = measured(1.1)
    assert disagreed is not None
    assert disagreed > 0.1, "10 and 10.1"


def test_actions_at_the_end_of_their_range_tell_nothing() -> None:
    trained = replaying(REPLAYED["squashed"]._replace(settings={}))
    algorithm = trained.algorithm
    rollout = trained.arcade.collect(algorithm.flat_weights(), 0)
    some = rollout.continuous.clone()
    some[0] = 1.0

    def measured(continuous: torch.Tensor) -> float | None:
        changed = replace(rollout, continuous=continuous)
        return acting_kl(algorithm.actor, changed, 0, torch.device("cpu"))

    assert measured(torch.full_like(some, -1.0)) is None
    assert measured(some) == pytest.approx(0.0, abs=ROUNDING)
    assert acting_kl(algorithm.actor, rollout, 1, torch.device("cpu")) is None, "no step of this version"
    assert float(rollout.continuous.abs().max()) < END_OF_RANGE
