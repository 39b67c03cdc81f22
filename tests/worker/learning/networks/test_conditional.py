"""Goal conditioning: one weight matrix for each goal."""

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from worker.learning.networks.conditional import ConditionalBody


def make_body(layers: int = 2, units: int = 8, inputs: int = 5) -> ConditionalBody:
    generator = torch.Generator().manual_seed(1)
    body = ConditionalBody(inputs, 3, units, layers, generator, activation="swish")
    return body.requires_grad_(requires_grad=False)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_last_layer_has_the_weights_that_each_rows_goal_makes(layers: int) -> None:
    body = make_body(layers)
    inputs, goals = torch.randn(4, 5), torch.randn(4, 3)
    body.bias += 0.3

    expected = []
    for row, goal in zip(inputs, goals, strict=True):
        hidden = row
        for layer in body.before.layers:
            hidden = F.silu(layer(hidden))
        hyper = goal
        for layer in body.hyper.layers:
            hyper = F.silu(layer(hyper))
        hyper = (hyper - hyper.mean()) / (hyper.var(correction=0) + 1e-5).sqrt()
        weights = body.weights(hyper).view(len(hidden), 8)
        expected.append(F.silu(hidden @ weights + body.bias))

    assert len(body.before.layers) == layers - 1
    assert len(body.hyper.layers) == 2
    torch.testing.assert_close(body(inputs, goals), torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_equal_observations_with_other_goals_have_other_features() -> None:
    body, inputs = make_body(), torch.ones(2, 5)

    features = body(inputs, torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))

    assert float((features[0] - features[1]).abs().max()) > 0.01


def test_weights_start_as_in_ml_agents() -> None:
    body = make_body(layers=2, units=64)

    # what makes the 64 x 64 weights: uniform in +-sqrt(1 / (64 * 64)); the hidden layers Kaiming normal with gain 1
    bound = math.sqrt(1 / (64 * 64))
    assert float(body.weights.weight.abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(body.weights.weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert float(body.hyper.layers[1].weight.std()) == pytest.approx(64**-0.5, rel=0.05)
    assert not body.weights.bias.any()
    assert not body.bias.any()
