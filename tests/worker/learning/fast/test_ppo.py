"""The gradient of PPO that is taken by hand is the one that autograd takes of its scalar loss."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ludus.collector.layout import ActorLayout
from ludus.config.behavior import PPOConfig
from tests.examples import examples
from tests.worker.learning.fast.covered import TWO_SIGNALS, Setting, covered
from tests.worker.rollouts import make_config, random_rollout
from worker.learning.algorithms.ppo import PPO
from worker.learning.build import Demonstrations, build_signals
from worker.learning.fast.switch import autograd_only, covers

CPU = torch.device("cpu")


def differentiated_ppo(config: PPOConfig, setting: Setting) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """What PPO differentiates on its second minibatch, when ratios are not 1 any more: terms, log-ratios, gradient."""
    rng = np.random.default_rng(setting.seed)
    rollout = random_rollout(setting.spec, [5, 3, 8], rng, masked=setting.masked)
    signals = build_signals(config.reward_signals, setting.spec, CPU, torch.Generator(), Demonstrations({}))
    ppo = PPO(config, setting.spec, CPU, setting.seed, signals)
    rates = ppo.rates(0)
    with torch.no_grad():
        experience = ppo.prepare(rollout)
        first, second = list(ppo.minibatches(experience))[:2]
        log_probs = torch.randn(len(second.log_prob), generator=torch.Generator().manual_seed(1)) * 0.3
        ppo.differentiate(experience, first, rates)  # `grad` holds something else before
        terms, log_ratio = ppo.differentiate(experience, second, rates)
        near = replace(second, log_prob=second.log_prob + log_ratio + log_probs)
        terms, log_ratio = ppo.differentiate(experience, near, rates)
    return terms, log_ratio, ppo.optimizer.gradient.clone()


@settings(max_examples=examples(60), deadline=None)
@given(covered(), st.booleans(), st.booleans(), st.booleans())
def test_ppo(setting: Setting, shared: bool, clip: bool, privileged: bool) -> None:
    if privileged and not shared and len(setting.spec.observations) > 1:
        setting.network["privileged_observations"] = [setting.spec.observations[0].name]
    hyper = {"shared_critic": shared, "clip_value_loss": clip, "batch_size": 8, "beta": 0.1, "num_epoch": 1}
    config = make_config(network=setting.network, **hyper)
    if setting.signals == 2:
        section = config.reward_signals.model_validate(TWO_SIGNALS)
        config = config.model_copy(update={"reward_signals": section})
    layout = ActorLayout.of(setting.spec, config.network_settings)
    assert covers(layout)

    terms, log_ratio, gradient = differentiated_ppo(config, setting)
    with autograd_only():
        expected_terms, expected_ratio, expected = differentiated_ppo(config, setting)

    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_ratio, expected_ratio)
    assert terms.keys() == expected_terms.keys()
    for name, term in terms.items():
        torch.testing.assert_close(term, expected_terms[name], rtol=1e-4, atol=1e-6)
