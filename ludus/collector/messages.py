"""The wire format of the channel between learner and collector, and the messages of a collector to its learner.

Those of the learner are in `ludus.collector.commands`. A message is one frozen class, which both sides use. It travels
as the name of its class, a line break, and its fields as JSON. Segments, episodes, blocks and snapshots travel packed.
Messages that the pool handles name a behavior by the number of its *runner*. Messages that the pool passes on to the
trainer as they are (`worker.collectors.events`) name it by its name.
"""

import json
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import ClassVar, Final

import numpy as np

from ludus.collector.channel import Frame
from ludus.config.values import Section
from ludus.protocol.batches import Aggregation, Outcome
from ludus.protocol.spec import BehaviorSpec
from ludus.reading import read_record


class Kind(IntEnum):
    """Frame kinds."""

    MESSAGE = 0
    BLOCKS = 1
    """Numbers of arena blocks that a runner may write."""
    SEGMENTS = 2
    EPISODES = 3
    RESTORED = 4
    """Snapshots of a former attempt, for a collector that begins."""
    SNAPSHOTS = 5
    """The answer to `Hold` (`snapshots.state.pack`)."""
    RECORDING = 6
    """A part of an edge collector's recording: `.` or `!` for the last one, the file's name, a line break, bytes."""


_JSON = json.JSONEncoder(
    separators=(",", ":"),
    default=lambda value: value.model_dump(mode="json") if isinstance(value, Section) else asdict(value),
)
ALIVE_SECONDS = 1.0
"""Period of the message `Alive`."""


@dataclass(frozen=True, slots=True)
class Message:
    """A control message: its subclasses are frozen dataclasses whose fields are JSON values."""

    classes: ClassVar[dict[str, type["Message"]]] = {}
    """All kinds of messages, by name."""

    def __init_subclass__(cls) -> None:
        """Register a kind of message."""
        Message.classes[cls.__name__] = cls

    def pack(self) -> bytes:
        """Serialise the message."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return f"{type(self).__name__}\n{_JSON.encode(values)}".encode()


def read(frame: Frame) -> Message:
    """Read the output of `Message.pack`."""
    name, _, fields = frame.payload.partition(b"\n")
    return read_record(Message.classes[name.decode()], json.loads(fields))


EDGE_VERSION: Final = 7
"""Of the messages between an edge collector and its attempt. Both speak the same one, or the collector is refused."""


@dataclass(frozen=True, slots=True)
class Introduction(Message):
    """The first message of an edge collector."""

    version: int
    """Of the protocol of edge collectors: `EDGE_VERSION`."""
    session_id: str
    """Drawn once per process."""
    host: str
    """Name of its machine, for people."""


@dataclass(frozen=True, slots=True)
class PlaceTaken(Message):
    """The edge reader to the pool: an edge collector has taken this place. Answered by Settings."""

    identity: str
    """Digest of its session id, by which the same collector is known again. The id itself is a secret that only the
    collector, the gateway and the edge reader know: they would let another one in under its name."""
    host: str
    """Name of its machine, for people: it says so itself."""
    peer: str
    """Its address, as gRPC names it; the gateway's if that relays."""


@dataclass(frozen=True, slots=True)
class Alive(Message):
    """A sign of life, every `ALIVE_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Listening(Message):
    """The collector serves on this port, and WebSockets on another one (0: none)."""

    port: int
    websocket_port: int = 0


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """The collector can't serve; it exits."""

    reason: str


@dataclass(frozen=True, slots=True)
class BehaviorAnnounced(Message):
    """A simulator brought a behavior that this collector has not heard of before; its agents wait for Admit or Refuse.

    The pool passes it on to the trainer once, if the behavior was neither admitted nor refused before.
    """

    spec: BehaviorSpec


@dataclass(frozen=True, slots=True)
class SimulatorConnected(Message):
    """A simulator was welcomed."""

    session_id: str
    number: int
    collector: int
    """Index of the collector."""
    peer: str
    client: str
    """Name and version of its client library."""
    behaviors: tuple[str, ...]
    """Names in its Hello; more may be announced later."""


@dataclass(frozen=True, slots=True)
class SimulatorStarted(Message):
    """A simulator's first step arrived; again whenever it announces another behavior later."""

    session_id: str
    behaviors: tuple[str, ...]
    """All names that it has announced."""
    agents: int
    """Agents that asked for an action in the first step."""


@dataclass(frozen=True, slots=True)
class SimulatorLeft(Message):
    """A session ended, or one was refused (then no `SimulatorConnected` came before)."""

    session_id: str
    """Empty when it ended before the simulator had sent its id."""
    number: int
    """-1 before Welcome."""
    code: str
    """A `CloseCode`, or `left` (it half-closed), `disconnected` (its stream broke), `collector_died`."""
    reason: str
    steps: int
    """Steps that it had delivered."""
    peer: str


@dataclass(frozen=True, slots=True)
class SimulatorProblem(Message):
    """Something is probably not meant so; the session goes on. Once per session and code."""

    session_id: str
    number: int
    code: str
    sentence: str
    """The problem, and the remedy."""


