"""Gymnasium's spaces as parts of a behavior: observations as columns, and choices as values of an action space.

Observations: Dict and Tuple (nested, too) give one observation per leaf, in the space's own order. A leaf is

    Box, uint8, 3 dimensions    an image, uint8; (height, width, channels) is turned into (channels, height, width)
    Box, uint8, 4 dimensions    stacked images, oldest first: their channels one behind the other
    Box, uint8, 2 dimensions    an image of one channel
    any other Box               a vector, float32, flattened
    Discrete, MultiDiscrete     one-hot vectors, one behind the other
    MultiBinary                 a vector of 0 and 1

Of an image's first and last dimension the smaller one counts channels, the last one where they are equal.
Discrete, MultiDiscrete and MultiBinary refuse values outside of the space (GameMistake). Those outside of a Box are
taken as they are, and are a warning: no number changes its meaning by it.

Actions: Box gives continuous actions, rescaled
from [-1, 1] to its bounds where it has any; Discrete, MultiDiscrete and MultiBinary (branches of 2) give discrete
branches; Dict and Tuple join those of their leaves. Everything else raises `UnsupportedSpace`, and so does a space of
no numbers.

Legend: N agents, C continuous actions, D discrete branches.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ludus.protocol.batches import Array, Bytes, Floats, Ints
from ludus.protocol.spec import ActionSpec, DimensionProperty, ObservationSpec
from ludus.sdk.values import LARGEST, array, entry, float32_of, logger, mistake_at, uint8_of

Space: TypeAlias = "spaces.Space[Any]"
Path: TypeAlias = tuple[Any, ...]
"""The keys that lead to a part of a space, and of its values."""


class UnsupportedSpace(ValueError):
    """A space that has no counterpart in a behavior spec."""

    def __init__(self, space: object, path: Path, use: str, problem: str = "which cannot be used") -> None:
        where = "".join(f"[{key!r}]" for key in path)
        kind = type(space)
        origin = "" if kind.__module__.startswith("gymnasium.") else f", a {kind.__name__} of {kind.__module__}"
        super().__init__(
            f"the {use} space{where} is {space}{origin}, {problem}: wrap the environment so that it has Box, Discrete, "
            "MultiDiscrete or MultiBinary spaces of gymnasium.spaces, or a Dict or Tuple of them (actions: no Box of "
            "integers)"
        )


def leaves(space: Space, path: Path, use: str) -> Iterator[tuple[Path, Space]]:
    """Iterate over the parts of a space, with their places. Raises UnsupportedSpace; `use` names the space there."""
    match space:
        case spaces.Dict() | spaces.Tuple():
            children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            if not space.spaces:
                raise UnsupportedSpace(space, path, use, "which has no entries")
            for key, child in children:
                yield from leaves(child, (*path, key), use)
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            if not prod(space.shape or ()):
                raise UnsupportedSpace(space, path, use, "which has no numbers")
            yield path, space
        case _:
            raise UnsupportedSpace(space, path, use)


def choices(space: Space) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number of choices of each branch, (D,), and the value of its first choice, (D,)."""
    match space:
        case spaces.Discrete():
            sizes, start = space.n, space.start
        case spaces.MultiDiscrete():
            sizes, start = space.nvec, space.start
        case spaces.MultiBinary():
            sizes, start = np.full(space.shape, 2), np.zeros(space.shape)
        case _:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.array(sizes, np.int64).reshape(-1), np.array(start, np.int64).reshape(-1)


class ActionDecoder:
    """Turns columns of actions into values of an action space."""

    def __init__(self, space: Space) -> None:
        self._space = space
        parts = [leaf for _, leaf in leaves(space, (), "action")]
        boxes = [leaf for leaf in parts if isinstance(leaf, spaces.Box)]
        for box in boxes:
            if not np.issubdtype(box.dtype, np.floating):
                raise UnsupportedSpace(box, (), "action")
        branches = [int(size) for leaf in parts for size in choices(leaf)[0]]
        self.spec = ActionSpec(sum(prod(box.shape) for box in boxes), tuple(branches))

    def batch(self, continuous: Floats, discrete: Ints) -> Any:
        """Decode (N, C) and (N, D) to a value of the batched space."""
        return _decode(self._space, _Cursor(continuous, discrete))

    def rows(self, continuous: Floats, discrete: Ints) -> list[Any]:
        """Decode (N, C) and (N, D) to N values of the space."""
        values = self.batch(continuous, discrete)
        return [row(values, index) for index in range(len(discrete))]


def row(values: Any, index: int) -> Any:
    """Return one value of a batch: of an array, or of a dictionary or tuple of batches."""
    if isinstance(values, dict):
        return {key: row(value, index) for key, value in values.items()}
    if isinstance(values, tuple | list):
        return tuple(row(value, index) for value in values)
    return values[index]


