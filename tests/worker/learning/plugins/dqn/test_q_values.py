"""DQN's network: dueling streams, and an actor that acts by the sum of Q over signals."""

import numpy as np
import torch

from tests.worker.learning.algorithms.off_policy_world import fix_q, make_dqn, make_dqn_config, random_round
from tests.worker.learning.plugins.dqn.test_algorithm import ALL, TWO_SIGNALS, make_batch
from tests.worker.rollouts import make_spec
from worker.learning.plugins.dqn.q_values import dueling_q


def test_dueling_adds_the_advantages_without_their_mean_branch_by_branch() -> None:
    values = torch.tensor([[10.0, 20.0]])
    advantages = torch.tensor([[1.0, 2.0, 3.0, 5.0, 7.0]])

    # means 2 and 6
    assert dueling_q(values, advantages, (3, 2)).tolist() == [[9.0, 10.0, 11.0, 19.0, 21.0]]


def test_signals_have_values_of_their_own_and_the_sum_chooses() -> None:
    dqn = make_dqn(config=make_dqn_config(signals=TWO_SIGNALS))
    # signal 0: 1 2 3; signal 1: 9 0 0. The sum 10 2 3 chooses 0
    fix_q(dqn, [1.0, 2.0, 3.0, 9.0, 0.0, 0.0], [4.0, 5.0, 6.0, 7.0, 8.0, 9.0])

    assert dqn.following_values(make_batch()).tolist() == [[[4.0], [7.0]]]
    dqn.model.fold()
    assert dqn.actor.head.bias.tolist() == [10.0, 2.0, 3.0]


def test_the_actor_acts_by_the_networks_values() -> None:
    spec = make_spec(observations=(3, 2), branches=(3, 2))
    dqn = make_dqn(spec, make_dqn_config(signals=TWO_SIGNALS, **ALL))
    rng = np.random.default_rng(1)
    for step in (16, 32, 48):
        dqn.update(random_round(spec, rng, episodes=[step] * 3), step)
    observations = [torch.randn(20, 3), torch.randn(20, 2)]

    encoded = dqn.actor.encode(observations)
    head, _ = dqn.actor(encoded)

    torch.testing.assert_close(head, dqn.model.q(encoded).sum(1), rtol=1e-4, atol=1e-5)
