"""Events that `CollectorPool.poll` returns to the learner, as frozen values."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ludus.collector.messages import (
    EPISODE_DTYPE,
    BehaviorAnnounced,
    EvaluationEnded,
    GhostStepsPlayed,
    MatchesEnded,
    SimulatorConnected,
    SimulatorLeft,
    SimulatorProblem,
    SimulatorStarted,
    StatsReported,
)
from ludus.collector.segments import Segments
from ludus.collector.snapshots.state import State


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a collector listens."""

    index: int
    """Number of the collector, from 0."""
    address: str
    """`host:port` as simulators dial it."""

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class CollectorListening:
    """A collector serves simulators: one that was started again after a death, as `start` reports the first ones."""

    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class CollectorDied:
    """A collector process ended unasked. Its blocks and reservations are back, and a new one is being started."""

    index: int
    exit_code: int
    """As in `subprocess`: negative = killed by that signal."""
    reason: str
    """How the process ended, and its last error."""
    lost_steps: int
    """Answered steps that were never delivered and are granted again."""
    silent_seconds: float | None = None
    """How long it had said nothing when the trainer killed it for that; None: it ended by itself."""


@dataclass(frozen=True, slots=True)
class TeamAnnounced:
    """A simulator brought a team of a behavior that none had brought before. The behavior is announced first."""

    behavior: str
    team: int


@dataclass(frozen=True, slots=True)
class SegmentsDelivered:
    """Segments whose blocks now belong to the learner, until `CollectorPool.reclaim`."""

    behavior: str
    collector: int
    segments: Segments


@dataclass(frozen=True, slots=True)
class RoundCollected:
    """Every step of a round was delivered. Comes after the last of its `SegmentsDelivered`."""

    behavior: str
    round: int
    steps: int


@dataclass(frozen=True, slots=True)
class EpisodesEnded:
    """Episodes that ended, as columns of equal length."""

    behavior: str
    returns: npt.NDArray[np.float64]
    """Undiscounted sums of the agents' own rewards, group rewards excluded."""
    group_returns: npt.NDArray[np.float64]
    """Undiscounted sums of group rewards."""
    lengths: npt.NDArray[np.int64]
    """Decisions."""
    truncated: npt.NDArray[np.bool_]
    outcomes: npt.NDArray[np.uint8]
    """Values of `ludus.v1.Outcome`; 0 = not reported."""
    simulators: npt.NDArray[np.int64]
    agents: npt.NDArray[np.int64]
    versions: npt.NDArray[np.int64]
    """The policy version that answered each episode's first decision."""
    parameter_sets: npt.NDArray[np.int64]
    """Number of the environment parameters that the simulator had been told when the episode began."""
    closed: npt.NDArray[np.int64]
    """How many segments of its next `SegmentsDelivered` had closed by then; that comes next, where any had."""
    collector: int

    @classmethod
    def unpack(cls, behavior: str, collector: int, payload: memoryview) -> Self:
        """Read what a collector has packed."""
        records = np.frombuffer(payload, EPISODE_DTYPE)
        return cls(
            behavior=behavior,
            returns=records["return"],
            group_returns=records["group_return"],
            lengths=records["length"].astype(np.int64),
            truncated=records["truncated"],
            outcomes=records["outcome"],
            simulators=records["simulator"].astype(np.int64),
            agents=records["agent"].astype(np.int64),
            versions=records["version"],
            parameter_sets=records["parameter_set"].astype(np.int64),
            closed=records["closed"].astype(np.int64),
            collector=collector,
        )


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Snapshot of a collector for a checkpoint (`CollectorPool.hold`). It sends nothing else before `release`."""

    collector: int
    state: State
    """See `ludus.collector.snapshots.state`."""


CollectorEvent = (
    CollectorListening
    | CollectorDied
    | BehaviorAnnounced
    | TeamAnnounced
    | SimulatorConnected
    | SimulatorStarted
    | SimulatorLeft
    | SimulatorProblem
    | SegmentsDelivered
    | RoundCollected
    | EpisodesEnded
    | GhostStepsPlayed
    | MatchesEnded
    | EvaluationEnded
    | StatsReported
    | HandedOver
)
