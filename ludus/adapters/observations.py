"""Observations of Gymnasium's spaces as columns.

Dict and Tuple (nested, too) give one observation per leaf, in the space's own order. A leaf is

    Box, uint8, 3 dimensions    an image, uint8; (height, width, channels) is turned into (channels, height, width)
    Box, uint8, 4 dimensions    stacked images, oldest first: their channels one behind the other
    Box, uint8, 2 dimensions    an image of one channel
    any other Box               a vector, float32, flattened
    Discrete, MultiDiscrete     one-hot vectors, one behind the other
    MultiBinary                 a vector of 0 and 1

Of an image's first and last dimension the smaller one counts channels, the last one where they are equal.

Discrete, MultiDiscrete and MultiBinary refuse values outside of the space (GameMistake). Those outside of a Box are
taken as they are, and are a warning: no number changes its meaning by it.

Legend: N agents.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
from gymnasium import spaces

from ludus.adapters.spaces import choices, leaves
from ludus.protocol.batches import Array, Bytes, Floats
from ludus.protocol.spec import DimensionProperty, ObservationSpec
from ludus.sdk.values import array, entry, float32_of, logger, mistake_at, uint8_of

Parts: TypeAlias = tuple[Array, ...]
"""The leaves of an observation, (*space.shape) each."""

_IMAGE: Final = (
    DimensionProperty.NONE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
)
_TOLERANCE: Final = 1e-5
"""By which, relatively, a value may exceed the bounds of a Box without a warning: they are float32, games are not."""


class ObservationEncoder:
    """Turns observations of a space into the columns of a batch."""

    def __init__(self, space: "spaces.Space[Any]") -> None:
        """Raise UnsupportedSpace for a space that has no counterpart in a behavior."""
        self._leaves = [_leaf(leaf, path) for path, leaf in leaves(space, (), "observation")]

    @property
    def specs(self) -> tuple[ObservationSpec, ...]:
        """One per leaf."""
        return tuple(leaf.spec for leaf in self._leaves)

    def read(self, value: Any) -> Parts:
        """Copy a value of the space, whose arrays the environment may use again. Raises GameMistake."""
        return tuple(array(leaf.at(value), leaf.shape, leaf.what).copy() for leaf in self._leaves)

    def stack(self, values: Sequence[Parts]) -> tuple[Array, ...]:
        """Encode N values that were read; N >= 1. Raises GameMistake with the row."""
        columns = zip(*values, strict=True)
        return tuple(leaf.convert(np.stack(column)) for leaf, column in zip(self._leaves, columns, strict=True))

    def batch(self, values: Any, count: int) -> tuple[Array, ...]:
        """Encode a value of the batched space, as vector environments of `count` return it. Raises GameMistake."""
        columns = (array(leaf.at(values), (count, *leaf.shape), leaf.what, is_batch=True) for leaf in self._leaves)
        return tuple(leaf.convert(column) for leaf, column in zip(self._leaves, columns, strict=True))


class _Leaf(ABC):
    """One observation: where it lies in the environment's value, and how a batch of it is converted."""

    def __init__(self, space: "spaces.Space[Any]", path: tuple[Any, ...], spec: ObservationSpec) -> None:
        assert space.shape is not None, "leaves have a shape"
        self.shape = space.shape
        self.what = "the observation" + "".join(f"[{key!r}]" for key in path)
        self.spec = spec
        self.space = space
        self._path = path

    @abstractmethod
    def convert(self, values: Array) -> Array:
        """(N, *space.shape) -> (N, *spec.shape)."""

    def at(self, value: Any) -> Any:
        """Return this part of an observation."""
        what = "the observation"
        for key in self._path:
            value, what = entry(value, key, what), f"{what}[{key!r}]"
        return value


class _Vector(_Leaf):
    """A Box of numbers."""

    def __init__(self, space: spaces.Box, path: tuple[Any, ...], name: str) -> None:
        super().__init__(space, path, ObservationSpec((prod(space.shape),), name))
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        self._bounds: tuple[Array, Array] | None = (
            low - _TOLERANCE * np.maximum(1, np.abs(low)),
            high + _TOLERANCE * np.maximum(1, np.abs(high)),
        )
        if np.isinf(low).all() and np.isinf(high).all():
            self._bounds = None

    def convert(self, values: Array) -> Floats:
        """Flatten."""
        column = float32_of(values, self.what)
        if self._bounds is not None:
            low, high = self._bounds
            outside = (values < low) | (values > high)
            if outside.any():
                self._bounds = None  # one warning is enough
                remedy = "the run takes it as it is; widen the bounds, or clip what is observed"
                logger.warning(mistake_at(values, outside, self.what, f"outside of {self.space}: {remedy}"))
        return column.reshape(len(values), -1)


class _Choices(_Leaf):
    """A Discrete or a MultiDiscrete: one-hot; or a MultiBinary, whose two choices are one number."""

    def __init__(self, space: "spaces.Space[Any]", path: tuple[Any, ...], name: str) -> None:
        self._sizes, self._start = choices(space)
        self._is_binary = isinstance(space, spaces.MultiBinary)
        size = len(self._sizes) if self._is_binary else int(self._sizes.sum())
        super().__init__(space, path, ObservationSpec((size,), name))

    def convert(self, values: Array) -> Floats:
        """(N, *shape) -> (N, sum of sizes), or (N, D) of 0 and 1."""
        rows = values.reshape(len(values), -1)
        outside = (rows < self._start) | (rows >= self._start + self._sizes) | (rows != np.floor(rows))
        if outside.any():
            first = self._start[np.argwhere(outside)[0][1]]
            legal = f"{first} to {first + self._sizes[np.argwhere(outside)[0][1]] - 1}"
            raise mistake_at(values, outside.reshape(values.shape), self.what, f"{self.space} has {legal} there")
        if self._is_binary:
            return rows.astype(np.float32)
        encoded = np.zeros((len(rows), int(self._sizes.sum())), np.float32)
        columns = np.cumsum(self._sizes) - self._sizes + rows.astype(np.int64) - self._start
        encoded[np.arange(len(rows))[:, None], columns] = 1
        return encoded


class _Image(_Leaf):
    """An image: (H, W), (H, W, C), (C, H, W) or a stack (S, H, W, C) or (S, C, H, W)."""

    def __init__(self, space: spaces.Box, path: tuple[Any, ...], name: str) -> None:
        stack, (first, middle, last) = space.shape[:-3], (1, *space.shape)[-3:]
        self._channels_last = len(space.shape) > 2 and last <= first
        channels, height, width = (last, first, middle) if self._channels_last else (first, middle, last)
        shape = (prod(stack) * channels, height, width)
        super().__init__(space, path, ObservationSpec(shape, name, "uint8", dimension_properties=_IMAGE))

    def convert(self, values: Array) -> Bytes:
        """Move the channels to the front."""
        pixels = uint8_of(values, self.what)
        moved = np.moveaxis(pixels, -1, -3) if self._channels_last else pixels
        return moved.reshape(len(values), *self.spec.shape)


def _leaf(space: "spaces.Space[Any]", path: tuple[Any, ...]) -> _Leaf:
    name = "/".join(str(key) for key in path)
    if not isinstance(space, spaces.Box):
        return _Choices(space, path, name)
    is_image = space.dtype == np.uint8 and len(space.shape) in {2, 3, 4}
    return _Image(space, path, name) if is_image else _Vector(space, path, name)
