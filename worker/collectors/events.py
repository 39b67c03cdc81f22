"""Events that `CollectorPool.poll` returns to the learner, as frozen values."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ludus.collector import messages
from ludus.collector.segments import Segments
from ludus.collector.snapshots.state import State


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a collector listens. As an event: one that was started again after a death; `start` returns the first
    ones."""

    index: int
    """Number of the collector, from 0."""
    address: str
    """`host:port` as simulators dial it."""
    edge: bool = False
    """Whether edge collectors dial it, instead of simulators."""
    generation: int = 0
    """Counts the processes that were this collector, for tickets."""
    websocket: str | None = None
    """`host:port` for WebSockets; None: there is none."""

    @property
    def port(self) -> int:
        """The port of the address."""
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class CollectorDied:
    """A collector process ended unasked. Its blocks and reservations are back, and a new one is being started."""

    index: int
    """`EDGE_READER`: it was the edge reader; its places end with events of their own."""
    exit_code: int
    """As in `subprocess`: negative = killed by that signal."""
    reason: str
    """How the process ended, and its last error."""
    lost_steps: int
    """Answered steps that were never delivered and are granted again."""
    silent_seconds: float | None = None
    """How long it had said nothing when the trainer killed it for that; None: it ended by itself."""


@dataclass(frozen=True, slots=True)
class EdgeCollectorJoined:
    """An edge collector has taken a place."""

    index: int
    """Of the place: it is the index of a collector."""
    host: str
    """Name of its machine, as it says itself."""
    peer: str
    """Its address, as gRPC names it."""


@dataclass(frozen=True, slots=True)
class EdgeReaderFailed:
    """The edge reader that `CollectorPool.open_places` has started can't serve. It is not started again."""

    reason: str


@dataclass(frozen=True, slots=True)
class EdgeCollectorLeft:
    """An edge collector has ended, or was cut off. Its place is free again."""

    index: int
    reason: str
    lost_steps: int
    """As in `CollectorDied`."""


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
    """Episodes that ended."""

    behavior: str
    collector: int
    records: npt.NDArray[np.void]
    """One for each episode (`EPISODE_DTYPE`):

    `return`, `group_return`: undiscounted sums of the agent's own rewards (group rewards excluded), of group rewards;
    `length`: decisions; `outcome`: a value of `ludus.v1.Outcome`, 0 = not reported; `version`: the policy version that
    answered the episode's first decision; `parameter_set`: number of the environment parameters that the simulator had
    when the episode began; `closed`: number of segments of its next `SegmentsDelivered` that had closed by then; that
    comes next, where any had.
    """


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Snapshot of a collector for a checkpoint (`CollectorPool.hold`). It sends nothing else before `release`."""

    collector: int
    state: State
    """See `ludus.collector.snapshots.state`."""


CollectorEvent = (
    Endpoint
    | CollectorDied
    | EdgeCollectorJoined
    | EdgeCollectorLeft
    | EdgeReaderFailed
    | messages.CollectorLags
    | messages.BehaviorAnnounced
    | TeamAnnounced
    | messages.SimulatorConnected
    | messages.SimulatorStarted
    | messages.SimulatorLeft
    | messages.SimulatorProblem
    | SegmentsDelivered
    | RoundCollected
    | EpisodesEnded
    | messages.StepsPlayed
    | messages.MatchesEnded
    | messages.EvaluationEnded
    | messages.StatsReported
    | messages.TimesMeasured
    | HandedOver
)
