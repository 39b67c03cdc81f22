"""A demonstration: transitions of one behavior as columns, in the order in which they happened.

The rows lie in *pieces*, one after the other: each is an episode, or a part of one. Row t holds the observation s_t
and the action a_t that was taken there; the observation that followed is the next row's, and for the last row of a
piece it is the piece's final observation, which is never a row.

Legend: n rows, E pieces, C continuous columns, D discrete branches, K choices of all branches together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from ludus.protocol.batches import Array, Bytes, Floats, Ints
from ludus.protocol.spec import BehaviorSpec, ObservationSpec

if TYPE_CHECKING:
    from ludus.schemas import DemonstrationStatistics, Spread

Bools: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = npt.NDArray[np.int64]

ROW_COLUMNS: Final = ("continuous", "discrete", "rewards", "terminated", "truncated")
"""Columns with an entry for each row."""
OPTIONAL_COLUMNS: Final[Mapping[str, int]] = {"group_rewards": 0, "group_ids": 0, "action_masks": 1}
"""Columns with an entry for each row that may be None -> the value that None stands for."""
ACTION_TOLERANCE = 1e-6
"""Tolerance for continuous actions outside [-1, 1], by rounding."""


class DemonstrationError(ValueError):
    """A demonstration, or its file, cannot be used. The message has the file, the position in it, and the remedy."""

    def __init__(self, problem: str, path: Path | None = None, position: int | None = None) -> None:
        where = "" if position is None else f", byte {position:,}"
        super().__init__(problem if path is None else f"{path}{where}: {problem}")
        self.problem = problem
        self.path = path
        self.position = position
        """Offset in the file, where one is to blame."""


@dataclass(frozen=True, eq=False)
class Demonstration:
    """Columns of transitions. Raises `DemonstrationError` for wrong shapes, dtypes and values."""

    spec: BehaviorSpec
    observations: tuple[Array, ...]
    """One per ObservationSpec: (n, *shape), float32 or uint8."""
    continuous: Floats
    """(n, C) in [-1, 1]."""
    discrete: Ints
    """(n, D), each below its branch's number of choices."""
    rewards: Floats
    """(n,): the agent's own, for the step from this row to the next."""
    terminated: Bools
    """(n,): the task itself ended with this step. True on last rows of pieces only."""
    truncated: Bools
    """(n,): a limit cut the episode after this step. A last row that is neither is where the recording stopped."""
    starts: Rows
    """(E,): the first row of each piece; the first is 0, every piece has a row."""
    final_observations: tuple[Array, ...]
    """One per ObservationSpec: (E, *shape), the observation after each piece's last row."""
    from_start: Bools
    """(E,): the piece begins where its episode began."""
    group_rewards: Floats | None = None
    """(n,): shared with the agent's group, beside `rewards`. None: zeros."""
    group_ids: Ints | None = None
    """(n,): the agent's group, 0 = none. None: no agent has one."""
    action_masks: Bytes | None = None
    """(n, K), 1 = allowed. None: everything was allowed."""

    def __post_init__(self) -> None:
        rows, pieces, actions = self.steps, self.pieces, self.spec.actions
        if not rows:
            raise DemonstrationError("it holds no transitions; record at least one step and its outcome")
        columns: Mapping[str, tuple[str, tuple[int, ...]]] = {
            "continuous": ("float32", (rows, actions.continuous_size)),
            "discrete": ("int32", (rows, len(actions.discrete_branches))),
            "rewards": ("float32", (rows,)),
            "terminated": ("bool", (rows,)),
            "truncated": ("bool", (rows,)),
            "starts": ("int64", (pieces,)),
            "from_start": ("bool", (pieces,)),
            "group_rewards": ("float32", (rows,)),
            "group_ids": ("int32", (rows,)),
            "action_masks": ("uint8", (rows, actions.mask_size)),
        }
        for name, (dtype, shape) in columns.items():
            if name not in OPTIONAL_COLUMNS or getattr(self, name) is not None:
                _check_column(name, getattr(self, name), dtype, shape)
        for name, length in (("observations", rows), ("final_observations", pieces)):
            values = getattr(self, name)
            if len(values) != len(self.spec.observations):
                raise DemonstrationError(f"it has {len(values)} {name}, its spec has {len(self.spec.observations)}")
            for index, (array, expected) in enumerate(zip(values, self.spec.observations, strict=True)):
                what = _named(expected, index) if name == "observations" else f"final {_named(expected, index)}"
                _check_column(what, array, expected.dtype, (length, *expected.shape))
        if not pieces or self.starts[0] != 0 or (np.diff(self.starts) < 1).any() or self.starts[-1] >= rows:
            raise DemonstrationError("starts must begin with 0 and grow, below the number of rows")
        inside = np.ones(rows, np.bool_)
        inside[self.ends] = False
        wrong = np.argwhere((self.terminated & self.truncated) | (inside & (self.terminated | self.truncated)))
        if len(wrong):
            raise DemonstrationError(
                f"row {wrong[0][0]} ends an episode, but is not a piece's last row, or is terminated and truncated at "
                "once"
            )
        wrong = np.argwhere(np.abs(self.continuous) > 1 + ACTION_TOLERANCE)
        if len(wrong):
            row, column = wrong[0].tolist()
            value = self.continuous[row, column]
            raise DemonstrationError(f"continuous action {column} is {value:g} in row {row}; it must lie in [-1, 1]")
        branches = np.array(actions.discrete_branches, np.int64)
        wrong = np.argwhere((self.discrete < 0) | (self.discrete >= branches))
        if len(wrong):
            row, branch = wrong[0].tolist()
            raise DemonstrationError(
                f"branch {branch} has choice {self.discrete[row, branch]} in row {row}; "
                f"it has the choices 0 to {branches[branch] - 1}"
            )

    @property
    def steps(self) -> int:
        """`n`, the number of transitions."""
        return len(self.rewards)

    @property
    def pieces(self) -> int:
        """`E`."""
        return len(self.starts)

    @property
    def lengths(self) -> Rows:
        """(E,): rows of each piece."""
        return np.diff(self.starts, append=self.steps)

    @property
    def ends(self) -> Rows:
        """(E,): the last row of each piece."""
        return self.starts + self.lengths - 1

    @property
    def complete(self) -> Bools:
        """(E,): the piece is a whole episode, from its first step to its end."""
        return self.from_start & (self.terminated | self.truncated)[self.ends]

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """(E,): undiscounted sum of the agent's own rewards in each piece."""
        return np.add.reduceat(self.rewards.astype(np.float64), self.starts)

    def pick(self, pieces: Sequence[int]) -> "Demonstration":
        """Return the pieces with these numbers, in this order."""
        chosen = np.asarray(pieces, np.int64).reshape(-1)
        if not len(chosen) or chosen.min() < 0 or chosen.max() >= self.pieces:
            raise DemonstrationError(f"pieces {list(pieces)} were asked for; there are {self.pieces}, from 0 on")
        lengths = self.lengths[chosen]
        rows = np.concatenate([np.arange(start, stop) for start, stop in self._bounds()[chosen].tolist()])
        return self._select(
            rows,
            starts=np.cumsum(lengths) - lengths,
            final_observations=tuple(values[chosen] for values in self.final_observations),
            from_start=self.from_start[chosen],
        )

    def subsample(self, count: int, seed: int) -> "Demonstration":
        """Return `count` single transitions, drawn without replacement, in their order: pieces of one row each.

        Equal arguments give equal transitions. The result has no complete episodes, unless they had one step.
        """
        if not 1 <= count <= self.steps:
            raise DemonstrationError(f"{count} transitions were asked for; there are {self.steps}")
        return self._transitions(np.sort(np.random.default_rng(seed).choice(self.steps, count, replace=False)))

    def pick_episodes(self, count: int, seed: int | None = None) -> "Demonstration":
        """Return the first `count` complete episodes; with a seed, as many that are drawn, in their order.

        Equal arguments give equal episodes. Pieces that are no complete episodes are left out.
        """
        complete = np.flatnonzero(self.complete)
        if not 1 <= count <= len(complete):
            raise DemonstrationError(f"{count} complete episodes were asked for; there are {len(complete)}")
        if seed is None:
            return self.pick(complete[:count].tolist())
        return self.pick(np.sort(np.random.default_rng(seed).choice(complete, count, replace=False)).tolist())

    def every(self, interval: int, seed: int | None = None) -> "Demonstration":
        """Return every `interval`-th transition of each piece: pieces of one row each (Ho & Ermon 2016, section 6).

        The first of each piece is its first transition; with a seed, one of its first `interval`, drawn for each piece.
        A piece that ends before its first one gives none.
        """
        if interval < 1:
            raise DemonstrationError(f"every {interval}. transition was asked for; it must be every 1. at least")
        offsets = np.zeros(self.pieces, np.int64)
        if seed is not None:
            offsets = np.random.default_rng(seed).integers(interval, size=self.pieces)
        rows = [
            np.arange(start + offset, stop, interval)
            for (start, stop), offset in zip(self._bounds().tolist(), offsets.tolist(), strict=True)
        ]
        chosen = np.concatenate(rows)
        if not len(chosen):
            raise DemonstrationError(
                f"every {interval}. transition from the drawn ones on leaves none: the longest piece has "
                f"{self.lengths.max()}; leave the seed out, or take a smaller interval"
            )
        return self._transitions(chosen)

    def _transitions(self, rows: Rows) -> "Demonstration":
        """Return single rows as pieces of their own."""
        return self._select(
            rows,
            starts=np.arange(len(rows)),
            final_observations=self.next_observations(rows),
            from_start=np.isin(rows, self.starts[self.from_start]),
        )

    def next_observations(self, rows: Rows) -> tuple[Array, ...]:
        """Return the observations after these rows."""
        last = np.isin(rows, self.ends)
        piece = np.searchsorted(self.starts, rows, side="right") - 1
        # A last row has no following row: row 0 stands in for it, until the final observation replaces it.
        following = np.where(last, 0, rows + 1)
        columns = []
        for values, finals in zip(self.observations, self.final_observations, strict=True):
            column = values[following]
            column[last] = finals[piece[last]]
            columns.append(column)
        return tuple(columns)

    def _bounds(self) -> Rows:
        """(E, 2): first row, and the one after the last."""
        return np.stack([self.starts, self.starts + self.lengths], 1)

    def _select(
        self, rows: Rows, *, starts: Rows, final_observations: tuple[Array, ...], from_start: Bools
    ) -> "Demonstration":
        columns: Any = {name: getattr(self, name) for name in (*ROW_COLUMNS, *OPTIONAL_COLUMNS)}
        return replace(
            self,
            observations=tuple(values[rows] for values in self.observations),
            starts=starts,
            final_observations=final_observations,
            from_start=from_start,
            **{name: column[rows] for name, column in columns.items() if column is not None},
        )


