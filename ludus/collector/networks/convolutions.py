"""The convolutions of each visual encoder, and the sizes of their weights. Needs neither torch nor numpy.

    fully_connected     none
    match3              35@3x3, 144@3x3
    simple              16@8x8 stride 4, 32@4x4 stride 2
    nature_cnn          32@8x8 stride 4, 64@4x4 stride 2, 64@3x3 (Mnih et al. 2015)
    resnet              three stacks of 16, 32, 32 channels, each: conv 3x3, max pool 3x3 stride 2, two residual blocks
                        of two convolutions 3x3 (Espeholt et al. 2018); all padded, so that a conv keeps the size

`worker.learning.networks.visual` builds torch modules of these tables, `ludus.collector.networks.visual` acts by them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MINIMUM_SIZES: Mapping[str, int] = {"fully_connected": 1, "match3": 5, "resnet": 15, "simple": 20, "nature_cnn": 36}
"""Visual encoders (`network_settings.vis_encode_type`), and the least height and width of a picture for each."""
DEFAULT_ENCODER = "simple"
"""The encoder of test servers, which have no configuration: the one that runs have by default."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution without padding."""

    channels: int
    """Of its output."""
    kernel: int
    """Height and width."""
    stride: int


PLAIN: Mapping[str, tuple[Convolution, ...]] = {
    "fully_connected": (),
    "match3": (Convolution(35, 3, 1), Convolution(144, 3, 1)),
    "simple": (Convolution(16, 8, 4), Convolution(32, 4, 2)),
    "nature_cnn": (Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)),
}
"""Encoders that are a chain of convolutions, each with its activation."""
LEAK = 0.01
"""Slope of LeakyReLU below 0."""
BRIGHTEST = 255.0
"""Of bytes."""
RESIDUAL = "resnet"
STACKS = (16, 32, 32)
"""Channels of the stacks of `resnet`."""
BLOCKS = 2
"""Residual blocks of a stack."""

Shape = tuple[int, int, int]
"""Channels, height, width."""


def convolved(shape: Shape, layer: Convolution) -> Shape:
    """Return the shape behind a convolution."""
    _, height, width = shape
    height, width = ((side - layer.kernel) // layer.stride + 1 for side in (height, width))
    return layer.channels, height, width


def pooled(shape: Shape) -> Shape:
    """Return the shape behind a max pool 3x3 with stride 2, without padding."""
    channels, height, width = shape
    return channels, (height - 3) // 2 + 1, (width - 3) // 2 + 1


def output_shape(encoder: str, shape: Shape) -> Shape:
    """Return the shape behind all convolutions of an encoder, for pictures of a shape."""
    if encoder == RESIDUAL:
        for channels in STACKS:
            shape = pooled((channels, *shape[1:]))
    else:
        for layer in PLAIN[encoder]:
            shape = convolved(shape, layer)
    return shape


def kernels(encoder: str, channels: int) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Yield the name and shape (out, in, height, width) of each convolution's weights, in order.

    The names are those of torch's modules: a number for each layer of a sequence, in which activations and pools count.
    """
    if encoder != RESIDUAL:
        for place, layer in enumerate(PLAIN[encoder]):
            yield f"{2 * place}", (layer.channels, channels, layer.kernel, layer.kernel)
            channels = layer.channels
        return
    for stack, outputs in enumerate(STACKS):
        first = stack * (2 + BLOCKS)
        yield f"{first}", (outputs, channels, 3, 3)
        for block in range(BLOCKS):
            for name in ("first", "second"):
                yield f"{first + 2 + block}.{name}", (outputs, outputs, 3, 3)
        channels = outputs
