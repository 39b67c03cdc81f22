"""TD3 with worked numbers, what is published, exact resume, and a toy with a known answer."""

import math

import numpy as np
import pytest
import torch

from ludus.collector.segments import SegmentEnd
from ludus.collector.spec_checks import UnsupportedSpec
from tests.worker.learning.algorithms.off_policy_world import alike_batch, make_td3, random_round
from tests.worker.rollouts import equal_states, make_rollout, make_spec
from tests.worker.toys import Target, play
from worker.collectors.acting import POLICIES
from worker.experience.rollout import Rollout
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.plugins.td3 import TD3

SPEC = make_spec(observations=(1,), continuous=1)
TWO_SIGNALS = {"extrinsic": {"gamma": 0.5}, "curiosity": {"gamma": 0.9}}


def fix_targets(td3: TD3, q: tuple[float, float]) -> None:
    """Let the target critics answer everything with these values."""
    with torch.no_grad():
        for target, value in zip(td3.model.critics._targets, q, strict=True):
            target.heads.weight.zero_()
            target.heads.bias.fill_(value)


def stepped(steps: int = 16) -> Rollout:
    """An episode of so many steps, whose actions are all 0.5."""
    return make_rollout(
        observations=[np.arange(steps, dtype=np.float32)[:, None]],
        next_observations=[np.array([[float(steps)]])],
        rewards=np.zeros(steps),
        log_probs=np.zeros((steps, 1)),
        continuous=np.full((steps, 1), 0.5, np.float32),
        ending=[SegmentEnd.TERMINATED],
        lengths=[steps],
    )


def test_the_smaller_target_counts() -> None:
    td3 = make_td3()
    fix_targets(td3, (3.0, 2.0))

    assert td3.model.target_values([torch.ones(1, 1)], torch.zeros(1, 1)).tolist() == [[2.0]]


def test_the_target_policys_action_has_clipped_noise_and_stays_in_its_range() -> None:
    td3 = make_td3(batch_size=4000, buffer_size=4000, target_noise=1.0, target_noise_clip=0.3)
    seen = []
    target = td3.model.critics.target_q
    td3.model.critics.target_q = lambda encoded, actions: (seen.append(actions), target(encoded, actions))[1]
    with torch.no_grad():
        td3.model.target_actor.head.weight.zero_()
        td3.model.target_actor.head.bias.fill_(math.atanh(0.8))

    td3.following_values(alike_batch(2, following=[torch.ones(4000, 1)], continuous=torch.zeros(4000, 1)))

    (actions,) = seen
    # 0.8 with noise of at most 0.3: from 0.5 to 1, where the range ends; both ends are reached
    assert (actions.min().item(), actions.max().item()) == (pytest.approx(0.5), 1.0)


def test_the_value_loss_is_half_the_mean_squared_error_of_both_critics() -> None:
    td3 = make_td3()
    with torch.no_grad():
        for network, value in zip(td3.model.critics._networks, (1.0, 4.0), strict=True):
            network.heads.weight.zero_()
            network.heads.bias.fill_(value)

    loss, values = td3.value_loss(alike_batch(2), torch.full((2, 1), 2.0))

    # errors -1 and 2: half of (1 + 4) / 2
    assert loss.item() == pytest.approx(1.25)
    assert values.tolist() == [1.0], "the first critic's"


def test_the_policy_ascends_the_first_critic_alone_and_its_weights_stay_constant() -> None:
    td3 = make_td3()
    td3.critic_optimizer.zero_gradient()
    with torch.enable_grad():
        loss = td3.policy_loss(alike_batch(2, encoded=[torch.ones(2, 1)]))
        loss.backward()

    seen, critics = [torch.ones(2, 1)], td3.model.critics
    q = critics.q(critics.encodings(seen), td3.actor.parts(td3.actor(seen)[0]).means)
    assert loss.item() == pytest.approx(-q[0].mean().item())
    assert td3.actor.head.weight.grad is not None
    assert float(td3.actor.head.weight.grad.abs().sum()) > 0.0
    assert float(td3.critic_optimizer.gradient.abs().sum()) == 0.0


