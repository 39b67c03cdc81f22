"""Gymnasium spaces as behavior specs, and their values as columns.

Observations: Dict and Tuple (nested, too) give one observation per leaf, in the space's own order. A leaf is

    Box, uint8, 3 dimensions    an image, uint8; (height, width, channels) is turned into (channels, height, width)
    Box, uint8, 4 dimensions    stacked images, oldest first: their channels one behind the other
    Box, uint8, 2 dimensions    an image of one channel
    any other Box               a vector, float32, flattened
    Discrete, MultiDiscrete     one-hot vectors, one behind the other
    MultiBinary                 a vector of 0 and 1

Of an image's first and last dimension the smaller one counts channels, the last one where they are equal.

Actions: Box gives continuous actions, rescaled from [-1, 1] to its bounds where it has any; Discrete, MultiDiscrete and
MultiBinary (branches of 2) give discrete branches; Dict and Tuple join those of their leaves. Everything else raises
`UnsupportedSpace`.

Legend: N agents, C continuous actions, D discrete branches, K choices of all branches together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ludus.protocol.batches import Array, Bytes, Floats, Ints
from ludus.protocol.spec import ActionSpec, DimensionProperty, ObservationSpec

_IMAGE = (
    DimensionProperty.NONE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
)


class UnsupportedSpace(ValueError):
    """A space that has no counterpart in a behavior spec."""

    def __init__(self, space: "spaces.Space[Any]", path: tuple[Any, ...], use: str) -> None:
        where = "".join(f"[{key!r}]" for key in path)
        super().__init__(
            f"the {use} space{where} is {space}, which cannot be used: wrap the environment so that it has Box, "
            "Discrete, MultiDiscrete or MultiBinary spaces, or a Dict or Tuple of them (actions: no Box of integers)"
        )


@dataclass(frozen=True)
class _ObservationLeaf:
    """One observation: where it lies in the environment's value, and how a batch of it is converted."""

    path: tuple[Any, ...]
    spec: ObservationSpec
    convert: Callable[[Array], Array]
    """(N, *space.shape) -> (N, *spec.shape)."""


class ObservationEncoder:
    """Turns observations of a space into the columns of a batch."""

    def __init__(self, space: "spaces.Space[Any]") -> None:
        self._leaves = [_observation_leaf(leaf, path) for path, leaf in _leaves(space, (), "observation")]

    @property
    def specs(self) -> tuple[ObservationSpec, ...]:
        """One per leaf."""
        return tuple(leaf.spec for leaf in self._leaves)

    def batch(self, values: Any) -> tuple[Array, ...]:
        """Encode a value of the batched space, as vector environments return it."""
        return tuple(leaf.convert(np.asarray(_at(values, leaf.path))) for leaf in self._leaves)

    def stack(self, values: Sequence[Any]) -> tuple[Array, ...]:
        """Encode N values of the space; N >= 1."""
        if len(self._leaves) == 1 and not self._leaves[0].path:
            return (self._leaves[0].convert(np.stack(values)),)
        return tuple(leaf.convert(np.stack([_at(value, leaf.path) for value in values])) for leaf in self._leaves)


def flat_mask(mask: Any) -> Bytes | None:
    """Flatten an action mask (an array, or one array per branch) to (K,); None, which allows everything, stays."""
    if mask is None:
        return None
    parts = mask if isinstance(mask, tuple | list) else (mask,)
    return np.concatenate([np.asarray(part).reshape(-1) != 0 for part in parts]).astype(np.uint8)


def _leaves(
    space: "spaces.Space[Any]", path: tuple[Any, ...], use: str
) -> Iterator[tuple[tuple[Any, ...], "spaces.Space[Any]"]]:
    match space:
        case spaces.Dict():
            for key, child in space.spaces.items():
                yield from _leaves(child, (*path, key), use)
        case spaces.Tuple():
            for index, child in enumerate(space.spaces):
                yield from _leaves(child, (*path, index), use)
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            yield path, space
        case _:
            raise UnsupportedSpace(space, path, use)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _observation_leaf(space: "spaces.Space[Any]", path: tuple[Any, ...]) -> _ObservationLeaf:
    name = "/".join(str(key) for key in path)
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in {2, 3, 4}:
        return _image(space, path, name)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        sizes, start = _choices(space)
        spec = ObservationSpec((int(sizes.sum()),), name)
        return _ObservationLeaf(path, spec, lambda values: _one_hot(values, sizes, start))
    assert space.shape is not None
    spec = ObservationSpec((int(np.prod(space.shape, dtype=int)),), name)
    return _ObservationLeaf(path, spec, lambda values: values.reshape(len(values), -1).astype(np.float32))


