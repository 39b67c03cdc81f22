"""IQL with worked numbers: equations 4 to 7 of the paper."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ludus.demonstrations.shown import make_demonstration, make_spec, vector
from tests.worker.learning.plugins.offline.learners import acted, fix, learner
from worker.learning.plugins.offline.iql import IQL, advantage_weights, expectile_loss


def test_errors_above_the_value_weigh_as_the_expectile_and_those_below_as_the_rest() -> None:
    assert expectile_loss(torch.tensor([2.0, -3.0, 0.0]), 0.9).tolist() == pytest.approx([3.6, 0.9, 0.0])


def test_a_values_minimum_is_the_expectile_of_what_it_is_compared_with() -> None:
    returns = torch.tensor([0.0, 0.0, 0.0, 10.0])
    grid = torch.linspace(0, 10, 10_001)

    losses = expectile_loss(returns - grid.unsqueeze(1), 0.9).mean(1)

    # 0.1 * 3 v = 0.9 (10 - v), where the derivative is 0
    assert float(grid[losses.argmin()]) == pytest.approx(7.5, abs=2e-3)


def test_weights_grow_with_the_advantage_up_to_the_clip() -> None:
    weights = advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 5.0]), 3.0, 100.0)

    assert weights.tolist() == pytest.approx([math.exp(-3), 1.0, math.exp(3), 100.0])


@pytest.mark.parametrize(("ending", "target"), [("t", 1.0 + 0.5 * 1.0), ("e", 1.0)])
def test_a_step_has_the_losses_of_the_paper(tmp_path: Path, ending: str, target: float) -> None:
    iql = learner(tmp_path, acted(0.5, 1.0, lengths=(1, 1), endings=ending * 2), expectile=0.7, temperature=3.0)
    assert isinstance(iql, IQL)
    model = iql.model
    for network, q, slow in zip(model.q, model.target, (3.0, 2.0), strict=True):
        fix(network.heads, 4.0)
        fix(q.heads, slow)
    fix(model.v.heads, 1.0)
    fix(model.actor.head, 0.0)  # the policy's action is 0

    measured = iql.iterate()

    weight = math.exp(3.0 * (2.0 - 1.0))
    log_prob = -0.5 * 0.5**2 - 0.5 * math.log(2 * math.pi)  # of 0.5, with a deviation of 1
    assert measured["Losses/Expectile Loss"] == pytest.approx(0.7 * (2.0 - 1.0) ** 2)
    assert measured["Losses/Value Loss"] == pytest.approx((4.0 - target) ** 2)
    assert measured["Policy/Advantage Weight"] == pytest.approx(weight, rel=1e-5)
    assert measured["Losses/Policy Loss"] == pytest.approx(-weight * log_prob, rel=1e-5)
    assert measured["Policy/Extrinsic Value"] == pytest.approx(1.0)


def test_targets_move_the_part_tau_of_their_way(tmp_path: Path) -> None:
    iql = learner(tmp_path, acted(endings="tt"), tau=0.25)
    before = [part.clone() for part in iql.model.target.parameters()]

    iql.iterate()

    for target, old, new in zip(iql.model.target.parameters(), before, iql.model.q.parameters(), strict=True):
        assert torch.allclose(target, old + 0.25 * (new - old), atol=1e-6)


@pytest.mark.long
def test_of_two_choices_the_rewarded_one_is_learned_however_seldom_it_was_shown(tmp_path: Path) -> None:
    """Cloning would choose the second one in one of ten cases."""
    spec = make_spec(vector(1), branches=(2,), name="Walker")
    discrete = (np.arange(200) % 10 == 0).astype(np.int32)[:, None]
    shown = make_demonstration(
        spec,
        (1,) * 200,
        observations=(np.ones((200, 1), np.float32),),
        discrete=discrete,
        rewards=discrete[:, 0].astype(np.float32),
    )
    iql = learner(tmp_path, shown, batch_size=64, learning_rate=1e-2, temperature=10.0)

    iql.iterate(400)

    head, _ = iql.actor([torch.ones(1, 1)])
    assert head.softmax(1)[0, 1] > 0.9


def test_forbidden_choices_have_no_part_in_the_probability_of_what_was_chosen(tmp_path: Path) -> None:
    spec = make_spec(vector(1), branches=(3, 2), name="Walker")
    masks = np.tile(np.array([1, 1, 0, 1, 1], np.uint8), (8, 1))
    shown = make_demonstration(spec, (4, 4), discrete=np.zeros((8, 2), np.int32), action_masks=masks)
    iql = learner(tmp_path, shown, temperature=0.0)
    fix(iql.actor.head, 0.0)

    measured = iql.iterate()

    assert measured["Losses/Policy Loss"] == pytest.approx(2 * math.log(2)), "two choices are left in each branch"


@pytest.mark.long
def test_the_deviation_is_learned_and_simulators_explore_with_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    actions = rng.normal(0.0, 0.2, (400, 1)).clip(-1, 1).astype(np.float32)
    shown = acted(lengths=(400,), endings="t")
    object.__setattr__(shown, "continuous", actions)
    offline = learner(tmp_path, shown, batch_size=128, learning_rate=1e-2, temperature=0.0)
    offline.iterate(500)

    finetune = learner(tmp_path, shown, trainer="finetune", buffer_size=1000)
    finetune.load_state_dict(offline.state_dict())

    assert float(offline.log_sigma().detach().exp()) == pytest.approx(0.2, rel=0.15)
    assert float(offline.actor.head_parameters()["noise_log_sigma"].detach().exp()) < 1e-8, (
        "it is evaluated without noise"
    )
    assert torch.equal(finetune.actor.head_parameters()["noise_log_sigma"], offline.log_sigma())