def rows_of(values: Any, rows: npt.NDArray[np.intp]) -> Any:
    """Return some values of a batch, as a batch: of an array, or of a dictionary or tuple of batches."""
    if isinstance(values, dict):
        return {key: rows_of(value, rows) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(rows_of(value, rows) for value in values)
    return np.asarray(values)[rows]


@dataclass
class _Cursor:
    """Hands out the next columns."""

    continuous: Floats
    discrete: Ints

    def take(self, column: str, count: int) -> Array:
        values: Array = getattr(self, column)
        setattr(self, column, values[:, count:])
        return values[:, :count]


def _decode(space: Space, cursor: _Cursor) -> Any:
    match space:
        case spaces.Dict():
            return {key: _decode(child, cursor) for key, child in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_decode(child, cursor) for child in space.spaces)
        case spaces.Box():
            values = cursor.take("continuous", prod(space.shape))
            low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
            # The largest number of float32 means "none", too. Dimensions without two bounds get the action as it is:
            # their interval is [-1, 1] itself, with the lower end -1 and the width 2.
            bounded = (np.abs(low) < LARGEST) & (np.abs(high) < LARGEST)
            width = np.where(bounded, high - low, 2.0)
            values = np.where(bounded, low, -1.0) + (np.clip(values, -1, 1) + 1) / 2 * width
            # Rounding may exceed a bound; a space with one bound still has that one.
            values = np.clip(values, low, high).astype(space.dtype)
        case spaces.Discrete():
            return cursor.take("discrete", 1)[:, 0] + np.int64(space.start)
        case spaces.MultiDiscrete():
            sizes, start = choices(space)
            values = (cursor.take("discrete", len(sizes)) + start).astype(space.dtype)
        case _:
            values = cursor.take("discrete", prod(space.shape or ())).astype(space.dtype)
    return values.reshape(-1, *(space.shape or ()))


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

    def __init__(self, space: Space) -> None:
        """Raise UnsupportedSpace for a space that has no counterpart in a behavior."""
        self._leaves: list[_Leaf] = []
        for path, leaf in leaves(space, (), "observation"):
            name = "/".join(map(str, path))
            if not isinstance(leaf, spaces.Box):
                self._leaves.append(_Choices(leaf, path, name))
            elif leaf.dtype == np.uint8 and len(leaf.shape) in {2, 3, 4}:
                self._leaves.append(_Image(leaf, path, name))
            else:
                self._leaves.append(_Vector(leaf, path, name))

    @property
    def specs(self) -> tuple[ObservationSpec, ...]:
        """One per leaf."""
        return tuple(leaf.spec for leaf in self._leaves)

    def read(self, value: object) -> Parts:
        """Copy a value of the space, whose arrays the environment may use again. Raises GameMistake."""
        return tuple(array(leaf.at(value), leaf.shape, leaf.what).copy() for leaf in self._leaves)

    def stack(self, values: Sequence[Parts]) -> tuple[Array, ...]:
        """Encode N values that were read; N >= 1. Raises GameMistake with the row."""
        columns = zip(*values, strict=True)
        return tuple(leaf.convert(np.stack(column)) for leaf, column in zip(self._leaves, columns, strict=True))

    def batch(self, values: object, count: int) -> tuple[Array, ...]:
        """Encode a value of the batched space, as vector environments of `count` return it. Raises GameMistake."""
        columns = (array(leaf.at(values), (count, *leaf.shape), leaf.what, is_batch=True) for leaf in self._leaves)
        return tuple(leaf.convert(column) for leaf, column in zip(self._leaves, columns, strict=True))


class _Leaf(ABC):
    """One observation: where it lies in the environment's value, and how a batch of it is converted."""

    def __init__(self, space: Space, path: Path, spec: ObservationSpec) -> None:
        assert space.shape is not None, "leaves have a shape"
        self.shape = space.shape
        self.what = "the observation" + "".join(f"[{key!r}]" for key in path)
        self.spec = spec
        self._space = space
        self._path = path

    @abstractmethod
    def convert(self, values: Array) -> Array:
        """(N, *space.shape) -> (N, *spec.shape)."""

    def at(self, value: object) -> object:
        """Return this part of an observation."""
        what = "the observation"
        for key in self._path:
            value, what = entry(value, key, what), f"{what}[{key!r}]"
        return value


class _Vector(_Leaf):
    """A Box of numbers."""

    def __init__(self, space: spaces.Box, path: Path, name: str) -> None:
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
                logger.warning(mistake_at(values, outside, self.what, f"outside of {self._space}: {remedy}"))
        return column.reshape(len(values), -1)


class _Choices(_Leaf):
    """A Discrete or a MultiDiscrete: one-hot; or a MultiBinary, whose two choices are one number."""

    def __init__(self, space: Space, path: Path, name: str) -> None:
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
            raise mistake_at(values, outside.reshape(values.shape), self.what, f"{self._space} has {legal} there")
        if self._is_binary:
            return rows.astype(np.float32)
        encoded = np.zeros((len(rows), int(self._sizes.sum())), np.float32)
        columns = np.cumsum(self._sizes) - self._sizes + rows.astype(np.int64) - self._start
        encoded[np.arange(len(rows))[:, None], columns] = 1
        return encoded


class _Image(_Leaf):
    """An image: (H, W), (H, W, C), (C, H, W) or a stack (S, H, W, C) or (S, C, H, W)."""

    def __init__(self, space: spaces.Box, path: Path, name: str) -> None:
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
