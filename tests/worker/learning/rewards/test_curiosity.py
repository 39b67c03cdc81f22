"""Curiosity pays for what its forward model did not foresee; its features are about what actions do."""

import pytest
import torch

from ludus.config.rewards import CuriosityConfig
from tests.worker.learning.rewards.steps import CPU, normals, single_steps
from tests.worker.rollouts import make_spec
from worker.experience.transitions import Transitions
from worker.learning.functional.prediction import flat_actions
from worker.learning.rewards.curiosity import CuriosityReward

SPEC = make_spec(observations=(2,), continuous=1, branches=(3,))


def make_curiosity(*, strength: float = 1.0, learning_rate: float = 1e-3, **network: object) -> CuriosityReward:
    settings = {"hidden_units": 32, "num_layers": 1, **network}
    config = CuriosityConfig.model_validate(
        {"strength": strength, "learning_rate": learning_rate, "network_settings": settings}
    )
    return CuriosityReward(config, SPEC, CPU, torch.Generator().manual_seed(1))


def moves(steps: int = 256, seed: int = 1) -> Transitions:
    """A point on a plane: the continuous action moves it along the first axis, the choice along the second one."""
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn(steps, 2, generator=generator)
    continuous = torch.rand(steps, 1, generator=generator) * 2 - 1
    discrete = torch.randint(0, 3, (steps, 1), generator=generator)
    following = observations + torch.cat([continuous, discrete - 1.0], 1)
    return single_steps(observations, following, continuous=continuous, discrete=discrete)


def test_there_is_no_reward_before_the_first_update() -> None:
    curiosity = make_curiosity()
    steps = moves()

    assert not curiosity.evaluate(steps).any()
    curiosity.update(steps)
    assert bool((curiosity.evaluate(steps) > 0).any())


def test_reward_is_half_the_squared_distance_from_what_was_foreseen() -> None:
    curiosity = make_curiosity(strength=1e-3)
    steps = moves(8)
    curiosity.update(steps)

    rewards = curiosity.evaluate(steps)

    networks, pool = curiosity.network, steps.observations[0]
    now, following = (networks.features([rows])[0] for rows in (pool[:8], pool[8:]))
    actions = flat_actions(steps.continuous, steps.discrete, (3,))
    foreseen = networks.forward_model(torch.cat([now, actions], 1))
    torch.testing.assert_close(rewards, (0.5 * (foreseen - following).square().sum(1)).detach())


@pytest.mark.parametrize("strength", [4.0, 0.5])
def test_no_reward_is_above_one_after_its_strength(strength: float) -> None:
    curiosity = make_curiosity(strength=strength, learning_rate=1e-9)
    far = moves()
    far.observations[0].mul_(100.0)
    curiosity.update(far)

    rewards = curiosity.evaluate(far)

    assert float(rewards.max()) * strength == pytest.approx(1.0)


def test_a_strength_of_zero_is_no_limit() -> None:
    curiosity = make_curiosity(strength=0.0)
    steps = moves()
    curiosity.update(steps)

    assert bool(curiosity.evaluate(steps).isfinite().all())


def test_what_was_measured_are_both_errors() -> None:
    curiosity = make_curiosity(strength=1e-3)
    steps = moves()
    with torch.no_grad():
        forward, inverse = (float(error.mean()) for error in curiosity.network(steps))

    measured = {name: float(value) for name, value in curiosity.update(steps).items()}

    assert measured == {
        "Losses/Curiosity Forward Loss": pytest.approx(forward),
        "Losses/Curiosity Inverse Loss": pytest.approx(inverse),
    }


@pytest.mark.long
def test_the_inverse_model_learns_the_action_and_the_forward_model_what_follows() -> None:
    curiosity = make_curiosity(learning_rate=3e-3)
    losses = [curiosity.update(moves(seed=seed)) for seed in range(300)]
    inverse = [float(loss["Losses/Curiosity Inverse Loss"]) for loss in losses]

    # At first about 1/3 for the column (uniform in [-1, 1]) and ln 3 = 1.1 for the choice.
    assert inverse[0] == pytest.approx(1 / 3 + 1.1, abs=0.5)
    assert sum(inverse[-10:]) / 10 < 0.15
    fresh = moves(seed=999)
    surprising = fresh._replace(next_index=fresh.next_index.flip(0))
    assert float(curiosity.evaluate(surprising).mean()) > 3 * float(curiosity.evaluate(fresh).mean())


def test_statistics_merge_with_updates_only() -> None:
    curiosity = make_curiosity(normalize=True)
    steps = moves()
    normalizer = curiosity.network.features.normalizer
    assert normalizer is not None

    curiosity.evaluate(steps)
    assert float(normalizer.count) == 1.0
    curiosity.update(steps)

    torch.testing.assert_close(normalizer.mean, steps.observations[0][:256].double().sum(0) / 257)


def test_actions_are_those_of_the_environment() -> None:
    # A sample of 1.5 reaches the environment as 0.5 (see `worker.experience.transitions`); the inverse model's target
    # is what is in the transitions, so an action that the environment can't get is never predicted.
    curiosity = make_curiosity()
    steps = single_steps(
        normals(4, 2), continuous=torch.full((4, 1), 0.5), discrete=torch.zeros(4, 1, dtype=torch.int64)
    )
    networks = curiosity.network
    now = networks.features([steps.observations[0][:4]])[0]
    acted = networks.inverse(torch.cat([now, now], 1))

    _, inverse = networks(steps)

    choice = torch.nn.functional.cross_entropy(acted[:, 1:], torch.zeros(4, dtype=torch.int64), reduction="none")
    torch.testing.assert_close(inverse, (acted[:, 0] - 0.5).square() + choice)