def merge(demonstrations: Sequence[Demonstration]) -> Demonstration:
    """Return all pieces of all demonstrations, one behind the other, under the first one's spec.

    Raises `DemonstrationError` when there is none, or when they do not fit each other.
    """
    if not demonstrations:
        raise DemonstrationError("there is no demonstration to merge")
    first = demonstrations[0]
    for demonstration in demonstrations[1:]:
        check_fit(demonstration.spec, first.spec, whose="the first demonstration")
        pairs = zip(demonstration.spec.observations, first.spec.observations, strict=True)
        for index, (observation, expected) in enumerate(pairs):
            if observation.dtype != expected.dtype:
                raise DemonstrationError(
                    f"{_named(observation, index)} is {observation.dtype}, in the first demonstration it is "
                    f"{expected.dtype}; they cannot be merged into one file"
                )
    if len(demonstrations) == 1:
        return first
    offsets = np.cumsum([0, *(demonstration.steps for demonstration in demonstrations[:-1])])

    def joined(name: str) -> Any:
        return np.concatenate([getattr(demonstration, name) for demonstration in demonstrations])

    def columns(name: str) -> tuple[Array, ...]:
        parts = (getattr(demonstration, name) for demonstration in demonstrations)
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    def filled(name: str, default: int) -> Any:
        """Join an optional column; where one lacks it, `default` stands in. None if all lack it."""
        parts = [getattr(demonstration, name) for demonstration in demonstrations]
        example = next((part for part in parts if part is not None), None)
        if example is None:
            return None
        for index, demonstration in enumerate(demonstrations):
            if parts[index] is None:
                parts[index] = np.full((demonstration.steps, *example.shape[1:]), default, example.dtype)
        return np.concatenate(parts)

    return Demonstration(
        spec=first.spec,
        observations=columns("observations"),
        starts=np.concatenate([part.starts + offset for part, offset in zip(demonstrations, offsets, strict=True)]),
        final_observations=columns("final_observations"),
        from_start=joined("from_start"),
        **{name: joined(name) for name in ROW_COLUMNS},
        **{name: filled(name, default) for name, default in OPTIONAL_COLUMNS.items()},
    )


