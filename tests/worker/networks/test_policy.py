"""The policy that acts, in numpy, against the one that learns, in torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.rollouts import acted_rollout, make_config, make_spec, random_masks
from worker.algorithms.ppo import PPO
from worker.functional.distributions import branch_bounds
from worker.networks.policy import ActingPolicy

SPACES = [(0, (3,)), (0, (3, 2)), (2, ()), (2, (3, 2))]


def make_pair(
    continuous: int,
    branches: tuple[int, ...],
    *,
    normalize: bool = True,
    deterministic: bool = False,
    activation: str = "swish",
) -> tuple[PPO, ActingPolicy]:
    """A learner and a policy with its weights, after an update that moved weights and normalizer."""
    spec = make_spec(observations=(3, 2), continuous=continuous, branches=branches)
    network = {"normalize": normalize, "deterministic": deterministic, "activation": activation}
    config = make_config(network=network, num_epoch=2)
    ppo = PPO(config, spec, torch.device("cpu"), seed=3)
    policy = ActingPolicy(spec, config.network_settings.model_dump())
    policy.load(ppo.flat_weights())
    ppo.update(acted_rollout(policy, np.random.default_rng(4)), step=0)
    policy.load(ppo.flat_weights())
    return ppo, policy


@pytest.mark.parametrize("activation", ["swish", "tanh", "relu"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("continuous", "branches"), SPACES)
def test_log_probs_are_the_learners(
    continuous: int, branches: tuple[int, ...], normalize: bool, activation: str
) -> None:
    ppo, policy = make_pair(continuous, branches, normalize=normalize, activation=activation)
    rollout = acted_rollout(policy, np.random.default_rng(5), masked=bool(branches))

    with torch.no_grad():
        batch, _ = ppo._prepare(rollout)
        prediction = ppo._model.evaluate([batch.encoded], batch.continuous, batch.discrete, batch.masks)

    torch.testing.assert_close(prediction.joint.log_prob, rollout.log_probs.sum(1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("continuous", "branches"), SPACES)
def test_deterministic_actions_are_the_learners(continuous: int, branches: tuple[int, ...]) -> None:
    ppo, policy = make_pair(continuous, branches, deterministic=True)
    rng = np.random.default_rng(6)
    observations = [rng.normal(size=(50, size)).astype(np.float32) for size in (3, 2)]
    masks = random_masks(rng, 50, branches)

    acted = policy.act(observations, masks, None, rng)
    means, choices, _ = ppo.actor.deterministic(
        [torch.from_numpy(item) for item in observations], torch.from_numpy(masks)
    )

    np.testing.assert_allclose(acted.continuous_env, means.numpy(), atol=1e-5)
    np.testing.assert_array_equal(acted.discrete, choices.numpy())


@given(st.integers(0, 2**31), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.floats(1.0, 1e4))
def test_forbidden_choices_are_never_taken(seed: int, sizes: list[int], scale: float) -> None:
    branches, rng = tuple(sizes), np.random.default_rng(seed)
    policy = ActingPolicy(make_spec(branches=branches), {"hidden_units": 4, "num_layers": 1})
    policy.load(rng.normal(0.0, scale, policy.flat_size).astype(np.float32))  # logits as extreme as one likes
    masks = random_masks(rng, 64, branches)

    acted = policy.act([rng.normal(size=(64, 4)).astype(np.float32)], masks, None, rng)

    for branch, (start, stop) in enumerate(branch_bounds(branches)):
        assert masks[:, start:stop][np.arange(64), acted.discrete[:, branch]].all()
    assert np.isfinite(acted.log_probs).all()


def test_choices_are_drawn_with_their_probabilities() -> None:
    policy = ActingPolicy(make_spec(branches=(3,)), {"hidden_units": 4, "num_layers": 1})
    flat = np.zeros(policy.flat_size, np.float32)
    flat[-3:] = np.log([0.2, 0.3, 0.5])  # the head's bias: the logits of every observation
    policy.load(flat)

    acted = policy.act([np.zeros((20_000, 4), np.float32)], None, None, np.random.default_rng(7))

    # three standard deviations of a share of 20,000 draws are at most 3 * sqrt(0.25 / 20,000) = 0.011
    shares = np.bincount(acted.discrete[:, 0], minlength=3) / 20_000
    np.testing.assert_allclose(shares, [0.2, 0.3, 0.5], atol=0.011)
    np.testing.assert_allclose(
        np.exp(acted.log_probs[:, 0]), np.array([0.2, 0.3, 0.5])[acted.discrete[:, 0]], rtol=1e-5
    )


def test_continuous_actions_are_clipped_and_scaled_for_the_environment_only() -> None:
    policy = ActingPolicy(make_spec(continuous=1), {"hidden_units": 4, "num_layers": 1})
    flat = np.zeros(policy.flat_size, np.float32)
    flat[-1] = np.log(4.0)  # log_sigma
    policy.load(flat)

    acted = policy.act([np.zeros((10_000, 4), np.float32)], None, None, np.random.default_rng(8))

    assert float(acted.continuous_sample.std()) == pytest.approx(4.0, rel=0.05)
    np.testing.assert_allclose(acted.continuous_env, acted.continuous_sample.clip(-3, 3) / 3, rtol=1e-6)
    assert np.abs(acted.continuous_env).max() == 1.0


def test_equal_generators_draw_equal_actions() -> None:
    _, policy = make_pair(2, (3, 2))
    observations = [np.ones((9, 3), np.float32), np.ones((9, 2), np.float32)]

    one, two = (policy.act(observations, None, None, np.random.default_rng(9)) for _ in range(2))

    np.testing.assert_array_equal(one.continuous_sample, two.continuous_sample)
    np.testing.assert_array_equal(one.discrete, two.discrete)


def test_acting_does_not_change_observations_or_weights() -> None:
    _, policy = make_pair(2, (3, 2))
    observations = [np.full((5, 3), 2.0, np.float32), np.full((5, 2), 2.0, np.float32)]
    masks = np.ones((5, 5), np.uint8)

    first = policy.act(observations, masks, None, np.random.default_rng(1))
    again = policy.act(observations, masks, None, np.random.default_rng(1))

    assert all((part == 2.0).all() for part in observations)
    np.testing.assert_array_equal(first.log_probs, again.log_probs)


def test_loaded_weights_are_a_copy() -> None:
    policy = ActingPolicy(make_spec(branches=(3,)), {"hidden_units": 4, "num_layers": 1})
    flat = np.ones(policy.flat_size, np.float32)
    policy.load(flat)
    before = policy.act([np.ones((1, 4), np.float32)], None, None, np.random.default_rng(1))

    flat[:] = 9.0
    after = policy.act([np.ones((1, 4), np.float32)], None, None, np.random.default_rng(1))

    np.testing.assert_array_equal(before.log_probs, after.log_probs)


def test_weights_of_another_network_are_refused() -> None:
    policy = ActingPolicy(make_spec(branches=(3,)), {})

    with pytest.raises(ValueError, match=rf"expected {policy.flat_size} weights"):
        policy.load(np.zeros(7, np.float32))


def test_acting_needs_no_torch() -> None:
    code = "import sys, worker.networks.policy; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
