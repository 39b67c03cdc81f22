"""An activation is one line: numpy, torch, ONNX and the learner follow from its expression."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from ludus.collector.activations import ACTIVATIONS, NUMPY, Expression, numpy_function, relu, x
from ludus.collector.layout import ActorLayout
from ludus.collector.policy import ActingPolicy
from ludus.config.network import Activation, NetworkSettings
from tests.worker.rollouts import make_config, make_spec, random_rollout
from worker.learning.algorithms.ppo import PPO
from worker.learning.fast.switch import covers
from worker.learning.networks.actor import Actor
from worker.learning.networks.dense import TORCH, torch_function
from worker.onnx.export import export_onnx

SPEC = make_spec(observations=(3,), continuous=2, branches=(3,))


def test_the_expressions_are_those_of_the_names_in_configurations() -> None:
    assert list(ACTIVATIONS) == list(get_args(Activation))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_form_is_that_of_the_expression(name: str) -> None:
    inputs = np.linspace(-30, 30, 601, dtype=np.float32)
    expected = ACTIVATIONS[name].evaluate(torch.from_numpy(inputs).double(), TORCH).numpy()

    in_numpy = numpy_function(name)(inputs.copy())
    in_torch = torch_function(name)(torch.from_numpy(inputs)).numpy()
    unfused = ACTIVATIONS[name].evaluate(inputs, NUMPY)

    for values in (in_numpy, in_torch, unfused):
        np.testing.assert_allclose(values, expected, rtol=2e-6, atol=1e-6)


def test_relu_has_a_value_for_both_signs() -> None:
    assert numpy_function("relu")(np.array([-1.0, 2.0], np.float32)).tolist() == [0.0, 2.0]


@pytest.fixture
def squared_relu(monkeypatch: pytest.MonkeyPatch) -> NetworkSettings:
    """Settings of a network with an activation that is one more line of the table (So et al. 2021)."""
    expression: Expression = relu(x) * relu(x)
    monkeypatch.setitem(ACTIVATIONS, "squared_relu", expression)  # type: ignore[arg-type]  # a dict, to readers a mapping
    return NetworkSettings(hidden_units=16).model_copy(update={"activation": "squared_relu"})


def test_a_new_one_acts_in_numpy_as_in_torch_and_exports(squared_relu: NetworkSettings, tmp_path: Path) -> None:
    actor = Actor(SPEC, squared_relu, torch.Generator().manual_seed(1))
    policy = ActingPolicy(SPEC, squared_relu.model_copy(update={"deterministic": True}))
    policy.load(actor.flatten())
    observations = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)

    acted = policy.act([observations], None, None, np.random.default_rng(1))
    with torch.no_grad():
        means, _, logits = actor.parts(actor([torch.from_numpy(observations)])[0])

    np.testing.assert_allclose(acted.continuous_sample, means.numpy(), rtol=1e-5, atol=1e-6)
    chosen = logits.log_softmax(1).gather(1, torch.from_numpy(acted.discrete).long())
    np.testing.assert_allclose(acted.log_probs[:, 2:], chosen.numpy(), rtol=1e-5, atol=1e-6)
    export_onnx(actor, SPEC, tmp_path / "policy.onnx")  # checks the model's answers against torch's


def test_a_new_one_learns_by_autograd(squared_relu: NetworkSettings) -> None:
    config = make_config().model_copy(update={"network_settings": squared_relu})
    ppo = PPO(config, SPEC, torch.device("cpu"), 1)
    before = ppo.flat_weights()

    ppo.update(random_rollout(SPEC, [32, 32], np.random.default_rng(1)), 0)

    assert not covers(ActorLayout.of(SPEC, squared_relu)), "nobody wrote its derivative by hand"
    assert not np.array_equal(ppo.flat_weights(), before)