def stack_masks(masks: Sequence[Bytes | None], spec: BehaviorSpec) -> Bytes | None:
    """Return (n, K) masks of rows, of which None allows everything; None if all do."""
    if all(mask is None for mask in masks):
        return None
    everything = np.ones(spec.actions.mask_size, np.uint8)
    return np.stack([everything if mask is None else mask for mask in masks])


def check_fit(
    shown: BehaviorSpec, behavior: BehaviorSpec, whose: str | None = None, what: str = "the demonstration"
) -> None:
    """Raise `DemonstrationError`, with both shapes, unless the specs have the same observations and actions.

    Names, types and dimension properties of observations are not compared (ML-Agents does not either), nor are dtypes:
    an image of uint8 and one of float32 are the same to a network. `what` and `whose` name the two in the message.
    """
    owner = whose or f"behavior {behavior.name!r}"
    if shown.actions != behavior.actions:
        raise DemonstrationError(
            f"{what} has {_actions(shown)}, {owner} has {_actions(behavior)}; "
            "record it again with the behavior's actions"
        )
    if len(shown.observations) != len(behavior.observations):
        raise DemonstrationError(
            f"{what} has {len(shown.observations)} observations {_shapes(shown)}, "
            f"{owner} has {len(behavior.observations)} {_shapes(behavior)}; record it with the behavior's sensors"
        )
    for index, (observation, sensor) in enumerate(zip(shown.observations, behavior.observations, strict=True)):
        if observation.shape != sensor.shape:
            raise DemonstrationError(
                f"{_named(observation, index)} of {what} has shape {observation.shape}, "
                f"{_named(sensor, index)} of {owner} has shape {sensor.shape}; record it with the behavior's sensors"
            )


