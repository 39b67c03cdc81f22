"""TQC with worked numbers, exact resume, cloning, and a toy with a known answer."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.collector.spec_checks import UnsupportedSpec
from tests.worker.learning.algorithms.off_policy_world import alike_batch, make_tqc, random_round
from tests.worker.rollouts import equal_states, make_spec
from tests.worker.toys import Target, play
from worker.collectors.acting import POLICIES
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.plugins.tqc import quantile_huber_loss

SPEC = make_spec(observations=(1,), continuous=1)


def fix(networks: list[torch.nn.Module], quantiles: list[list[float]]) -> None:
    """Let each critic answer everything with these quantiles."""
    with torch.no_grad():
        for network, values in zip(networks, quantiles, strict=True):
            network.heads.weight.zero_()
            network.heads.bias.copy_(torch.tensor(values))


def test_the_quantile_loss_weighs_errors_by_their_side_and_bends_at_one() -> None:
    quantiles = torch.tensor([0.0, 2.0]).view(1, 1, 1, 2)
    targets = torch.tensor([3.0, 1.5]).view(1, 1, 2)

    loss = quantile_huber_loss(quantiles, targets, torch.tensor([0.25, 0.75]))

    # z = 0 at 1/4: y - z = 3 and 1.5, Huber 2.5 and 1, both above: 1/4 of it
    # z = 2 at 3/4: y - z = 1 -> 0.5 above: 3/4 of it; y - z = -0.5 -> 0.125 below: |3/4 - 1| of it
    expected = (0.25 * 2.5 + 0.25 * 1.0 + 0.75 * 0.5 + 0.25 * 0.125) / 4
    assert loss.tolist() == pytest.approx([expected])


@pytest.mark.long
def test_the_minimum_of_the_quantile_loss_is_the_quantiles_of_the_targets() -> None:
    fractions = torch.tensor([0.1, 0.5, 0.9])
    quantiles = torch.zeros(3, requires_grad=True)
    # so large that Huber's rounded middle hardly matters
    targets = torch.linspace(0.0, 1000.0, 1001).view(1, 1, -1)
    optimizer = torch.optim.Adam([quantiles], lr=5.0)
    for step in range(1200):
        optimizer.param_groups[0]["lr"] = 5.0 * (1.0 - step / 1200)
        optimizer.zero_grad()
        quantile_huber_loss(quantiles.view(1, 1, 1, 3), targets, fractions).sum().backward()
        optimizer.step()

    np.testing.assert_allclose(quantiles.detach().numpy(), [100.0, 500.0, 900.0], atol=10.0)


def test_the_target_drops_the_largest_quantiles_of_all_critics_and_adds_the_bonus_of_entropy() -> None:
    tqc = make_tqc(critics=2, quantiles=3, dropped_quantiles=1, init_entcoef=0.1)
    fix(tqc.critics._targets, [[1.0, 9.0, 5.0], [2.0, 3.0, 4.0]])
    noise = torch.zeros(16, 1)
    tqc.experience.noise = lambda *_: noise
    with torch.no_grad():  # an action of 0 whose sigma is 1: log pi = -log(2 pi) / 2
        tqc.actor.head.weight.zero_()
        tqc.actor.head.bias.zero_()

    targets = tqc.targets(alike_batch(16))

    # of 1, 2, 3, 4, 5, 9 the two largest are dropped
    bonus = 0.1 * 0.5 * math.log(2.0 * math.pi)
    assert targets[0, 0].tolist() == pytest.approx([1.0 + 0.5 * (z + bonus) for z in (1.0, 2.0, 3.0, 4.0)])


def test_a_part_of_a_quantile_dropped_for_each_critic_counts_over_all() -> None:
    tqc = make_tqc(critics=2, quantiles=3, dropped_quantiles=0.5)

    assert tqc.targets(alike_batch(16)).shape == (16, 1, 5)


def test_where_the_task_ended_the_reward_alone_is_the_target() -> None:
    tqc = make_tqc()

    targets = tqc.targets(alike_batch(16, discounts=torch.zeros(16, 1)))

    assert torch.equal(targets, torch.ones_like(targets))


def test_losses_have_no_weight_in_common() -> None:
    tqc = make_tqc(critics=3, quantiles=5)
    batch = alike_batch(16)
    sizes = [part.numel() for part in (tqc._actor_gradient, tqc._critic_gradient)]

    def gradients(term: str) -> list[float]:
        tqc.optimizer.zero_gradient()
        with torch.enable_grad():
            loss: Tensor = getattr(tqc.loss(batch, tqc.targets(batch)), term)
            loss.backward()
        return [float(part.abs().sum()) for part in torch.split(tqc.optimizer.gradient, [*sizes, 1])]

    assert [value > 0.0 for value in gradients("policy")] == [True, False, False]
    assert [value > 0.0 for value in gradients("value")] == [False, True, False]
    assert [value > 0.0 for value in gradients("coefficient")] == [False, False, True]


def test_the_policy_ascends_the_mean_of_all_quantiles_with_its_entropy() -> None:
    tqc = make_tqc(critics=2, quantiles=2, dropped_quantiles=1, init_entcoef=0.1)
    fix(tqc.critics._networks, [[1.0, 2.0], [3.0, 6.0]])
    tqc.experience.noise = lambda *_: torch.zeros(16, 1)
    with torch.no_grad():
        tqc.actor.head.weight.zero_()
        tqc.actor.head.bias.zero_()

    loss = tqc.loss(alike_batch(16), torch.zeros(16, 1, 1))

    log_prob = -0.5 * math.log(2.0 * math.pi)
    assert loss.policy.item() == pytest.approx(0.1 * log_prob - 3.0)
    # log alpha times (entropy minus the target of -1)
    assert loss.coefficient.item() == pytest.approx(math.log(0.1) * (-log_prob + 1.0))
    assert loss.values.tolist() == [3.0]


def test_a_resumed_learner_goes_on_bit_for_bit() -> None:
    tqc, resumed = (make_tqc(save_replay_buffer=True, seed=seed) for seed in (1, 2))
    rng = np.random.default_rng(1)
    tqc.update(random_round(SPEC, rng), 16)

    resumed.load_state_dict(tqc.state_dict())
    following = random_round(SPEC, rng, episodes=[1] * 3)

    assert tqc.update(following, 32) == resumed.update(following, 32)
    assert equal_states(tqc.state_dict(), resumed.state_dict())


def test_an_update_that_diverges_is_taken_back() -> None:
    tqc, rng = make_tqc(), np.random.default_rng(1)
    tqc.update(random_round(SPEC, rng), 16)
    before = tqc.state_dict()

    with pytest.raises(Diverged):
        tqc.update(random_round(SPEC, rng, observations=[np.full((16, 1), np.inf)], episodes=[1] * 3), 32)

    after = tqc.state_dict()
    for name in ("actor", "critics", "log_coefficients", "optimizer", "version"):
        assert equal_states(before[name], after[name]), name


def test_discrete_actions_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedSpec, match="learns continuous actions only") as refused:
        make_tqc(make_spec(observations=(1,), branches=(2,)))

    assert refused.value.code == "actions_discrete"


@pytest.mark.long
def test_reaches_the_best_reward_of_a_toy() -> None:
    toy, agents, updates = Target(columns=2), 16, 250
    tqc = make_tqc(
        toy.spec,
        batch_size=64,
        buffer_size=5000,
        steps_per_update=agents,
        tau=0.05,
        init_entcoef=0.05,
        learning_rate=1e-2,
        network={"hidden_units": 32},
    )
    policy = POLICIES.policy(toy.spec, tqc.config.network_settings, tqc.config.head)

    means = play(toy, tqc, policy, steps=range(agents, (updates + 1) * agents, agents), agents=agents)

    assert np.mean(means[:5]) < -0.2, "a toy that is solved at the start shows nothing"
    assert np.mean(means[-25:]) > -0.06