def _image(space: spaces.Box, path: tuple[Any, ...], name: str) -> _ObservationLeaf:
    """Describe an image: (H, W), (H, W, C), (C, H, W) or a stack (S, H, W, C) or (S, C, H, W)."""
    stack, (first, middle, last) = space.shape[:-3], (1, *space.shape)[-3:]
    channels_last = len(space.shape) > 2 and last <= first
    channels, height, width = (last, first, middle) if channels_last else (first, middle, last)
    shape = (prod(stack) * channels, height, width)

    def convert(values: Array) -> Array:
        moved = np.moveaxis(values, -1, -3) if channels_last else values
        return moved.reshape(len(values), *shape)

    return _ObservationLeaf(path, ObservationSpec(shape, name, "uint8", dimension_properties=_IMAGE), convert)


def _choices(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number of choices of each branch, (D,), and the value of its first choice, (D,)."""
    sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec
    return np.array(sizes, np.int64).reshape(-1), np.array(space.start, np.int64).reshape(-1)


def _one_hot(values: Array, sizes: npt.NDArray[np.int64], start: npt.NDArray[np.int64]) -> Floats:
    """(N, *shape) -> (N, sum of sizes)."""
    rows = values.reshape(len(values), -1)
    encoded = np.zeros((len(rows), int(sizes.sum())), np.float32)
    columns = np.cumsum(sizes) - sizes + rows - start
    encoded[np.arange(len(rows))[:, None], columns] = 1
    return encoded


class ActionDecoder:
    """Turns columns of actions into values of an action space."""

    def __init__(self, space: "spaces.Space[Any]") -> None:
        self._space = space
        leaves = [leaf for _, leaf in _leaves(space, (), "action")]
        boxes = [leaf for leaf in leaves if isinstance(leaf, spaces.Box)]
        for box in boxes:
            if not np.issubdtype(box.dtype, np.floating):
                raise UnsupportedSpace(box, (), "action")
        branches = [size for leaf in leaves for size in _branches(leaf)]
        self.spec = ActionSpec(sum(int(np.prod(box.shape)) for box in boxes), tuple(branches))

    def batch(self, continuous: Floats, discrete: Ints) -> Any:
        """Decode (N, C) and (N, D) to a value of the batched space."""
        return _decode(self._space, _Cursor(continuous, discrete))

    def rows(self, continuous: Floats, discrete: Ints) -> list[Any]:
        """Decode (N, C) and (N, D) to N values of the space."""
        values = self.batch(continuous, discrete)
        return (
            list(values) if isinstance(values, np.ndarray) else [row(values, index) for index in range(len(discrete))]
        )


def row(values: Any, index: int) -> Any:
    """Return one value of a batch: of an array, or of a dictionary or tuple of batches."""
    if isinstance(values, dict):
        return {key: row(value, index) for key, value in values.items()}
    if isinstance(values, tuple | list):
        return tuple(row(value, index) for value in values)
    return values[index]


def _branches(space: "spaces.Space[Any]") -> list[int]:
    match space:
        case spaces.Discrete() | spaces.MultiDiscrete():
            return [int(size) for size in _choices(space)[0]]
        case spaces.MultiBinary():
            return [2] * int(np.prod(space.shape))
        case _:
            return []


@dataclass
class _Cursor:
    """Hands out the next columns."""

    continuous: Floats
    discrete: Ints

    def take(self, column: str, count: int) -> Array:
        values: Array = getattr(self, column)
        setattr(self, column, values[:, count:])
        return values[:, :count]


def _decode(space: "spaces.Space[Any]", cursor: _Cursor) -> Any:
    match space:
        case spaces.Dict():
            return {key: _decode(child, cursor) for key, child in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_decode(child, cursor) for child in space.spaces)
        case spaces.Box():
            values = _rescale(cursor.take("continuous", int(np.prod(space.shape))), space)
        case spaces.Discrete():
            return cursor.take("discrete", 1)[:, 0] + np.int64(space.start)
        case spaces.MultiDiscrete():
            sizes, start = _choices(space)
            values = (cursor.take("discrete", len(sizes)) + start).astype(space.dtype)
        case _:
            values = cursor.take("discrete", int(np.prod(space.shape or ()))).astype(space.dtype)
    return values.reshape(-1, *(space.shape or ()))


def _rescale(actions: Floats, space: spaces.Box) -> Array:
    """Map (N, C) from [-1, 1] to the bounds. Dimensions without two finite bounds get the action as it is."""
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    bounded = np.isfinite(low) & np.isfinite(high)
    # Without bounds the interval is [-1, 1] itself: its lower end is -1, its width 2.
    width = np.where(bounded, high - low, 2.0)
    values = np.where(bounded, low, -1.0) + (np.clip(actions, -1, 1) + 1) / 2 * width
    # Rounding may exceed a bound; a space with one bound still has that one.
    return np.clip(values, low, high).astype(space.dtype)
