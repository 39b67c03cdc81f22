"""DQN with worked numbers: each term of the loss, what is drawn, what is published, and exact resume."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.collector.segments import SegmentEnd
from ludus.collector.spec_checks import UnsupportedSpec
from tests.worker.learning.algorithms.off_policy_world import (
    fix_q,
    make_dqn,
    make_dqn_config,
    one_episode,
    random_round,
)
from tests.worker.rollouts import equal_states, make_spec
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.plugins.dqn.algorithm import DQN, Batch, n_step_returns

ALL = {"double": True, "dueling": True, "n_step": 3, "prioritized": True}
TWO_SIGNALS = {"extrinsic": {"gamma": 0.5}, "curiosity": {"gamma": 0.9}}


def make_batch(**changes: Any) -> Batch:
    """One row: choice 0 was rewarded with 1 and gamma is 0.5, unless something else is said."""
    batch = Batch(
        encoded=[torch.zeros(1, 1)],
        following=[torch.ones(1, 1)],
        choices=torch.tensor([[0]]),
        following_masks=None,
        returns=torch.tensor([[1.0]]),
        discounts=torch.tensor([[0.5]]),
        terminated=torch.tensor([False]),
        weights=torch.tensor([1.0]),
        rows=torch.tensor([0]),
    )
    return batch._replace(**changes)


def drawn_by_first(dqn: DQN) -> dict[float, dict[str, Tensor]]:
    """Draw a batch; return its rows by their observation."""
    batch = dqn.batch()
    names = ("choices", "returns", "discounts", "terminated", "weights")
    rows = {}
    for row, seen in enumerate(batch.encoded[0][:, 0].tolist()):
        rows[seen] = {name: getattr(batch, name)[row] for name in names} | {"following": batch.following[0][row, 0]}
    return rows


# Terms --------------------------------------------------------------------------------------------------------------


def test_double_lets_the_network_choose_and_the_target_value() -> None:
    # Q prefers choice 2, which the target values at 4; the target itself prefers choice 1, at 8
    double, plain = make_dqn(double=True), make_dqn(double=False)
    for dqn in (double, plain):
        fix_q(dqn, [1.0, 2.0, 3.0], [0.0, 8.0, 4.0])

    assert double.following_values(make_batch()).tolist() == [[[4.0]]]
    assert plain.following_values(make_batch()).tolist() == [[[8.0]]]


@pytest.mark.parametrize("double", [True, False])
def test_a_forbidden_choice_is_never_the_next_one(double: bool) -> None:
    dqn = make_dqn(double=double)
    fix_q(dqn, [1.0, 2.0, 3.0], [5.0, 7.0, 9.0])

    values = dqn.following_values(make_batch(following_masks=torch.tensor([[True, True, False]])))

    assert values.tolist() == [[[7.0]]], "choice 1 is the best that is allowed; choice 2 would be 9"


def test_the_loss_is_the_huber_loss_of_the_error() -> None:
    dqn = make_dqn()
    fix_q(dqn, [0.5, 2.0, 3.0], [0.0, 0.0, 4.0])

    # y = 1 + 0.5 * 4 = 3. Choice 0: |0.5 - 3| = 2.5 -> 2.5 - 0.5 = 2. Choice 2: 3 - 3 = 0. Choice 1: 0.5 * 1^2
    found = [dqn.loss(make_batch(choices=torch.tensor([[choice]]))) for choice in (0, 1, 2)]

    assert [loss.item() for loss, _, _ in found] == pytest.approx([2.0, 0.5, 0.0])
    assert [errors.item() for _, errors, _ in found] == pytest.approx([2.5, 1.0, 0.0])
    assert [values.item() for _, _, values in found] == [3.0, 3.0, 3.0], "the mean of the best values"


def test_targets_are_constants_and_only_the_network_is_descended() -> None:
    dqn = make_dqn()
    loss, _, _ = dqn.loss(make_batch())
    loss.backward()

    assert all(parameter.grad is None for parameter in dqn.model.target_parameters())
    # of Q(s, a) alone: the slope of the bias of the chosen column is that of the Huber loss, others have none
    assert dqn.model.heads.advantages.bias.grad is not None
    assert dqn.model.heads.advantages.bias.grad[1:].tolist() == [0.0, 0.0]


def test_weights_scale_the_losses_of_their_rows() -> None:
    dqn = make_dqn()
    fix_q(dqn, [0.5, 2.0, 3.0], [0.0, 0.0, 4.0])
    two = make_batch(
        encoded=[torch.zeros(2, 1)],
        following=[torch.ones(2, 1)],
        choices=torch.tensor([[0], [1]]),
        returns=torch.ones(2, 1),
        discounts=torch.full((2, 1), 0.5),
        terminated=torch.zeros(2, dtype=torch.bool),
        weights=torch.tensor([0.5, 0.25]),
    )

    assert dqn.loss(two)[0].item() == pytest.approx(0.5 * 2.0 + 0.25 * 0.5)


def test_several_branches_are_independent_heads() -> None:
    spec = make_spec(observations=(1,), branches=(3, 2))
    dqn = make_dqn(spec)
    fix_q(dqn, [1.0, 2.0, 3.0, 6.0, 5.0], [0.0, 0.0, 4.0, 10.0, 20.0])

    following = dqn.following_values(make_batch())
    loss, errors, _ = dqn.loss(make_batch(choices=torch.tensor([[1, 4]])))

    assert following.tolist() == [[[4.0, 10.0]]], "choices 2 and 0 of the branches"
    # y = 1 + 0.5 * (4, 10) = (3, 6); errors 1 and 1; Huber 0.5 and 0.5
    assert loss.item() == pytest.approx(0.5)
    assert errors.item() == pytest.approx(1.0)


def test_the_return_sums_the_rewards_of_real_steps() -> None:
    rewards = torch.tensor([[[1.0], [2.0], [4.0]], [[1.0], [2.0], [4.0]]])
    real = torch.tensor([[True, True, True], [True, True, False]])

    returns, discounts = n_step_returns(rewards, torch.tensor([0.5]), real)

    assert returns[:, 0].tolist() == [1.0 + 1.0 + 1.0, 1.0 + 1.0]
    assert discounts[:, 0].tolist() == [0.125, 0.25]


# What is drawn -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "bootstraps"), [(SegmentEnd.TERMINATED, 0.0), (SegmentEnd.TRUNCATED, 1.0)])
def test_steps_look_ahead_until_their_episode_ends(ending: SegmentEnd, bootstraps: float) -> None:
    dqn = make_dqn(n_step=3, batch_size=64)
    dqn.store(one_episode([1.0, 2.0, 4.0, 8.0], ending))

    rows = drawn_by_first(dqn)

    # three steps ahead of 0: 1 + 2/2 + 4/4; of 1: 2 + 4/2 + 8/4, to the end; of 2: 4 + 8/2; of 3: 8
    assert {seen: row["returns"].item() for seen, row in rows.items()} == {0.0: 3.0, 1.0: 6.0, 2.0: 8.0, 3.0: 8.0}
    assert {seen: row["following"].item() for seen, row in rows.items()} == {0.0: 3.0, 1.0: 4.0, 2.0: 4.0, 3.0: 4.0}
    expected = {0.0: 0.125, 1.0: 0.125 * bootstraps, 2.0: 0.25 * bootstraps, 3.0: 0.5 * bootstraps}
    assert {seen: row["discounts"].item() for seen, row in rows.items()} == expected


def test_steps_look_ahead_into_the_next_segment_of_their_episode() -> None:
    dqn = make_dqn(n_step=3, batch_size=64)
    dqn.store(one_episode([1.0, 2.0], SegmentEnd.CUT))
    dqn.store(one_episode([4.0], SegmentEnd.TERMINATED, sequences=[1]))

    rows = drawn_by_first(dqn)

    assert rows[1.0]["returns"].item() == 2.0 + 4.0 / 2
    assert rows[1.0]["discounts"].item() == 0.0


def test_masks_of_the_following_step_are_those_of_the_step_that_was_taken_there() -> None:
    dqn = make_dqn(batch_size=64)
    masks = np.array([[1, 1, 1], [1, 0, 0]], bool)
    dqn.store(one_episode([0.0, 0.0], SegmentEnd.TRUNCATED, masks=masks))

    batch = dqn.batch()

    assert batch.following_masks is not None
    for seen, allowed in zip(batch.encoded[0][:, 0].tolist(), batch.following_masks.int().tolist(), strict=True):
        assert allowed == ([1, 0, 0] if seen == 0.0 else [1, 1, 1]), "nothing is known of the last observation"


def test_beyond_a_termination_signals_that_ignore_it_expect_the_beginnings() -> None:
    dqn = make_dqn(config=make_dqn_config(signals=TWO_SIGNALS, batch_size=8))
    fix_q(dqn, [1.0, 2.0, 3.0, 0.0, 0.0, 0.0], [4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    dqn.store(one_episode([1.0], SegmentEnd.TERMINATED))

    batch = dqn.batch()

    assert batch.discounts[0].tolist() == pytest.approx([0.0, 0.9])
    # the target's best choice at the beginning, by the sum over signals, is choice 2
    assert dqn.following_values(batch)[0, 1].tolist() == [9.0]


def test_priorities_draw_steps_by_their_errors_and_weights_make_up_for_it() -> None:
    dqn = make_dqn(prioritized=True, priority_exponent=1.0, importance_exponent=0.5, batch_size=4)
    dqn.store(one_episode([0.0, 0.0], SegmentEnd.TERMINATED))
    assert dqn.priorities is not None
    dqn.priorities.update(np.array([0, 1]), np.array([1.0, 3.0], np.float32))

    batch = dqn.batch()

    # of four equal parts of the sum of 4 one belongs to row 0, three to row 1
    assert batch.rows.tolist() == [0, 1, 1, 1]
    # w = (2 * 1/4)^-0.5 = sqrt(2) and (2 * 3/4)^-0.5 = sqrt(2/3), relative to the largest, over 4 rows
    assert batch.weights.tolist() == pytest.approx([1 / 4, *[math.sqrt(1 / 3) / 4] * 3], rel=1e-5)


def test_a_gradient_step_sets_the_priorities_of_what_it_drew() -> None:
    dqn = make_dqn(prioritized=True, priority_exponent=1.0, batch_size=8)
    fix_q(dqn, [0.5, 2.0, 3.0], [0.0, 0.0, 4.0])
    dqn.store(one_episode([1.0, 5.0], SegmentEnd.TERMINATED))

    dqn.gradient_step(1e-9)

    # errors: 0: |0.5 - (1 + 0.5 * 4)| = 2.5; 1: |0.5 - 5| = 4.5
    assert dqn.priorities is not None
    assert dqn.priorities.state_dict()["powers"][:2].tolist() == pytest.approx([2.5, 4.5], abs=1e-3)


# Updates -------------------------------------------------------------------------------------------------------------


def test_the_target_moves_by_tau_at_its_interval() -> None:
    dqn = make_dqn(tau=0.5, target_update_interval=2, learning_rate=1e-9)
    fix_q(dqn, [1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    dqn.store(one_episode([0.0] * 16, SegmentEnd.TERMINATED))

    seen = []
    for _ in range(4):
        dqn.gradient_step(1e-9)
        seen.append(dqn.model.target_heads.advantages.bias[2].item())

    assert seen == pytest.approx([0.0, 1.5, 1.5, 2.25], abs=1e-4)


def test_epsilon_follows_its_schedule_and_is_published_with_the_weights() -> None:
    dqn = make_dqn(exploration_initial_eps=0.9, exploration_final_eps=0.1, exploration_steps=64)
    spec, rng = make_spec(observations=(1,), branches=(3,)), np.random.default_rng(1)

    published = [float(dqn.flat_weights()[-1])]
    for step in (16, 32, 96):
        metrics = dqn.update(random_round(spec, rng, episodes=[step] * 3), step)
        assert metrics is not None
        published.append(float(dqn.flat_weights()[-1]))
        assert metrics["Policy/Exploration Rate"] == pytest.approx(published[-1])

    # 0.8 of the way from 0.9 down to 0.1: a quarter, a half, all of it
    assert published == pytest.approx([0.9, 0.7, 0.5, 0.1])


def test_without_a_saved_buffer_a_resumed_learner_waits_for_steps() -> None:
    dqn, resumed = make_dqn(prioritized=True), make_dqn(prioritized=True, seed=2)
    spec, rng = make_spec(observations=(1,), branches=(3,)), np.random.default_rng(1)
    dqn.update(random_round(spec, rng), 16)

    resumed.load_state_dict(dqn.state_dict())

    assert len(resumed.experience.replay) == 0
    assert resumed.update(random_round(spec, rng, lengths=[8], episodes=[1]), 24) is None
    assert resumed.update(random_round(spec, rng, lengths=[8], episodes=[2]), 32) is not None


def test_an_update_that_diverges_is_taken_back_with_its_priorities() -> None:
    dqn = make_dqn(**ALL)
    spec, rng = make_spec(observations=(1,), branches=(3,)), np.random.default_rng(1)
    dqn.update(random_round(spec, rng), 16)
    dqn.update(random_round(spec, rng, episodes=[1] * 3), 32)
    before = dqn.state_dict()
    assert dqn.priorities is not None

    with pytest.raises(Diverged):
        dqn.update(random_round(spec, rng, rewards=np.full(16, np.float32(3e38)), episodes=[2] * 3), 48)

    after = dqn.state_dict()
    for name in ("model", "optimizer", "gradient_steps", "version"):
        assert equal_states(before[name], after[name]), name
    powers = dqn.priorities.state_dict()["powers"]
    assert bool(powers.isfinite().all())


def test_continuous_actions_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedSpec, match="learns discrete actions only") as refused:
        make_dqn(make_spec(observations=(1,), continuous=1, branches=(2,)))

    assert refused.value.code == "actions_continuous"