def _check_column(name: str, values: Array, dtype: str, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise DemonstrationError(f"{name} has shape {values.shape}, not {shape}")
    if values.dtype != np.dtype(dtype):
        raise DemonstrationError(f"{name} has dtype {values.dtype}, not {dtype}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise DemonstrationError(f"{name} holds a value that is not finite, in row {row}; leave that episode out")


def _named(observation: ObservationSpec, index: int) -> str:
    return f"observation {index}" + (f" ({observation.name!r})" if observation.name else "")


def _actions(spec: BehaviorSpec) -> str:
    return f"{spec.actions.continuous_size} continuous actions and branches {list(spec.actions.discrete_branches)}"


def _shapes(spec: BehaviorSpec) -> str:
    return ", ".join(str(observation.shape) for observation in spec.observations)


def thin(
    demonstration: Demonstration,
    *,
    episodes: int | None = None,
    every: int | None = None,
    count: int | None = None,
    seed: int | None = None,
) -> Demonstration:
    """Return part of a demonstration: `episodes` of it, and of these every `every`-th transition, or `count` of them.

    As `Demonstration.pick_episodes`, `every` and `subsample`; the seed of the latter is 0 if none is given.
    """
    if episodes is not None:
        demonstration = demonstration.pick_episodes(episodes, seed)
    if every is not None:
        demonstration = demonstration.every(every, seed)
    if count is not None:
        demonstration = demonstration.subsample(count, seed or 0)
    return demonstration


BINS = 20
"""Equal bins over [-1, 1] in the histogram of a continuous action; the last one includes 1."""


def inspect(demonstration: Demonstration) -> "DemonstrationStatistics":
    """Return the statistics of a demonstration."""
    from ludus.schemas import DemonstrationStatistics  # noqa: PLC0415  processes that only record do not need them

    complete = demonstration.complete
    actions = demonstration.spec.actions
    return DemonstrationStatistics(
        transitions=demonstration.steps,
        episodes=int(complete.sum()),
        fragments=int((~complete).sum()),
        terminated=int(demonstration.terminated.sum()),
        truncated=int(demonstration.truncated.sum()),
        returns=_spread(demonstration.returns[complete]),
        lengths=_spread(demonstration.lengths[complete].astype(np.float64)),
        continuous=tuple(
            tuple(np.histogram(column.clip(-1, 1), BINS, (-1.0, 1.0))[0].tolist())
            for column in demonstration.continuous.T
        ),
        discrete=tuple(
            tuple(np.bincount(column, minlength=choices).tolist())
            for column, choices in zip(demonstration.discrete.T, actions.discrete_branches, strict=True)
        ),
    )


def _spread(values: npt.NDArray[np.float64]) -> "Spread | None":
    if not len(values):
        return None
    from ludus.schemas import Spread  # noqa: PLC0415  likewise

    mean, std = float(values.mean()), float(values.std())
    return Spread(mean=mean, std=std, minimum=float(values.min()), maximum=float(values.max()))