def test_policy_and_targets_move_every_policy_delay_gradient_steps() -> None:
    td3 = make_td3(policy_delay=3, tau=0.5)
    td3.store(stepped())
    moved = []
    for _ in range(6):
        before = [part.clone() for part in (td3.actor.head.weight, td3.model.target_parameters()[-1])]
        td3.gradient_step(1e-2)
        after = (td3.actor.head.weight, td3.model.target_parameters()[-1])
        moved.append([not torch.equal(one, other) for one, other in zip(before, after, strict=True)])

    assert moved == [[False, False], [False, False], [True, True]] * 2


def test_noise_is_large_until_gradient_steps_begin_and_is_published_with_the_weights() -> None:
    td3 = make_td3(initial_exploration_sigma=0.8, exploration_sigma=0.2, buffer_init_steps=20)
    rng = np.random.default_rng(1)

    published = [float(td3.flat_weights()[-1])]
    for step in (16, 32):
        td3.update(random_round(SPEC, rng, episodes=[step] * 3), step)
        published.append(float(td3.flat_weights()[-1]))

    assert published == pytest.approx([math.log(0.8), math.log(0.8), math.log(0.2)])


def test_beyond_a_termination_signals_that_ignore_it_expect_the_beginnings() -> None:
    td3 = make_td3(signals=TWO_SIGNALS, batch_size=8, target_noise=0.0)
    td3.store(stepped(1))
    fix_targets(td3, (3.0, 2.0))
    with torch.no_grad():
        for target in td3.model.critics._targets:
            target.heads.bias.add_(torch.tensor([0.0, 5.0]))

    batch = td3.experience.batch()

    assert batch.discounts[0].tolist() == pytest.approx([0.0, 0.9])
    assert td3.following_values(batch)[0].tolist() == [2.0, 7.0]


def test_a_resumed_learner_goes_on_bit_for_bit_within_a_delay_of_the_policy() -> None:
    td3, resumed = (make_td3(save_replay_buffer=True, policy_delay=3, seed=seed) for seed in (1, 2))
    rng = np.random.default_rng(1)
    td3.update(random_round(SPEC, rng), 16)

    resumed.load_state_dict(td3.state_dict())
    following = random_round(SPEC, rng, episodes=[1] * 3)

    assert td3.update(following, 32) == resumed.update(following, 32)
    assert equal_states(td3.state_dict(), resumed.state_dict())


def test_an_update_that_diverges_is_taken_back() -> None:
    td3, rng = make_td3(), np.random.default_rng(1)
    td3.update(random_round(SPEC, rng), 16)
    before = td3.state_dict()

    with pytest.raises(Diverged):
        td3.update(random_round(SPEC, rng, rewards=np.full(16, np.float32(3e38)), episodes=[1] * 3), 32)

    after = td3.state_dict()
    for name in ("model", "actor_optimizer", "critic_optimizer", "gradient_steps", "policy_terms", "version"):
        assert equal_states(before[name], after[name]), name


def test_discrete_actions_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedSpec, match="learns continuous actions only") as refused:
        make_td3(make_spec(observations=(1,), continuous=1, branches=(2,)))

    assert refused.value.code == "actions_discrete"


@pytest.mark.long
def test_reaches_the_best_reward_of_a_toy() -> None:
    toy, agents, updates = Target(columns=2), 16, 200
    td3 = make_td3(
        toy.spec, batch_size=64, buffer_size=5000, steps_per_update=agents, tau=0.05, network={"hidden_units": 32}
    )
    policy = POLICIES.policy(toy.spec, td3.config.network_settings, td3.config.head)

    means = play(toy, td3, policy, steps=range(agents, (updates + 1) * agents, agents), agents=agents)

    assert np.mean(means[:5]) < -0.2, "a toy that is solved at the start shows nothing"
    # noise of 0.1 alone costs 0.01
    assert np.mean(means[-25:]) > -0.03
