"""SAC's update: its gradient, what it bootstraps from, when it happens, what it reports and what it refuses."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from ludus.collector.segments import SegmentEnd
from ludus.protocol.spec import BehaviorSpec
from tests.worker.learning.algorithms.off_policy_world import (
    SPACES,
    make_sac,
    make_sac_config,
    random_round,
    reference_gradient,
    train,
)
from tests.worker.rollouts import make_spec
from worker.collectors.acting import POLICIES
from worker.learning.algorithms.off_policy import Batch
from worker.learning.algorithms.sac import SAC
from worker.learning.fast.critics import StackedCritics
from worker.learning.networks.soft_actor_critic import ModularCritics

TWO_SIGNALS = {
    "extrinsic": {"gamma": 0.9, "strength": 2.0},
    "curiosity": {"gamma": 0.8, "strength": 0.5, "network_settings": {"hidden_units": 8}},
}
MEMORY = {"memory": {"sequence_length": 4, "memory_size": 8}}


def next_batch(sac: SAC) -> tuple[Batch, torch.Tensor | None]:
    """The batch and the noise of the next gradient step, which draws them again."""
    state = sac.generator.get_state()
    batch = sac.experience.batch()
    noise = torch.randn(len(batch.rewards), sac.model.columns, generator=sac.generator) if sac.model.columns else None
    sac.generator.set_state(state)
    return batch, noise


def filled(spec: BehaviorSpec, *, memory_size: int = 0, masked: bool = False, **options: Any) -> SAC:
    """A learner that has learned a little."""
    sac = make_sac(spec, make_sac_config(**options))
    train(sac, spec, np.random.default_rng(1), 5, masked=masked, memory_size=memory_size)
    return sac


def test_gradient_by_hand_is_that_of_the_losses() -> None:
    spec = make_spec(observations=(3, 2), continuous=2, branches=(3, 2))
    sac = filled(spec, masked=True, network={"normalize": True}, signals=TWO_SIGNALS)
    assert isinstance(sac.model.critics, StackedCritics)
    batch, noise = next_batch(sac)

    reference = reference_gradient(sac, batch, noise)
    with torch.no_grad():
        sac.take_step(sac.experience.batch(), 0.0)

    torch.testing.assert_close(sac.optimizer.gradient, reference, rtol=1e-3, atol=2e-5)
    assert float(reference.norm()) > 0.01


@pytest.mark.long
@pytest.mark.parametrize(
    ("observations", "network", "memory_size"),
    [((3, (4, 5)), {}, 0), ((3, (1, 20, 20)), MEMORY, 8)],
    ids=["entities", "picture-and-memory"],
)
@pytest.mark.parametrize(("continuous", "branches"), [SPACES[0], SPACES[3]])
def test_automatic_gradient_is_that_of_the_losses(
    continuous: int, branches: tuple[int, ...], observations: tuple[Any, ...], network: dict[str, Any], memory_size: int
) -> None:
    spec = make_spec(observations=observations, continuous=continuous, branches=branches)
    sac = filled(spec, memory_size=memory_size, network=network, masked=True)
    assert isinstance(sac.model.critics, ModularCritics)
    batch, noise = next_batch(sac)

    reference = reference_gradient(sac, batch, noise)
    with torch.no_grad():
        sac.take_step(sac.experience.batch(), 0.0)

    torch.testing.assert_close(sac.optimizer.gradient, reference, rtol=1e-3, atol=2e-5)


def test_the_target_starts_as_v_and_moves_by_tau() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = make_sac(spec, tau=0.25, learning_rate=1e-2)
    critics = sac.model.critics
    start = [part.clone() for part in critics.target]
    assert all(torch.equal(part, source) for part, source in zip(critics.target, critics.views().v, strict=True))

    train(sac, spec, np.random.default_rng(2), 1, rewards=np.ones(16))
    updates = sac.experience.updates

    assert updates == 4
    first = [
        before + (1 - 0.75**updates) * (after - before) for before, after in zip(start, critics.views().v, strict=True)
    ]
    moved = sum(float((part - before).norm()) for part, before in zip(critics.target, start, strict=True))
    whole = sum(float((part - before).norm()) for part, before in zip(first, start, strict=True))
    assert 0 < moved < whole, "it lags behind one that always had V's present weights"


def test_recurrent_padding_has_no_influence() -> None:
    spec = make_spec(observations=(3,), continuous=1)
    sac = filled(spec, memory_size=8, network=MEMORY, tau=1e-9)
    batch, _ = next_batch(sac)
    padding = batch.weight[:, :1] == 0
    assert 0 < int(padding.sum()) < len(padding)
    others = batch._replace(
        rewards=torch.where(padding, 1e6, batch.rewards), continuous=torch.where(padding, -0.9, batch.continuous)
    )

    gradients = []
    for one in (batch, others):
        sac.generator.manual_seed(3)
        with torch.no_grad():
            sac.take_step(one, 0.0)  # what was padded pays a million
        gradients.append(sac.optimizer.gradient.clone())

    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("memory", [None, {"sequence_length": 4, "memory_size": 4}], ids=["plain", "LSTM"])
def test_beyond_a_termination_curiosity_expects_what_episodes_begin_with(memory: dict[str, Any] | None) -> None:
    spec = make_spec(observations=(1,), continuous=1)
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS, network={"memory": memory} if memory else {}))
    columns = {"lengths": [1] * 16, "memory_size": 4 if memory else 0}
    begun, behind = np.full((16, 1), 2.0), np.full((16, 1), 7.0)
    sac.experience.store(
        random_round(
            spec,
            np.random.default_rng(1),
            observations=[begun],
            next_observations=[behind],
            ending=SegmentEnd.TERMINATED,
            **columns,
        )
    )

    batch = sac.experience.batch()
    values = sac.following_values(batch)

    beginning = sac.model.critics.initial_values([torch.tensor([[2.0]])])[0]
    terminal = sac.model.critics.target_values(batch.encoded, batch.following, batch.length)[:, 1]
    assert not torch.isclose(terminal, beginning[1]).any(), "which would show nothing"
    torch.testing.assert_close(values[:, 1], beginning[1].expand(len(values)))
    assert batch.discounts.unique(dim=0).tolist() == [[0.0, pytest.approx(0.8)]], "the task itself ended there"


def test_coefficients_rise_where_entropy_is_below_its_target_and_fall_above() -> None:
    # A squashed column whose sigma is 1 has an entropy near 0.4 nats, above its target of -1. An even branch has ln 3,
    # above 0.2 ln 3.
    spec = make_spec(observations=(3,), continuous=1, branches=(3,))
    sac = make_sac(spec, init_entcoef=0.5)
    train(sac, spec, np.random.default_rng(1), 1)
    assert bool((sac.model.log_coefficients < math.log(0.5)).all())

    sac.model.target_entropies += 10.0
    before = sac.model.log_coefficients.detach().clone()
    train(sac, spec, np.random.default_rng(1), 20)

    assert bool((sac.model.log_coefficients > before).all())


def test_target_entropies_are_those_of_ml_agents() -> None:
    sac = make_sac(make_spec(continuous=3, branches=(4, 2)))

    targets = [0.2 * math.log(4), 0.2 * math.log(2), -3.0]
    assert sac.model.target_entropies.tolist() == pytest.approx(targets)


def test_metrics_have_ml_agents_names() -> None:
    spec = make_spec(observations=(3,), continuous=1, branches=(3, 2))
    sac = make_sac(spec, make_sac_config(signals=TWO_SIGNALS))

    metrics = train(sac, spec, np.random.default_rng(1), 1)

    assert set(metrics) == {
        "Losses/Policy Loss",
        "Losses/Value Loss",
        "Losses/Q1 Loss",
        "Losses/Q2 Loss",
        "Losses/Policy Gradient Norm",
        "Losses/Critic Gradient Norm",
        "Losses/Curiosity Forward Loss",
        "Losses/Curiosity Inverse Loss",
        "Policy/Extrinsic Value",
        "Policy/Curiosity Value",
        "Policy/Curiosity Reward",
        "Policy/Entropy",
        "Policy/Continuous Entropy",
        "Policy/Discrete Entropy",
        "Policy/Branch 0 Entropy",
        "Policy/Branch 1 Entropy",
        "Policy/Continuous Entropy Coeff",
        "Policy/Discrete Entropy Coeff",
        "Policy/Learning Rate",
        "Policy/Lag",
        "Policy/Acting KL",
    }


def test_metrics_of_what_a_behavior_lacks_are_left_out() -> None:
    columns = train(make_sac(make_spec(continuous=1)), make_spec(continuous=1), np.random.default_rng(1), 1)
    branches = train(make_sac(make_spec(branches=(2,))), make_spec(branches=(2,)), np.random.default_rng(1), 1)

    assert not [name for name in columns if "Discrete" in name]
    assert not [name for name in branches if "Continuous" in name]


def test_metrics_are_what_they_are_called() -> None:
    spec = make_spec(observations=(3,), branches=(3, 2))
    sac = make_sac(spec, learning_rate=1e-9, init_entcoef=0.25, steps_per_update=16)
    with torch.no_grad():
        sac.actor.head.weight.zero_()

    metrics = train(sac, spec, np.random.default_rng(1), 1)

    assert metrics["Policy/Entropy"] == pytest.approx(math.log(3) + math.log(2), rel=1e-4)
    assert metrics["Policy/Discrete Entropy Coeff"] == pytest.approx(0.25, rel=1e-4)
    assert metrics["Policy/Learning Rate"] == 1e-9
    assert metrics["Policy/Lag"] == 0.0


def test_weights_are_as_collectors_load_them() -> None:
    spec = make_spec(observations=(3,), continuous=2, branches=(2,))
    sac = make_sac(spec, network={"normalize": True})
    train(sac, spec, np.random.default_rng(1), 2)
    policy = POLICIES.policy(spec, sac.config.network_settings, head="squashed")

    policy.load(sac.flat_weights())
    acted = policy.act([np.zeros((5, 3), np.float32)], None, None, np.random.default_rng(1))

    assert acted.continuous_env.shape == (5, 2)
    assert np.array_equal(acted.continuous_env, acted.continuous_sample)
    assert float(np.abs(acted.continuous_env).max()) < 1.0
