"""Both kinds of critics are the same function, and what they are made of is what their text says."""

import math
from typing import Any

import pytest
import torch

from tests.worker.learning.algorithms.off_policy_world import make_sac_config
from tests.worker.learning.networks.test_soft_actor_critic import HYBRID, make_critics
from tests.worker.rollouts import make_spec
from worker.learning.fast.critics import StackedCritics
from worker.learning.networks.soft_actor_critic import ModularCritics


def copy_weights(stacked: StackedCritics, modular: ModularCritics) -> None:
    networks: list[Any] = [*modular.q, modular.v, modular.target]
    with torch.no_grad():
        for net, network in enumerate(networks):
            layers = [*network.body.hidden.layers, network.heads]
            for layer, weight, bias in zip(layers, stacked.weights, stacked.biases, strict=True):
                at = min(net, 2)
                outputs, inputs = layer.weight.shape
                step = weight.shape[2] // outputs if layer is network.heads else 1
                layer.weight.copy_(weight[at, :inputs, ::step].t())
                layer.bias.copy_(bias[at, 0, ::step])


def test_stacked_and_modular_critics_are_the_same_function() -> None:
    stacked = make_critics()
    modular = ModularCritics(HYBRID, make_sac_config().network_settings, 2, torch.Generator().manual_seed(6))
    assert isinstance(stacked, StackedCritics)
    copy_weights(stacked, modular)
    seen, behind, done, other = torch.randn(6, 3), torch.randn(6, 3), torch.rand(6, 2), torch.rand(6, 2)

    with torch.no_grad():
        mine, theirs = stacked.q_values([seen], done, 1), modular.q_values([seen], done, 1)
        torch.testing.assert_close(mine[:2], theirs[:2])
        torch.testing.assert_close(stacked.q_values_of(mine, other), modular.q_values_of(theirs, other))
        torch.testing.assert_close(
            stacked.target_values([seen], [behind], 1), modular.target_values([seen], [behind], 1)
        )
        by_hand = stacked.by_action(stacked.pass_of(mine, other), torch.ones(6, 4))

    action = other.requires_grad_()
    for critics, prediction in ((stacked, mine), (modular, theirs)):
        (by_action,) = torch.autograd.grad(critics.q_values_of(prediction, action)[0].sum(), [action])
        torch.testing.assert_close(by_action, by_hand)


def test_the_target_starts_as_v_and_moves_a_part_of_the_way() -> None:
    critics = make_critics()
    seen = torch.randn(6, 3)
    with torch.no_grad():
        start = critics.q_values([seen], torch.zeros(6, 2), 1).v
        torch.testing.assert_close(critics.target_values([seen], [seen], 1), start)
        assert isinstance(critics, StackedCritics)
        before = [part.clone() for part in critics.target]
        for part in (*critics.weights, *critics.biases):
            part.add_(1.0)

        critics.track(0.25)

    for old, new in zip(before, critics.target, strict=True):
        torch.testing.assert_close(new, old + 0.25)


def test_weights_start_as_ml_agents_have_them() -> None:
    spec = make_spec(observations=(50,), continuous=50, branches=(300,))
    critics = make_critics(spec, signals=1, hidden_units=400)
    assert isinstance(critics, StackedCritics)
    first, second, head = (weight.detach() for weight in critics.weights)

    for net, fan_in in ((0, 100), (1, 100), (2, 50)):  # V's without the action
        assert float(first[net].std()) * math.sqrt(fan_in) == pytest.approx(1.0, abs=0.03)
        assert float(second[net].std()) * math.sqrt(400) == pytest.approx(1.0, abs=0.03)
    for net, bound in ((0, math.sqrt(6 / 700)), (2, math.sqrt(6 / 401))):
        assert float(head[net].abs().max()) == pytest.approx(bound, rel=0.01)
    assert not torch.equal(first[0], first[1])
    assert all(not bool(bias.any()) for bias in critics.biases)