@dataclass(frozen=True, slots=True)
class StatsReported:
    """Numbers that simulators of a collector reported under one key since its last message."""

    key: str
    aggregation: Aggregation
    count: int
    total: float
    """Their sum: AVERAGE = total / count over the messages of the period, SUM = total."""
    last: float
    values: tuple[float, ...]
    """The values themselves for HISTOGRAM (at most 1,000 a message), else empty."""
    parameter_set: int = 0
    """Number of the environment parameters that they belong to: of those under which the episodes began that ended in
    the same message, else of those that the simulator had received."""


@dataclass(frozen=True, slots=True)
class Stats(Message):
    """Reported numbers, one entry per parameter set, key and aggregation."""

    stats: tuple[StatsReported, ...]


@dataclass(frozen=True, slots=True)
class QuotaProgress(Message):
    """Progress of a collector in a round. Answered by GrantSteps if the quota is used and the round lacks steps."""

    runner: int
    round: int
    steps: int
    """Steps of the round that have returned."""
    used: bool
    """Whether the whole quota is used, and all steps of it are delivered."""


@dataclass(frozen=True, slots=True)
class SimulatorTimes:
    """The times of one simulator in a period."""

    number: int
    steps: int
    """Messages in which agents acted or ended."""
    away: float
    """Seconds from an answer to its next step: in the game, and on the way there and back."""
    game: float
    """Of these, in the game, where the simulator says so; else 0."""
    quickest_way: float
    """The shortest time of a step on the way to the game and back, in seconds; 0 where no step says how long the game
    took.
    """
    delayed: float
    """Seconds of all agents that waited for the end of a round, in which this simulator's step came last."""


@dataclass(frozen=True, slots=True)
class TimesMeasured(Message):
    """Where the time of a collector and its agents went since its last such message."""

    collector: int
    """Its index, which the pool knows."""
    seconds: float
    """Length of the period."""
    busy: float
    """Seconds for which the thread that does the work would compute in that time if nothing else kept it from a
    processor.
    """
    learner: float
    """Seconds in which agents waited for this reason (`ludus.collector.agent_waits`), as the three below."""
    stragglers: float
    checkpoint: float
    network: float
    simulators: tuple[SimulatorTimes, ...]
    """Those that play."""


@dataclass(frozen=True, slots=True)
class CollectorLags(Message):
    """So much waits for the network that an edge collector answers no agent until half of it is sent."""

    collector: int
    """Its place, which the edge reader knows."""
    waiting: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class StepsPlayed(Message):
    """Decisions of a behavior that were answered since the last such message, and are not learned from.

    They are those of the teams that do not learn, or, once nothing of the behavior is recorded, all.
    """

    behavior: str
    steps: int
    episodes: int = 0
    """Of these teams, that ended."""
    won: int = 0
    """How many of these they won (`ludus.collector.matches`)."""


@dataclass(frozen=True, slots=True)
class EndedMatch:
    """One match in self-play."""

    simulator: int
    team: int
    """Number of the learning team."""
    outcome: Outcome
    """Of the team that learns."""
    truncated: bool
    settled: bool
    """Whether every opposing team played one and the same policy from the beginning to the end."""
    opponents: tuple[tuple[str, int, int], ...]
    """Behavior, team and key of the policy (`ludus.collector.opponents`) of each opposing team. Where the policy
    changed during the match, it is the newest one."""


@dataclass(frozen=True, slots=True)
class MatchesEnded(Message):
    """Matches of the learning team that ended, in order."""

    behavior: str
    matches: tuple[EndedMatch, ...]


@dataclass(frozen=True, slots=True)
class EndedGame:
    """One game of an evaluation."""

    outcome: Outcome
    """Of the watched team."""
    episode_return: float
    length: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class EvaluationEnded(Message):
    """A simulator has played all games of its evaluation batch (`BeginEvaluation`)."""

    behavior: str
    session_id: str
    episode_batch: int
    games: tuple[EndedGame, ...]
    """In the order of their agents, or groups."""


@dataclass(frozen=True, slots=True)
class WeightsRead(Message):
    """The buffer is no longer needed."""

    runner: int
    index: int


@dataclass(frozen=True, slots=True)
class WantBlocks(Message):
    """Free blocks run low."""

    runner: int


def pack_numbered(runner: int, payload: bytes) -> bytes:
    """Prefix a packed payload with its runner."""
    return runner.to_bytes(4, "little") + payload


def unpack_numbered(payload: bytes) -> tuple[int, memoryview]:
    """Read the output of `pack_numbered`."""
    view = memoryview(payload)
    return int.from_bytes(view[:4], "little"), view[4:]


EPISODE_DTYPE = np.dtype(
    [
        ("return", "<f8"),
        ("group_return", "<f8"),
        ("length", "<i4"),
        ("simulator", "<i4"),
        ("agent", "<i4"),
        ("version", "<i8"),
        ("truncated", "?"),
        ("outcome", "u1"),
        ("parameter_set", "<i4"),
        ("closed", "<i4"),
    ]
)
"""One episode's end on the wire; `closed` counts the segments of the same delivery that had closed by then."""
