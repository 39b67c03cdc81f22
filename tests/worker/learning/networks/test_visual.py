"""Encoders of pictures: their layers as documented, how they start, and what they take."""

import pytest
import torch
from torch import nn

from ludus.collector.visual_encoders import MINIMUM_SIZES
from worker.learning.networks.visual import VisualEncoder, scaled

# For pictures of 3 x 84 x 84: the elements of one picture before the last, dense layer.
# simple: (84 - 8) / 4 + 1 = 20, (20 - 4) / 2 + 1 = 9; nature_cnn: 20, 9, 7; match3: 82, 80;
# resnet: three pools, (84 - 3) // 2 + 1 = 41, 20, 9
FLAT = {
    "fully_connected": 3 * 84 * 84,
    "match3": 144 * 80 * 80,
    "simple": 32 * 9 * 9,
    "nature_cnn": 64 * 7 * 7,
    "resnet": 32 * 9 * 9,
}
CONVOLUTIONS = {
    "fully_connected": [],
    "match3": [(35, 3, 3, 1, 0), (144, 35, 3, 1, 0)],
    "simple": [(16, 3, 8, 4, 0), (32, 16, 4, 2, 0)],
    "nature_cnn": [(32, 3, 8, 4, 0), (64, 32, 4, 2, 0), (64, 64, 3, 1, 0)],
    "resnet": [
        *[(16, 3, 3, 1, 1), *[(16, 16, 3, 1, 1)] * 4],
        *[(32, 16, 3, 1, 1), *[(32, 32, 3, 1, 1)] * 4],
        *[(32, 32, 3, 1, 1), *[(32, 32, 3, 1, 1)] * 4],
    ],
}
"""Channels out and in, kernel, stride, padding of each."""


def make_encoder(encoder: str, shape: tuple[int, ...] = (3, 84, 84), units: int = 16) -> VisualEncoder:
    return VisualEncoder(encoder, shape, units, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("encoder", FLAT)
def test_layers_are_those_of_ml_agents(encoder: str) -> None:
    network = make_encoder(encoder)

    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    described = [
        (layer.out_channels, layer.in_channels, layer.kernel_size[0], layer.stride[0], int(layer.padding[0]))
        for layer in convolutions
    ]
    assert described == CONVOLUTIONS[encoder]
    assert (network.dense.in_features, network.dense.out_features) == (FLAT[encoder], 16)


@pytest.mark.parametrize("encoder", FLAT)
@pytest.mark.parametrize("extra", [(0, 0), (3, 0), (0, 2)])
def test_pictures_from_the_least_size_on_are_encoded(encoder: str, extra: tuple[int, int]) -> None:
    side = MINIMUM_SIZES[encoder]
    shape = (2, side + extra[0], side + extra[1])

    features = make_encoder(encoder, shape)(torch.rand(5, *shape))

    assert features.shape == (5, 16)
    assert features.isfinite().all()


@pytest.mark.parametrize("encoder", [encoder for encoder in FLAT if encoder != "fully_connected"])
def test_one_pixel_less_than_the_least_size_leaves_no_output(encoder: str) -> None:
    side = MINIMUM_SIZES[encoder] - 1
    layers = make_encoder(encoder).layers[:-3]  # what is before the dense layer

    with pytest.raises(RuntimeError, match=r"too small|[Kk]ernel size"):
        layers(torch.rand(1, 3, side, side))


@pytest.mark.parametrize("encoder", FLAT)
def test_weights_start_as_in_ml_agents(encoder: str) -> None:
    network = make_encoder(encoder, (3, 44, 44), units=64).requires_grad_(requires_grad=False)

    deviation = 1.41 * network.dense.in_features**-0.5
    assert float(network.dense.weight.std()) == pytest.approx(deviation, rel=0.05)
    assert not network.dense.bias.any()
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            bound = (layer.in_channels * layer.kernel_size[0] ** 2) ** -0.5  # torch's own: uniform in +-bound
            assert float(layer.weight.abs().max()) == pytest.approx(bound, rel=0.05)
            assert float(layer.weight.std()) == pytest.approx(bound / 3**0.5, rel=0.1)
            assert layer.bias is not None
            assert 0 < float(layer.bias.abs().max()) <= bound


def test_bytes_become_numbers_from_0_to_1_inside_the_network() -> None:
    picture = torch.arange(256, dtype=torch.uint8).repeat(2).view(1, 1, 16, 32)
    network = make_encoder("fully_connected", (1, 16, 32))

    torch.testing.assert_close(network(picture), network(picture.float() / 255))
    assert float(scaled(picture).max()) == 1.0
    assert picture.dtype == torch.uint8
    assert int(picture.max()) == 255, "what was given is as it was"


def test_float_pictures_are_taken_as_they_are() -> None:
    picture = torch.rand(1, 1, 16, 32)

    assert scaled(picture) is picture


@pytest.mark.parametrize("encoder", FLAT)
def test_bfloat16_changes_the_arithmetic_but_no_types(encoder: str) -> None:
    exact, rough = make_encoder(encoder, (3, 40, 40)), make_encoder(encoder, (3, 40, 40))
    rough.in_bfloat16 = True
    pictures = torch.randint(0, 256, (4, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))

    expected, features = exact(pictures), rough(pictures)
    features.sum().backward()

    assert features.dtype == torch.float32
    assert all(item.dtype == item.grad.dtype == torch.float32 for item in rough.parameters() if item.grad is not None)
    difference = (features - expected).detach().abs().max() / expected.detach().abs().max()
    assert 1e-6 < float(difference) < 0.03, "three digits"
