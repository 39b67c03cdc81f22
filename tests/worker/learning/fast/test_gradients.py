"""Every gradient that is taken by hand is the one that autograd takes of the algorithm's scalar loss."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ludus.collector.layout import ActorLayout
from ludus.config.behavior import PPOConfig, SACConfig
from ludus.config.network import NetworkSettings
from ludus.protocol.spec import BehaviorSpec
from tests.examples import examples
from tests.worker.learning.algorithms.off_policy_world import make_sac_config, random_round
from tests.worker.rollouts import make_config, make_spec, random_rollout
from worker.learning.algorithms.ppo import PPO
from worker.learning.algorithms.sac import SAC
from worker.learning.build import Demonstrations, build_signals
from worker.learning.fast.dense import ACTIVATION_GRADIENTS
from worker.learning.fast.switch import Case, autograd_only, covers

CPU = torch.device("cpu")
TWO_SIGNALS = {"extrinsic": {"gamma": 0.9}, "rnd": {"gamma": 0.8, "network_settings": {"hidden_units": 8}}}


@dataclass
class Setting:
    """A behavior and a network that the switch covers."""

    spec: BehaviorSpec
    network: dict[str, object]
    masked: bool
    signals: int
    seed: int


@st.composite
def covered(draw: st.DrawFn) -> Setting:
    """Any mixture of columns, branches and masks; any depth, width and activation of an MLP; one or two signals."""
    columns = draw(st.integers(0, 3))
    branches = tuple(draw(st.lists(st.integers(1, 4), min_size=0 if columns else 1, max_size=3)))
    observations = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    network = {
        "hidden_units": draw(st.integers(1, 9)),
        "num_layers": draw(st.integers(1, 3)),
        "activation": draw(st.sampled_from(sorted(ACTIVATION_GRADIENTS))),
        "normalize": draw(st.booleans()),
    }
    spec = make_spec(observations=observations, continuous=columns, branches=branches)
    return Setting(spec, network, draw(st.booleans()), draw(st.integers(1, 2)), draw(st.integers(0, 2**16)))


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
@given(covered(), st.booleans(), st.booleans())
def test_ppo(setting: Setting, shared: bool, clip: bool) -> None:
    hyper = {"shared_critic": shared, "clip_value_loss": clip, "batch_size": 8, "beta": 0.1, "num_epoch": 1}
    config = make_config(network=setting.network, **hyper)
    if setting.signals == 2:
        section = config.reward_signals.model_validate(TWO_SIGNALS)
        config = config.model_copy(update={"reward_signals": section})
    layout = ActorLayout.of(setting.spec, config.network_settings)
    assert covers(Case.PPO, layout)

    terms, log_ratio, gradient = differentiated_ppo(config, setting)
    with autograd_only():
        expected_terms, expected_ratio, expected = differentiated_ppo(config, setting)

    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(log_ratio, expected_ratio)
    assert terms.keys() == expected_terms.keys()
    for name, term in terms.items():
        torch.testing.assert_close(term, expected_terms[name], rtol=1e-4, atol=1e-6)


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


@pytest.mark.parametrize("case", Case)
@pytest.mark.parametrize(
    ("observations", "network"),
    [((3, (1, 20, 20)), {}), ((3, (4, 5)), {}), ((3,), {"memory": {"memory_size": 8, "sequence_length": 4}})],
    ids=["picture", "entities", "memory"],
)
def test_other_networks_are_autograds(
    case: Case, observations: tuple[int | tuple[int, ...], ...], network: dict[str, object]
) -> None:
    assert not covers(
        case,
        ActorLayout.of(make_spec(observations=observations, continuous=1), NetworkSettings.model_validate(network)),
    )


@pytest.mark.parametrize("case", Case)
def test_the_switch_turns_every_case_off(case: Case) -> None:
    layout = ActorLayout.of(make_spec(observations=(3,), continuous=1), NetworkSettings())

    assert covers(case, layout)
    with autograd_only():
        assert not covers(case, layout)
    assert covers(case, layout)
