"""Gymnasium's spaces as parts of a behavior: their leaves, and choices as values of an action space.

Observations have a module of their own (`ludus.adapters.observations`). Actions: Box gives continuous actions, rescaled
from [-1, 1] to its bounds where it has any; Discrete, MultiDiscrete and MultiBinary (branches of 2) give discrete
branches; Dict and Tuple join those of their leaves. Everything else raises `UnsupportedSpace`, and so does a space of
no numbers.

Legend: N agents, C continuous actions, D discrete branches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ludus.protocol.batches import Array, Floats, Ints
from ludus.protocol.spec import ActionSpec
from ludus.sdk.values import LARGEST


class UnsupportedSpace(ValueError):
    """A space that has no counterpart in a behavior spec."""

    def __init__(self, space: object, path: tuple[Any, ...], use: str, problem: str = "which cannot be used") -> None:
        where = "".join(f"[{key!r}]" for key in path)
        kind = type(space)
        origin = "" if kind.__module__.startswith("gymnasium.") else f", a {kind.__name__} of {kind.__module__}"
        super().__init__(
            f"the {use} space{where} is {space}{origin}, {problem}: wrap the environment so that it has Box, Discrete, "
            "MultiDiscrete or MultiBinary spaces of gymnasium.spaces, or a Dict or Tuple of them (actions: no Box of "
            "integers)"
        )


def leaves(
    space: "spaces.Space[Any]", path: tuple[Any, ...], use: str
) -> Iterator[tuple[tuple[Any, ...], "spaces.Space[Any]"]]:
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


def choices(space: "spaces.Space[Any]") -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
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

    def __init__(self, space: "spaces.Space[Any]") -> None:
        self._space = space
        parts = [leaf for _, leaf in leaves(space, (), "action")]
        boxes = [leaf for leaf in parts if isinstance(leaf, spaces.Box)]
        for box in boxes:
            if not np.issubdtype(box.dtype, np.floating):
                raise UnsupportedSpace(box, (), "action")
        branches = [int(size) for leaf in parts for size in choices(leaf)[0]]
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
            sizes, start = choices(space)
            values = (cursor.take("discrete", len(sizes)) + start).astype(space.dtype)
        case _:
            values = cursor.take("discrete", int(np.prod(space.shape or ()))).astype(space.dtype)
    return values.reshape(-1, *(space.shape or ()))


def _rescale(actions: Floats, space: spaces.Box) -> Array:
    """Map (N, C) from [-1, 1] to the bounds. Dimensions without two finite bounds get the action as it is."""
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    bounded = (np.abs(low) < LARGEST) & (np.abs(high) < LARGEST)  # that largest number of float32 means "none", too
    # Without bounds the interval is [-1, 1] itself: its lower end is -1, its width 2.
    width = np.where(bounded, high - low, 2.0)
    values = np.where(bounded, low, -1.0) + (np.clip(actions, -1, 1) + 1) / 2 * width
    # Rounding may exceed a bound; a space with one bound still has that one.
    return np.clip(values, low, high).astype(space.dtype)
