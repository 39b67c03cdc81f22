"""The values that games give: numbers, flags, masks and arrays, whatever library made them.

The only place where they become ours. What is unambiguous is taken: numbers of numpy and of other libraries, arrays of
one element, lists. For everything else GameMistake says what was given, and what to give; the caller adds the place.

Legend: D branches, K choices of all branches together.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ludus.protocol.batches import Array, Bytes, Floats
from ludus.sdk.errors import GameMistake

logger = logging.getLogger("ludus.sdk")
_warned: set[str] = set()
"""Of what warnings have been logged."""

LARGEST: Final = float(np.finfo(np.float32).max)
"""The largest number that float32, the type of the wire, holds."""
INT32: Final = np.iinfo(np.int32)
REAL: Final = "fiub"
"""Kinds of dtypes whose values are real numbers."""
_MOST_CHARACTERS: Final = 80


def described(value: object) -> str:
    """Return a value in words, for an error: short ones as they are."""
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    shape = getattr(value, "shape", None)
    if shape and hasattr(value, "dtype") and not type(value).__module__.startswith("gymnasium."):
        return f"an array of shape {tuple(shape)} and dtype {value.dtype}"
    text = " ".join(repr(value).split())
    text = text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
    if type(value).__module__.startswith("gymnasium.spaces"):
        return f"{text}, a space and no value of one"
    return f"{text} (of type {type(value).__name__})"


def number(value: object, what: str) -> float:
    """Return a reward or another number; arrays of one element are one. Raises GameMistake."""
    read = value if type(value) is float else float(_item(value, what, "give one number, 0.0 where there is none"))
    if not -LARGEST <= read <= LARGEST:  # NaN is neither
        raise GameMistake(f"{what} is {read}; give a finite number of float32, at most {LARGEST:.3g}")
    return read


def flag(value: object, what: str) -> bool:
    """Return whether an episode has ended, or the like. Raises GameMistake."""
    if type(value) is bool:
        return value
    return bool(_item(value, what, "give True or False", lambda item: item in {0, 1}))


def whole(value: object, what: str, low: int = INT32.min) -> int:
    """Return the number of an agent or a group. Raises GameMistake."""
    if type(value) is int:
        read = value
    else:
        read = int(_item(value, what, "give a whole number", lambda item: not isinstance(item, float)))
    if not low <= read <= INT32.max:
        raise GameMistake(f"{what} is {read}; give a whole number from {low} to {INT32.max}")
    return read


def info_of(value: object) -> Mapping[str, Any]:
    """Return what an environment tells beside an observation. Raises GameMistake."""
    if not isinstance(value, Mapping):
        raise GameMistake(f"the info is {described(value)}; give a dictionary, {{}} where there is nothing to tell")
    return value


def entry(value: Any, key: object, what: str) -> object:
    """Return a part of what a game gives in dictionaries, tuples or lists. Raises GameMistake."""
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        raise GameMistake(f"{what} has no {key!r}: it is {described(value)}; give every entry") from None


def mask(value: Any, branches: Sequence[int]) -> Bytes | None:
    """Return an action mask, an array or one array per branch, as (K,); None allows everything. Raises GameMistake.

    Games without discrete branches have no use for one.
    """
    if value is None or not branches:
        return None
    remedy = "give 1 for each choice that is allowed and 0 for each that is not"
    per_branch = isinstance(value, tuple | list) and len(value) == len(branches) and np.ndim(value[0]) == 1
    parts = [_read(part, "the action mask", remedy).reshape(-1) for part in (value if per_branch else [value])]
    flat = np.concatenate(parts)
    if len(flat) != sum(branches):
        sizes = f" ({' + '.join(map(str, branches))})" if len(branches) > 1 else ""
        raise GameMistake(f"the action mask has {len(flat)} entries, not {sum(branches)}{sizes}; {remedy}")
    if ((flat != 0) & (flat != 1)).any():
        strange = flat[(flat != 0) & (flat != 1)][0].item()
        raise GameMistake(f"the action mask has {strange}; {remedy}")
    for branch, (start, end) in enumerate(pairwise(np.cumsum((0, *branches)).tolist())):
        if not flat[start:end].any():
            raise GameMistake(f"the action mask forbids every choice of branch {branch}; allow at least one")
    return flat.astype(np.uint8)


def masks(value: Any, count: int, branches: Sequence[int], given: Any = None) -> Bytes:
    """Return the action masks of `count` agents, (N, K). Raises GameMistake, with the row where it is one agent's.

    `value` is an array of all agents', one mask for each agent, or a tuple with one such array for each branch.
    `given`, (N,), says whose masks `value` has; None: of all. The others are allowed everything.
    """
    chosen = np.ones(count, np.bool_) if given is None else np.asarray(given, np.bool_)
    whole = np.concatenate(value, -1) if isinstance(value, tuple) else value
    if type(whole) is np.ndarray and whole.shape == (count, sum(branches)) and whole.dtype.kind in REAL:
        columns = np.where(chosen[:, None], whole, 1)
        starts = np.cumsum((0, *branches[:-1]))
        if ((columns == 0) | (columns == 1)).all() and np.maximum.reduceat(columns, starts, axis=1).all():
            return columns.astype(np.uint8)
    every = np.ones((count, sum(branches)), np.uint8)  # one by one: where they are objects, or one of them is wrong
    for agent in np.flatnonzero(chosen).tolist():
        try:
            of_agent = tuple(part[agent] for part in value) if isinstance(value, tuple) else value[agent]
            allowed = mask(of_agent, branches)
        except GameMistake as mistake:
            raise GameMistake(str(mistake), agent) from None
        every[agent] = 1 if allowed is None else allowed
    return every


def array(
    value: object, shape: tuple[int, ...], what: str, *, says: tuple[int, ...] | None = None, is_batch: bool = False
) -> Array:
    """Return real numbers in an array of this shape; dimensions of 1 may be missing or too many.

    It may share its memory with `value`. The error, GameMistake, names `says` in place of `shape`, and both shapes as
    they are in a batch unless this is one.
    """
    if type(value) is np.ndarray and value.shape == shape and value.dtype.kind in REAL:
        return value
    says = shape if says is None else says
    read = _read(value, what, f"give an array of shape {says}")
    if read.shape == shape:
        return read
    if read.size and [size for size in read.shape if size != 1] == [size for size in shape if size != 1]:
        return read.reshape(shape)
    in_batch = "" if is_batch else f" (as a batch of one: {(1, *read.shape)}, not {(1, *says)})"
    raise GameMistake(f"{what} has shape {read.shape}, its spec says {says}{in_batch}: give both the same")


def float32_of(values: Array, what: str) -> Floats:
    """Return a copy of observations, (N, ...), as the wire has them. Raises GameMistake for what float32 does not hold.

    Whole numbers beyond 2^24, of which float32 holds every second one at most, are a warning.
    """
    with np.errstate(over="ignore"):
        column = values.astype(np.float32)
    finite = np.isfinite(column)
    if not finite.all():
        raise mistake_at(values, ~finite, what, f"give finite numbers of float32, at most {LARGEST:.3g}")
    if values.dtype.kind in "iu" and values.dtype.itemsize > 2 and values.size:
        inexact = column.astype(np.float64) != values
        if inexact.any():
            place = np.argwhere(inexact)[0]
            near = f"float32, its type on the way to the run, has {column[tuple(place)]:.0f} in its place"
            warn_once(what, f"{what} has {values[tuple(place)]}; {near}: give smaller numbers, or one for each digit")
    return column


def uint8_of(values: Array, what: str) -> Array:
    """Return pictures, (N, ...), as bytes. Raises GameMistake for values that are none."""
    if values.dtype == np.uint8:
        return values
    fits = (values >= 0) & (values <= 255) & (values == np.floor(values))
    if not fits.all():
        raise mistake_at(values, ~fits, what, "give whole numbers from 0 to 255, or declare a space of float32")
    return values.astype(np.uint8)


def mistake_at(values: Array, wrong: Array, what: str, remedy: str) -> GameMistake:
    """Return the mistake of the first value, (N, ...), that is wrong."""
    row, *place = np.argwhere(wrong)[0].tolist()
    where = f" at {place}" if place else ""
    return GameMistake(f"{what} has {values[(row, *place)]}{where}; {remedy}", row)


def warn_once(what: str, sentence: str) -> None:
    """Log a warning, the first one about `what` in this process."""
    if what not in _warned:
        _warned.add(what)
        logger.warning(sentence)


def _item(value: object, what: str, remedy: str, fits: Callable[[float], bool] = lambda _: True) -> float:
    """Return the only number of a value."""
    read = _read(value, what, remedy)
    if read.size != 1 or not fits(read.item()):
        raise GameMistake(f"{what} is {described(value)}; {remedy}")
    item: float = read.item()
    return item


def _read(value: object, what: str, remedy: str) -> Array:
    """Return an array of real numbers."""
    try:
        read = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors on a GPU, or with gradients
        raise GameMistake(f"{what} is {described(value)}, which is no array of numbers; {remedy}") from error
    if read.dtype.kind not in REAL:
        kind = "" if read.dtype.kind in "OU" and not read.ndim else f" of dtype {read.dtype}"
        raise GameMistake(f"{what} is {described(value)}{kind}; {remedy}")
    return read
