"""CrossQ with worked numbers, exact resume, roll-back, and a toy with a known answer."""

import math

import numpy as np
import pytest
import torch

from ludus.collector.spec_checks import UnsupportedSpec
from tests.worker.learning.algorithms.off_policy_world import alike_batch, make_crossq, random_round
from tests.worker.rollouts import equal_states, make_spec
from tests.worker.toys import Target, play
from worker.collectors.acting import POLICIES
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.plugins.crossq import CrossQ

SPEC = make_spec(observations=(1,), continuous=1)
HALF_LOG = 0.5 * math.log(2.0 * math.pi)


def center(crossq: CrossQ) -> None:
    """Let the policy's action be 0 with a deviation of 1 before noise, which is none: log pi = -log(2 pi) / 2."""
    crossq.experience.noise = lambda columns, rows=None: torch.zeros(rows or crossq.experience.drawn, columns)
    with torch.no_grad():
        crossq.actor.head.weight.zero_()
        crossq.actor.head.bias.zero_()


def fix(crossq: CrossQ, *q: float) -> None:
    """Let each critic answer everything with this."""
    with torch.no_grad():
        for network, value in zip(crossq.critics._networks, q, strict=True):
            network.heads.weight.zero_()
            network.heads.bias.fill_(value)


def filled(**hyper: object) -> CrossQ:
    """A learner whose replay buffer holds a round."""
    crossq = make_crossq(**hyper)
    crossq.store(random_round(SPEC, np.random.default_rng(1)))
    return crossq


def test_both_halves_of_a_step_are_normalised_by_the_statistics_of_their_mixture() -> None:
    crossq = make_crossq()
    norm = crossq.critics._networks[0].body.hidden.norms[0]
    batch = alike_batch(16, continuous=torch.full((16, 1), 0.5))

    q, following = crossq.joint_q(batch, torch.full((16, 1), -0.5))

    # observations 0 and 1: mean 0.5, variance 0.25; actions 0.5 and -0.5: mean 0, variance 0.25
    assert norm.running_mean.tolist() == pytest.approx([0.01 * 0.5, 0.0])
    assert norm.running_variance.tolist() == pytest.approx([0.99 + 0.01 * 0.25] * 2)
    assert (q.shape, following.shape) == ((2, 16, 1), (16, 1))
    assert not following.requires_grad
    assert not crossq.critics.training, "statistics change in a joint pass alone"


def test_the_smaller_q_of_what_follows_is_expected_with_the_bonus_of_entropy() -> None:
    crossq = filled(init_entcoef=0.1, batch_size=16, learning_rate=1e-9)
    fix(crossq, 3.0, 2.0)
    center(crossq)
    crossq.experience.batch = lambda: alike_batch(16)

    terms = dict(zip(crossq.term_names, crossq.gradient_step(1e-9).tolist(), strict=True))

    target = 1.0 + 0.5 * (2.0 + 0.1 * HALF_LOG)
    losses = [0.5 * (3.0 - target) ** 2, 0.5 * (2.0 - target) ** 2]
    assert terms["Losses/Value Loss"] == pytest.approx(sum(losses) / 2, rel=1e-5)
    assert terms["Policy/Extrinsic Value"] == 3.0
    assert terms["Policy/Continuous Entropy Coeff"] == pytest.approx(0.1)
    assert terms["Policy/Entropy"] == pytest.approx(HALF_LOG + 0.5, rel=1e-5)


def test_where_the_task_ended_the_reward_alone_is_the_target() -> None:
    crossq = make_crossq()

    targets = crossq.targets(alike_batch(16, discounts=torch.zeros(16, 1)), torch.full((16, 1), 7.0))

    assert torch.equal(targets, torch.ones(16, 1))


def test_the_policy_ascends_the_smaller_q_with_its_entropy() -> None:
    crossq = make_crossq(init_entcoef=0.1)
    fix(crossq, 3.0, 2.0)
    center(crossq)

    policy, coefficient = crossq.policy_losses(alike_batch(16))

    assert policy.item() == pytest.approx(0.1 * -HALF_LOG - 2.0)
    # log alpha times (entropy minus the target of -1)
    assert coefficient.item() == pytest.approx(math.log(0.1) * (HALF_LOG + 1.0))


def test_the_policy_sees_critics_as_the_running_statistics_normalise_them_and_moves_none_of_their_numbers() -> None:
    crossq = make_crossq()
    statistics = [part.clone() for part in crossq.critics.buffers()]
    crossq.critic_optimizer.zero_gradient()

    with torch.enable_grad():
        policy, coefficient = crossq.policy_losses(alike_batch(16))
        torch.autograd.backward([policy + coefficient])

    assert float(crossq.actor_optimizer.gradient[:-1].abs().sum()) > 0.0
    assert float(crossq.critic_optimizer.gradient.abs().sum()) == 0.0
    assert all(map(torch.equal, statistics, crossq.critics.buffers()))


def test_what_follows_takes_part_in_the_gradient_through_the_statistics_alone() -> None:
    crossq = make_crossq()
    noise = torch.randn(16, 1, generator=torch.Generator().manual_seed(1))
    following = (1.0 + noise).requires_grad_()

    q, following_q = crossq.joint_q(alike_batch(16, following=[following]), noise)
    q.sum().backward()

    assert following_q.grad_fn is None
    assert following.grad is not None
    assert float(following.grad.abs().sum()) > 0.0


