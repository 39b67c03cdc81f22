"""The gradient of SAC that is taken by hand is the one that autograd takes of its scalar loss."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from ludus.config.behavior import SACConfig
from tests.examples import examples
from tests.worker.learning.algorithms.off_policy_world import make_sac_config, random_round
from tests.worker.learning.fast.covered import TWO_SIGNALS, Setting, covered
from tests.worker.learning.functional.test_squashed import columns
from worker.learning.algorithms.sac import SAC
from worker.learning.build import Demonstrations, build_signals
from worker.learning.fast.sac import squashed_gradient
from worker.learning.fast.switch import autograd_only
from worker.learning.functional.squashed import draw_squashed

CPU = torch.device("cpu")


def stepped_sac(config: SACConfig, setting: Setting) -> tuple[Tensor, Tensor]:
    """What SAC measures in its third gradient step, and the gradient of it."""
    rng = np.random.default_rng(setting.seed)
    signals = build_signals(config.reward_signals, setting.spec, CPU, torch.Generator(), Demonstrations({}))
    sac = SAC(config, setting.spec, CPU, setting.seed, signals)
    sac.experience.store(
        random_round(setting.spec, rng, masked=setting.masked and bool(setting.spec.actions.mask_size))
    )
    with torch.no_grad():
        for _ in range(3):
            measured = sac.take_step(sac.experience.batch(), 1e-3)
    return measured, sac.optimizer.gradient.clone()


@settings(max_examples=examples(60), deadline=None)
@given(covered())
def test_sac(setting: Setting) -> None:
    config = make_sac_config(network=setting.network, signals=TWO_SIGNALS if setting.signals == 2 else None)

    measured, gradient = stepped_sac(config, setting)
    with autograd_only():
        expected_measured, expected = stepped_sac(config, setting)

    largest = max(1.0, float(expected.abs().max()))  # an element is a sum of terms of this size, each rounded
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=2e-5 * largest)
    torch.testing.assert_close(measured, expected_measured, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_gradient_of_squashed_actions_beyond_the_limits_too(spread: float) -> None:
    mean, log_sigma, noise = columns(seed=2, spread=spread)
    log_sigma[0, 0], log_sigma[1, 1] = 2.5, -21.0  # beyond the limits
    by_action, by_log_prob = torch.randn(7, 3), torch.randn(7, 1)

    mine = squashed_gradient(draw_squashed(mean, log_sigma, noise), by_action, by_log_prob)

    mean.requires_grad_()
    log_sigma.requires_grad_()
    limited = log_sigma.clamp(-20, 2)
    unsquashed = mean + limited.exp() * noise
    slope = 2 * (0.6931471805599453 - unsquashed - torch.nn.functional.softplus(-2 * unsquashed))
    log_prob = (-0.5 * noise**2 - limited - slope).sum(1, keepdim=True)
    ((unsquashed.tanh() * by_action).sum() + (log_prob * by_log_prob).sum()).backward()
    torch.testing.assert_close(mine[0], mean.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine[1], log_sigma.grad, rtol=1e-4, atol=1e-5)
    assert mine[1][0, 0] == 0.0
    assert mine[1][1, 1] == 0.0
