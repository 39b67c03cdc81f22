"""Encoders of pictures, as ML-Agents builds them: (C, H, W) to one vector of `hidden_units`.

    fully_connected     flatten
    match3              conv 35@3x3, conv 144@3x3, each LeakyReLU; for boards
    simple              conv 16@8x8 stride 4, conv 32@4x4 stride 2, each LeakyReLU
    nature_cnn          conv 32@8x8 stride 4, 64@4x4 stride 2, 64@3x3, each LeakyReLU (Mnih et al. 2015)
    resnet              three of: conv 3x3 (16, 32, 32 channels, padded), max pool 3x3 stride 2,
                        two residual blocks [swish, conv 3x3, swish, conv 3x3]; then swish (Espeholt et al. 2018)

    a plug-in's         the layers that it returns (`ludus.config.encoder.EncoderConfig`)

Then all: linear to `hidden_units` (Kaiming normal, gain 1.41), LeakyReLU with slope 0.01 (resnet: ReLU).
Convolutions start as torch starts them: weights and biases uniform in `+-1 / sqrt(inputs of one output)`.

Pictures stay uint8 until here, where 0..255 becomes 0..1, as ML-Agents reads PNG. float32 ones are taken as they are.
"""

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ludus.config.encoder import EncoderConfig
from ludus.plugins import load_object
from worker.learning.networks.dense import kaiming_dense

DENSE_GAIN = 1.41
LEAK = 0.01
"""Slope of LeakyReLU below 0."""
BRIGHTEST = 255.0


class ResidualBlock(nn.Module):
    """`x + conv(swish(conv(swish(x))))`, which keeps size and channels."""

    def __init__(self, channels: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = convolution(channels, channels, 3, 1, generator, padding=1)
        self.second = convolution(channels, channels, 3, 1, generator, padding=1)

    def forward(self, inputs: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Return the input with the block's correction."""
        hidden = self.first(nn.functional.silu(inputs))
        return inputs + self.second(nn.functional.silu(hidden))  # type: ignore[no-any-return]  # modules return Any


class VisualEncoder(nn.Module):
    """One picture of a behavior, encoded. The `layers` are the documentation's, in order."""

    in_bfloat16 = False
    """Whether convolutions and products run in bfloat16; weights, derivatives and result stay float32.

    Of the class, all encoders of the process follow it (`worker.trainer.compilation`).
    """

    def __init__(
        self, encoder: str | EncoderConfig, shape: tuple[int, ...], units: int, generator: torch.Generator
    ) -> None:
        """`shape` is (channels, height, width); `BodyLayout.of` refuses pictures that are too small for an encoder.

        Raises PluginError where the encoder of a plug-in cannot be used.
        """
        super().__init__()
        channels = shape[0]
        layers: list[nn.Module]
        match encoder:
            case EncoderConfig():
                layers = list(load_object(encoder.implementation)(encoder, shape, generator))
            case "fully_connected":
                layers = []
            case "match3":
                layers = _convolutions(channels, [(35, 3, 1), (144, 3, 1)], generator)
            case "simple":
                layers = _convolutions(channels, [(16, 8, 4), (32, 4, 2)], generator)
            case "nature_cnn":
                layers = _convolutions(channels, [(32, 8, 4), (64, 4, 2), (64, 3, 1)], generator)
            case "resnet":
                layers = []
                for before, after in pairwise((channels, 16, 32, 32)):
                    layers += [convolution(before, after, 3, 1, generator, padding=1), nn.MaxPool2d(3, 2)]
                    layers += [ResidualBlock(after, generator), ResidualBlock(after, generator)]
                layers.append(nn.SiLU())
            case _:
                raise ValueError(f"no visual encoder is called {encoder!r}")
        sizes = _sizes(layers, shape)
        self.widest = max(sizes)
        """Elements of the largest layer's output for one picture."""
        self.dense = kaiming_dense(sizes[-1], units, DENSE_GAIN, generator)
        self._has_small_kernels = encoder == "resnet"
        last = nn.ReLU() if encoder == "resnet" else nn.LeakyReLU(LEAK)
        self.layers = nn.Sequential(*layers, nn.Flatten(), self.dense, last)

    def forward(self, pictures: Tensor) -> Float[Tensor, "B U"]:
        """Return the features of pictures (B, C, H, W), uint8 or float32."""
        # With the channels innermost a CPU takes half the time for many small kernels, and to differentiate large
        # pictures; to act with few large kernels it takes more.
        learns = pictures.is_cpu and torch.is_grad_enabled()
        order = torch.channels_last if self._has_small_kernels or learns else torch.contiguous_format
        pictures = scaled(pictures).contiguous(memory_format=order)
        with torch.autocast(pictures.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            features: Tensor = self.layers(pictures)
        return features.float()


def scaled(pictures: Tensor) -> Tensor:
    """Return pictures as an encoder sees them: float32, 0..255 as 0..1."""
    return pictures.float().div_(BRIGHTEST) if pictures.dtype == torch.uint8 else pictures


class _Convolution(nn.Conv2d):
    def reset_parameters(self) -> None:
        """Do nothing: torch's own initialisation draws from the global generator."""


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int, generator: torch.Generator, *, padding: int = 0
) -> nn.Conv2d:
    """Return a convolution that starts as torch's own do, drawn from the generator."""
    layer = _Convolution(inputs, outputs, kernel, stride, padding)
    bound = 1.0 / math.sqrt(inputs * kernel * kernel)
    assert layer.bias is not None
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def _convolutions(channels: int, layers: list[tuple[int, int, int]], generator: torch.Generator) -> list[nn.Module]:
    """Return convolutions of (channels, kernel, stride), each with its activation."""
    modules: list[nn.Module] = []
    for outputs, kernel, stride in layers:
        modules += [convolution(channels, outputs, kernel, stride, generator), nn.LeakyReLU(LEAK)]
        channels = outputs
    return modules


@torch.no_grad()
def _sizes(layers: list[nn.Module], shape: tuple[int, ...]) -> list[int]:
    """Return the number of elements of the input and behind each layer."""
    outputs = [torch.zeros(1, *shape)]
    for layer in layers:
        outputs.append(layer(outputs[-1]))
    return [output.numel() for output in outputs]