def test_policy_and_coefficient_step_every_third_time() -> None:
    crossq = filled()
    steps = []
    for _ in range(7):
        before = [
            crossq.actor.head.weight.clone(),
            crossq.log_coefficient.clone(),
            next(crossq.critics.parameters()).clone(),
        ]
        crossq.gradient_step(1e-2)
        after = [crossq.actor.head.weight, crossq.log_coefficient, next(crossq.critics.parameters())]
        steps.append([not torch.equal(*pair) for pair in zip(before, after, strict=True)])

    others, third = [False, False, True], [True, True, True]
    assert steps == [others, others, third, others, others, third, others]


def test_adam_forgets_half_of_the_mean_gradient_at_each_step() -> None:
    crossq = filled()
    crossq.gradient_step(1e-3)

    # the first step: half of the gradient itself
    first = torch.cat([part.reshape(-1) for part in crossq.critic_optimizer.state_dict()["first"].values()])
    torch.testing.assert_close(first, 0.5 * crossq.critic_optimizer.gradient)


def test_critics_have_their_own_width_and_norms_whatever_the_policy_has() -> None:
    crossq = make_crossq(network={"hidden_units": 8, "hidden_type": "simba"}, critic_hidden_units=12)

    hidden = crossq.critics._networks[0].body.hidden
    assert [layer.out_features for layer in hidden.layers] == [12, 12]
    assert crossq.actor.body.features == 8
    assert not [name for name, _ in crossq.actor.named_buffers()], "the policy is not normalised over the batch"


def test_a_signal_that_goes_on_beyond_termination_expects_the_value_of_beginnings() -> None:
    crossq = make_crossq(init_entcoef=0.1)
    fix(crossq, 3.0, 2.0)
    center(crossq)
    crossq.experience.ignores_end = True
    crossq.signals.ignores_termination = torch.tensor([True])
    crossq.experience.beginnings = [torch.zeros(4, 1)]

    targets = crossq.targets(alike_batch(16, terminated=torch.ones(16, dtype=torch.bool)), torch.zeros(16, 1))

    assert targets[:, 0].tolist() == pytest.approx([1.0 + 0.5 * (2.0 + 0.1 * HALF_LOG)] * 16)


def test_a_resumed_learner_goes_on_bit_for_bit() -> None:
    crossq, resumed = (make_crossq(save_replay_buffer=True, seed=seed) for seed in (1, 2))
    rng = np.random.default_rng(1)
    crossq.update(random_round(SPEC, rng), 16)

    resumed.load_state_dict(crossq.state_dict())
    following = random_round(SPEC, rng, episodes=[1] * 3)

    assert crossq.update(following, 32) == resumed.update(following, 32)
    assert equal_states(crossq.state_dict(), resumed.state_dict())


def test_a_resumed_learner_without_the_running_statistics_would_be_noticed() -> None:
    crossq, resumed = (make_crossq(save_replay_buffer=True, seed=seed) for seed in (1, 2))
    rng = np.random.default_rng(1)
    crossq.update(random_round(SPEC, rng), 16)
    resumed.load_state_dict(crossq.state_dict())
    for name, statistics in resumed.critics.named_buffers():
        if "running_mean" in name:
            statistics.zero_()
    following = random_round(SPEC, rng, episodes=[1] * 3)

    assert crossq.update(following, 32) != resumed.update(following, 32)


def test_an_update_that_diverges_is_taken_back_with_the_statistics() -> None:
    crossq, rng = make_crossq(), np.random.default_rng(1)
    crossq.update(random_round(SPEC, rng), 16)
    before = crossq.state_dict()

    with pytest.raises(Diverged):
        crossq.update(random_round(SPEC, rng, rewards=np.full(16, np.float32(3e38)), episodes=[1] * 3), 32)

    after = crossq.state_dict()
    for name in ("actor", "critics", "log_coefficients", "actor_optimizer", "critic_optimizer", "gradient_steps"):
        assert equal_states(before[name], after[name]), name


def test_discrete_actions_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedSpec, match="learns continuous actions only") as refused:
        make_crossq(make_spec(observations=(1,), continuous=1, branches=(2,)))

    assert refused.value.code == "actions_discrete"


def test_reaches_the_best_reward_of_a_toy() -> None:
    toy, agents, updates = Target(columns=2), 16, 250
    crossq = make_crossq(
        toy.spec,
        batch_size=64,
        buffer_size=5000,
        steps_per_update=agents,
        policy_delay=1,
        init_entcoef=0.05,
        learning_rate=1e-2,
        critic_hidden_units=32,
        network={"hidden_units": 32},
    )
    policy = POLICIES.policy(toy.spec, crossq.config.network_settings, crossq.config.head)

    means = play(toy, crossq, policy, steps=range(agents, (updates + 1) * agents, agents), agents=agents)

    assert np.mean(means[:5]) < -0.2, "a toy that is solved at the start shows nothing"
    assert np.mean(means[-25:]) > -0.06
