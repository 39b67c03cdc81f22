"""ReBRAC with worked numbers, and what it refuses."""

from pathlib import Path

import pytest
import torch

from ludus.collector.spec_checks import UnsupportedSpec
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.learning.plugins.offline.learners import acted, fix, learner
from worker.learning.networks.normed import LayerNormBody
from worker.learning.plugins.offline.rebrac import ReBRAC


def make(folder: Path, endings: str = "te", **hyperparameters: float) -> ReBRAC:
    """Return one whose actions are 0, at demonstrations whose actions are 0.5 and whose rewards are 1."""
    made = learner(folder, acted(0.5, 1.0, endings=endings), algorithm="rebrac", **hyperparameters)
    assert isinstance(made, ReBRAC)
    for layer in (made.model.actor.head, made.model.target_actor.head):
        fix(layer, 0.0)
    return made


def test_targets_lose_the_distance_to_the_next_demonstrated_action_where_there_is_one(tmp_path: Path) -> None:
    rebrac = make(tmp_path, beta2=2.0, target_noise=0.0)
    for target, value in zip(rebrac.model.critics._targets, (3.0, 2.0), strict=True):
        fix(target.heads, value)

    targets = rebrac.targets(rebrac.experience.batch())

    # two pieces of four steps: rows 3 and 7 are the last ones, of a truncated and of a terminated episode
    inside, truncated, terminated = 1.0 + 0.5 * (2.0 - 2.0 * 0.25), 1.0 + 0.5 * 2.0, 1.0
    drawn = rebrac.experience.drawn_rows.tolist()
    assert len(set(drawn)) > 2
    expected = [{3: truncated, 7: terminated}.get(row, inside) for row in drawn]
    assert targets[:, 0].tolist() == pytest.approx(expected)


def test_the_policy_weighs_distance_against_values_of_size_one(tmp_path: Path) -> None:
    rebrac = make(tmp_path, beta1=0.4)
    for network, value in zip(rebrac.model.critics._networks, (-4.0, -8.0), strict=True):
        fix(network.heads, value)

    loss, distance = rebrac.policy_loss(rebrac.experience.batch())

    assert float(distance) == pytest.approx(0.25)
    assert loss.item() == pytest.approx(0.4 * 0.25 - (-8.0 / 8.0)), "the smaller Q, divided by its mean size"


def test_the_policy_moves_at_every_second_step_of_the_critics(tmp_path: Path) -> None:
    rebrac = make(tmp_path, policy_delay=2)
    first = rebrac.actor.flatten()

    rebrac.iterate()
    once = rebrac.actor.flatten()
    rebrac.iterate()

    assert (once == first).all()
    assert (rebrac.actor.flatten() != once).any()


@pytest.mark.parametrize("normed", [True, False])
def test_critics_have_layer_norms_unless_those_are_switched_off(tmp_path: Path, normed: bool) -> None:
    rebrac = make(tmp_path, critic_layer_norm=normed)

    assert all(isinstance(network.body.hidden, LayerNormBody) == normed for network in rebrac.model.critics._networks)
    assert not isinstance(rebrac.actor.body.hidden, LayerNormBody)


def test_discrete_actions_are_refused_with_the_algorithm_that_takes_them(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedSpec, match="rebrac learns continuous actions only; take algorithm iql"):
        learner(tmp_path, make_demonstration(), algorithm="rebrac")


def test_fine_tuning_explores_with_the_configured_deviation(tmp_path: Path) -> None:
    finetune = learner(
        tmp_path, acted(endings="tt"), trainer="finetune", algorithm="rebrac", exploration_sigma=0.25, buffer_size=100
    )

    sigma = finetune.actor.head_parameters()["noise_log_sigma"].exp()
    assert torch.allclose(sigma, torch.tensor([0.25]))
