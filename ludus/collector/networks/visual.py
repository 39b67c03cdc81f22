"""Encoders of pictures in numpy (`worker.learning.networks.visual` describes them).

Pictures lie with their channels innermost: then a row of a kernel's window is one run of memory. A convolution copies
windows side by side, as many as stay in the cache, and is one product with its kernels.

Dimensions: `B` pictures, `C` channels, `H` height, `W` width, `U` units.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray
from ludus.collector.networks.convolutions import BLOCKS, BRIGHTEST, LEAK, PLAIN, RESIDUAL, STACKS, Shape, output_shape
from ludus.collector.networks.dense import Dense, Sections, swish

WINDOWS_BYTES = 1 << 19
"""Most bytes of windows for one product: they fit into the cache of a core beside its result."""
Layer = Callable[[FloatArray], FloatArray]


class VisualEncoder:
    """One picture of a behavior, encoded."""

    def __init__(self, encoder: str, shape: Shape, sections: Sections, name: str, *, of_bytes: bool) -> None:
        """`of_bytes`: pictures are uint8, of which 0..255 means 0..1."""
        self._brightest = np.float32(BRIGHTEST) if of_bytes else None
        self._layers: list[Layer] = []
        if encoder == RESIDUAL:
            for stack in range(len(STACKS)):
                first = f"{name}.layers.{stack * (2 + BLOCKS)}"
                self._layers += [Convolution(sections, first, 1, padding=1), max_pool]
                self._layers += [
                    ResidualBlock(sections, f"{name}.layers.{stack * (2 + BLOCKS) + 2 + block}")
                    for block in range(BLOCKS)
                ]
            self._layers.append(swish)
        else:
            for place, layer in enumerate(PLAIN[encoder]):
                self._layers += [Convolution(sections, f"{name}.layers.{2 * place}", layer.stride), leaky_relu]
        weight, bias = sections[f"{name}.dense.weight"], sections[f"{name}.dense.bias"]
        # torch flattens (C, H, W); here channels are innermost.
        weight = np.moveaxis(weight.reshape(-1, *output_shape(encoder, shape)), 1, 3).reshape(weight.shape)
        self._dense = Dense(weight, bias)
        self._last: Layer = relu if encoder == RESIDUAL else leaky_relu

    def __call__(self, pictures: NDArray[np.generic]) -> FloatArray:
        """Return the features `(B, U)` of pictures `(B, C, H, W)`."""
        count, channels, height, width = pictures.shape
        hidden = np.empty((count, height, width, channels), np.float32)
        for channel in range(channels):  # half the time of one assignment with moved axes
            hidden[..., channel] = pictures[:, channel]
        if self._brightest is not None:
            hidden /= self._brightest
        for layer in self._layers:
            hidden = layer(hidden)
        return self._last(self._dense(hidden.reshape(count, len(self._dense.weight))))


class Convolution:
    """A convolution of `(B, H, W, C)`, without an activation."""

    def __init__(self, sections: Sections, name: str, stride: int, *, padding: int = 0) -> None:
        """`padding` rows and columns of zeros are put around a picture."""
        weight = sections[f"{name}.weight"]  # (out, in, height, width)
        self._side, self._stride, self._padding = weight.shape[2], stride, padding
        self._kernels = np.ascontiguousarray(weight.transpose(2, 3, 1, 0).reshape(-1, len(weight)))
        self._bias = sections[f"{name}.bias"]
        self._windows = np.empty(0, np.float32)

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Return `(B, H', W', out)`, a new array."""
        if self._padding:
            inputs = padded(inputs, self._padding)
        pictures, height, width, channels = inputs.shape
        high, wide = ((size - self._side) // self._stride + 1 for size in (height, width))
        # For each place of the window: its rows, each one run of the picture's memory, copied as one value.
        run = self._side * channels
        step, row, column, one = inputs.strides
        strides = step, row * self._stride, column * self._stride, row
        rows_of_windows = np.dtype((np.void, run * one))
        every = np.ndarray((pictures, high, wide, self._side), rows_of_windows, inputs, strides=strides)
        size = self._side * run
        rows = max(WINDOWS_BYTES // (4 * wide * size), 1)
        outputs = np.empty((pictures * high * wide, self._kernels.shape[1]), np.float32)
        # Several whole pictures at once, or a part of the rows of one.
        together, part = max(rows // high, 1), min(rows, high)
        if self._windows.size < together * part * wide * size:
            self._windows = np.empty(together * part * wide * size, np.float32)
        for first in range(0, pictures, together):
            for top in range(0, high, part):
                chosen = every[first : first + together, top : top + part]
                windows = self._windows[: chosen.size * run]
                np.copyto(windows.view(rows_of_windows).reshape(chosen.shape), chosen)
                begin = (first * high + top) * wide
                end = begin + chosen.size // self._side
                np.matmul(windows.reshape(-1, size), self._kernels, out=outputs[begin:end])
        outputs += self._bias
        return outputs.reshape(pictures, high, wide, outputs.shape[1])


class ResidualBlock:
    """`x + conv(swish(conv(swish(x))))`, which keeps size and channels."""

    def __init__(self, sections: Sections, name: str) -> None:
        self._first = Convolution(sections, f"{name}.first", 1, padding=1)
        self._second = Convolution(sections, f"{name}.second", 1, padding=1)

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Return the input with the block's correction, a new array."""
        result = self._second(swish(self._first(swish(inputs.copy()))))
        result += inputs
        return result


def padded(inputs: FloatArray, padding: int) -> FloatArray:
    """Return pictures `(B, H, W, C)` with rows and columns of zeros around them."""
    pictures, height, width, channels = inputs.shape
    result = np.zeros((pictures, height + 2 * padding, width + 2 * padding, channels), np.float32)
    result[:, padding:-padding, padding:-padding] = inputs
    return result


def max_pool(inputs: FloatArray) -> FloatArray:
    """Return the largest of each 3x3 window with stride 2, of pictures `(B, H, W, C)`."""
    high, wide = ((size - 3) // 2 + 1 for size in inputs.shape[1:3])

    def from_place(place: int, count: int) -> slice:
        return slice(place, place + 2 * count - 1, 2)

    rows = np.maximum(inputs[:, from_place(0, high)], inputs[:, from_place(1, high)])
    np.maximum(rows, inputs[:, from_place(2, high)], out=rows)
    largest = np.maximum(rows[:, :, from_place(0, wide)], rows[:, :, from_place(1, wide)])
    np.maximum(largest, rows[:, :, from_place(2, wide)], out=largest)
    return largest


def leaky_relu(inputs: FloatArray) -> FloatArray:
    """Return `max(x, LEAK x)` in place of its argument."""
    np.maximum(inputs, inputs * np.float32(LEAK), out=inputs)
    return inputs


def relu(inputs: FloatArray) -> FloatArray:
    """Return `max(x, 0)` in place of its argument."""
    np.maximum(inputs, np.float32(0.0), out=inputs)
    return inputs
