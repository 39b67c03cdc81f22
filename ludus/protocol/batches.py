"""The decoded messages between simulators and collectors: batches of agents as columns.

Legend: N agents that wait for an action, M agents whose episode ended, C continuous actions, D discrete branches,
K choices of all branches together.
"""

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.uint8]


class Outcome(IntEnum):
    """The outcome of a game for an agent's side. The values are those of `ludus.v1.Outcome`."""

    UNSPECIFIED = 0
    WIN = 1
    DRAW = 2
    LOSS = 3


class Aggregation(IntEnum):
    """Aggregation of the values of a stat in one summary period, numbered as in `ludus.v1.Aggregation`."""

    AVERAGE = 1
    MOST_RECENT = 2
    SUM = 3
    HISTOGRAM = 4


class DecisionBatch(NamedTuple):
    """N agents of one behavior that wait for an action, as columns."""

    agent_ids: Ints
    """(N,), unique."""
    rewards: Floats
    """(N,): reward since the agent's previous decision; means nothing on the first decision of an episode."""
    observations: tuple[Array, ...]
    """One per ObservationSpec: (N, *shape), float32 or uint8."""
    action_masks: Bytes | None = None
    """(N, K), 1 = allowed. None: everything is allowed."""
    group_ids: Ints | None = None
    """(N,), 0 = no group. None: no agent has one."""
    group_rewards: Floats | None = None
    """(N,). None: zeros."""


class TerminalBatch(NamedTuple):
    """M agents of one behavior whose episode ended, as columns."""

    agent_ids: Ints
    """(M,), unique."""
    rewards: Floats
    """(M,): reward since the agent's previous decision."""
    observations: tuple[Array, ...]
    """The final ones: (M, *shape) per ObservationSpec."""
    truncated: npt.NDArray[np.bool_]
    """(M,): True where a limit cut the episode, False where the task ended."""
    group_ids: Ints | None = None
    group_rewards: Floats | None = None
    outcomes: Bytes | None = None
    """(M,) of `Outcome` values. None: none was reported."""


class BehaviorBatch(NamedTuple):
    """One behavior's part of a step. Terminals take effect before decisions."""

    behavior: str
    decisions: DecisionBatch | None
    terminals: TerminalBatch | None


_Batch = TypeVar("_Batch", DecisionBatch, TerminalBatch)


def rows_of(batch: _Batch, rows: npt.NDArray[np.bool_]) -> _Batch:
    """Return some rows of a batch."""
    columns = {name: column[rows] for name, column in batch._asdict().items() if isinstance(column, np.ndarray)}
    return batch._replace(**columns, observations=tuple(values[rows] for values in batch.observations))


class ActionBatch(NamedTuple):
    """Actions for N agents of one behavior."""

    behavior: str
    agent_ids: Ints | None
    """(N,). None: all agents of the step's decisions, in their order."""
    continuous: Floats
    """(N, C) in [-1, 1]."""
    discrete: Ints
    """(N, D), each below its branch's number of choices."""


class StatValue(NamedTuple):
    """One number for the run's metrics."""

    key: str
    value: float
    aggregation: Aggregation = Aggregation.AVERAGE
