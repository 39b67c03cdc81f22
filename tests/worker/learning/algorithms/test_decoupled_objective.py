"""Decoupled PPO clips around the policy before the update, and weights each step by that one's ratio to who acted.

Hilton et al. 2021 (https://arxiv.org/abs/2110.00641), with the policy before the update as the proximal one:

    L = -mean(pi_prox / pi_behav * min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)),    r = pi / pi_prox
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worker.learning.algorithms.test_ppo import make_ppo
from tests.worker.learning.algorithms.test_vtrace import NETWORKS, make, played
from tests.worker.rollouts import equal_states, make_rollout
from worker.learning.algorithms.batch import GREATEST_WEIGHT
from worker.learning.algorithms.ppo import PPO


def be(ppo: PPO, *probabilities: float) -> None:
    """Make the policy choose so, whatever it sees."""
    ppo.actor.head.weight.data.zero_()
    ppo.actor.head.bias.data.copy_(torch.tensor(probabilities).log())


def test_the_objective_of_two_steps_is_what_it_is_by_hand() -> None:
    ppo, _ = make_ppo(0, (3,), normalize=False, decoupled_objective=True, epsilon=0.2, batch_size=2)
    ppo.version = 1
    seen = [np.zeros((2, 3), np.float32), np.zeros((2, 2), np.float32)]
    acted = np.log([[0.5], [0.25]])  # by the policy of version 0, of choices 0 and 1
    rollout = make_rollout(
        observations=seen, rewards=np.array([1.0, -1.0]), discrete=np.array([[0], [1]]), log_probs=acted, version=0
    )
    be(ppo, 0.25, 0.5, 0.25)  # the policy before the update: weights 0.25 / 0.5 and 0.5 / 0.25

    with torch.no_grad():
        experience = ppo.prepare(rollout)
        be(ppo, 0.5, 0.4, 0.1)  # after some minibatches: ratios 0.5 / 0.25 and 0.4 / 0.5
        loss = ppo.loss(experience, experience.batch, ppo.rates(0))

    # Both steps are alone in their episodes and seen alike, so that the normalised advantages are 1 and -1:
    # -(0.5 * min(2.0, 1.2) * 1 + 2 * min(0.8 * -1, 0.8 * -1)) / 2 = -(0.6 - 1.6) / 2
    assert float(loss.terms["policy loss"]) == pytest.approx(0.5, abs=1e-6)
    assert loss.log_ratio.exp().tolist() == pytest.approx([2.0, 0.8])


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_without_older_steps_it_is_ppos_objective_to_the_last_bit(trainer: str, network: str) -> None:
    decoupled, plain = (make(trainer, network, decoupled_objective=on) for on in (True, False))

    for algorithm in (decoupled, plain):
        for version in range(2):
            algorithm.update(played(algorithm, version=version, seed=version), 32)

    assert equal_states(decoupled.state_dict(), plain.state_dict())


def policy_term(algorithm: Any, experience: Any, minibatch: Any) -> tuple[Tensor, Tensor]:
    """The measured policy loss of a minibatch, and the log-ratios of its steps."""
    loss = algorithm.loss(experience, minibatch, algorithm.rates(0))
    real = slice(None) if minibatch.real is None else minibatch.real
    return loss.terms["policy loss"], loss.log_ratio[real]


@pytest.mark.parametrize("network", sorted(NETWORKS))
@pytest.mark.parametrize("trainer", ["ppo", "poca"])
def test_it_is_the_papers_formula_in_an_update_of_older_and_own_steps(trainer: str, network: str) -> None:
    epsilon = 0.2
    decoupled, plain = (
        make(trainer, network, decoupled_objective=on, batch_size=256, epsilon=epsilon) for on in (True, False)
    )
    for algorithm in (decoupled, plain):
        algorithm.update(played(algorithm, version=0), 32)
    assert equal_states(decoupled.state_dict(), plain.state_dict()), "the first update has own steps alone"
    rollout = played(plain, version=0, seed=2)
    rollout.versions[:8] = 1

    with torch.no_grad():
        of_both = [(algorithm, algorithm.prepare(rollout)) for algorithm in (decoupled, plain)]
        minibatches = [next(iter(algorithm.minibatches(experience))) for algorithm, experience in of_both]
        steps = minibatches[0].steps
        assert steps.tolist() == minibatches[1].steps.tolist(), "the order is drawn alike"
        # On the first minibatch pi is pi_prox: PPO's ratio to the policy that acted is the weight.
        _, log_weight = policy_term(plain, of_both[1][1], minibatches[1])
        own = rollout.versions[steps] == 1
        weight = torch.where(own, 1.0, log_weight.exp().clamp(max=GREATEST_WEIGHT))
        proximal = torch.where(own, rollout.log_probs.sum(1)[steps], rollout.log_probs.sum(1)[steps] + log_weight)
        for algorithm in (decoupled, plain):
            for parameter in algorithm.actor.parameters():
                parameter.mul_(1.1)  # as if other minibatches had gone before
        measured, log_ratio = policy_term(decoupled, of_both[0][1], minibatches[0])
        _, to_acted = policy_term(plain, of_both[1][1], minibatches[1])
        ratio = (to_acted + rollout.log_probs.sum(1)[steps] - proximal).exp()
        advantage = of_both[1][1].batch.advantage[steps]
        terms = weight * torch.minimum(ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage)

    torch.testing.assert_close(measured, -terms.mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_ratio.exp(), ratio, rtol=1e-3, atol=1e-5)
    assert float((weight - 1).abs().max()) > 0.1, "older steps weigh something else"


def test_a_step_that_the_policy_is_far_likelier_to_take_now_weighs_no_more_than_the_limit() -> None:
    algorithm = make("ppo", "plain", decoupled_objective=True)
    algorithm.update(played(algorithm, version=0), 32)
    rollout = played(algorithm, version=0)
    plain = make("ppo", "plain")
    plain.load_state_dict(algorithm.state_dict())
    rollout.log_probs[5] = -100.0

    with torch.no_grad():
        weighted, alone = (each.prepare(rollout).batch.advantage for each in (algorithm, plain))

    assert float(weighted[5] / alone[5]) == pytest.approx(GREATEST_WEIGHT, rel=1e-4)
