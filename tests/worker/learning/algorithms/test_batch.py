"""The data of an update, shown on PPO: targets, minibatches and masks."""

import numpy as np
import pytest
import torch

from ludus.collector.policy import ActingPolicy
from ludus.collector.segments import SegmentEnd
from ludus.config.network import NetworkSettings
from tests.worker.learning.algorithms.test_ppo import make_ppo
from tests.worker.rollouts import acted_rollout, make_config, make_rollout, make_spec
from worker.learning.algorithms.ppo import PPO


def test_targets_are_returns_and_normalised_advantages() -> None:
    ppo, policy = make_ppo(0, (2,), normalize=False, gamma=0.5, lambd=0.5)
    rollout = acted_rollout(
        policy,
        np.random.default_rng(3),
        steps=4,
        rewards=np.array([1.0, 2.0, 3.0, 4.0]),
        group_rewards=np.array([0.0, 0.0, 10.0, 0.0]),
        lengths=[2, 2],
        ending=[SegmentEnd.TERMINATED, SegmentEnd.TRUNCATED],
    )

    batch = ppo.prepare(rollout).batch

    v = batch.values.squeeze(1).tolist()
    behind = float(ppo.model.values(ppo.actor.encode(rollout.next_observations))[0][1])
    third = 4.0 + 0.5 * behind - v[3]  # truncated: the value behind it counts
    first = 2.0 - v[1]  # terminated: it doesn't
    advantages = [
        1.0 + 0.5 * v[1] - v[0] + 0.25 * first,
        first,
        13.0 + 0.5 * v[3] - v[2] + 0.25 * third,  # own and group reward
        third,
    ]
    assert (batch.returns - batch.values).squeeze(1).tolist() == pytest.approx(advantages, abs=1e-5)
    normalised = (np.array(advantages) - np.mean(advantages)) / np.std(advantages)
    np.testing.assert_allclose(batch.advantage.numpy(), normalised, rtol=1e-4)


def test_strength_scales_rewards() -> None:
    config = make_config()
    strong = config.model_copy(
        update={"reward_signals": config.reward_signals.model_validate({"extrinsic": {"strength": 3.0}})}
    )
    ppo = PPO(strong, make_spec(branches=(2,)), torch.device("cpu"), seed=1)
    policy = ActingPolicy(make_spec(branches=(2,)), NetworkSettings(hidden_units=32))
    policy.load(ppo.flat_weights())

    prepared = ppo.prepare(acted_rollout(policy, np.random.default_rng(1), steps=2, rewards=np.array([1.0, -2.0])))

    assert prepared.episodes.tolist() == [[3.0], [-6.0]]


def test_a_remainder_is_left_out_and_a_small_rollout_is_one_minibatch() -> None:
    ppo, policy = make_ppo(batch_size=100)
    generator = torch.Generator().manual_seed(1)

    sizes = {}
    for steps in (256, 60):
        batch = ppo.prepare(acted_rollout(policy, np.random.default_rng(6), steps=steps)).batch
        sizes[steps] = [len(part.advantage) for part in batch.minibatches(100, generator)]

    assert sizes == {256: [100, 100], 60: [60]}


def test_minibatches_shuffle_steps_and_keep_rows_together() -> None:
    ppo, policy = make_ppo()
    batch = ppo.prepare(acted_rollout(policy, np.random.default_rng(7), masked=True)).batch

    parts = list(batch.minibatches(64, torch.Generator().manual_seed(1)))

    log_prob = torch.cat([part.log_prob for part in parts])
    assert not torch.equal(log_prob, batch.log_prob)
    order = [int((batch.log_prob == value).nonzero()[0]) for value in log_prob]
    assert sorted(order) == list(range(256))
    torch.testing.assert_close(torch.cat([part.encoded[0] for part in parts]), batch.encoded[0][order])


def test_masks_that_allow_everything_cost_nothing() -> None:
    ppo, policy = make_ppo(0, (3,))
    rng = np.random.default_rng(8)
    observations = [rng.normal(size=(9, 3)), rng.normal(size=(9, 2))]
    acted = policy.act([part.astype(np.float32) for part in observations], None, None, rng)

    prepared = ppo.prepare(
        make_rollout(
            observations=observations,
            rewards=np.zeros(9),
            discrete=acted.discrete,
            log_probs=acted.log_probs,
            masks=np.ones((9, 3), bool),
        )
    )

    assert prepared.batch.masks is None
