"""Messages between learner and collector, on `ludus.collector.channel`: one frozen class each, used on both sides.

Control travels as JSON, since there is little of it; segments and episodes travel packed. Messages that the pool
handles name a behavior by the number of its *runner*. Messages that the pool passes on to the trainer as they are
(`worker.collectors.events`) name it by its name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Self

import numpy as np

from ludus.collector.channel import Frame
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import Aggregation
from ludus.protocol.codec import spec_from_message, spec_to_message
from ludus.protocol.spec import BehaviorSpec
from ludus.reading import read_record


class Kind(IntEnum):
    """Frame kinds. Below 64: learner to collector."""

    SETTINGS = 1
    ADMIT = 2
    REFUSE = 3
    WEIGHTS = 4
    GRANT = 5
    END_ROUND = 6
    UNRECORDED = 7
    BLOCKS = 8
    END_SESSION = 9
    CLOSE = 11
    FROZEN_POLICY = 12
    OPPONENTS = 13
    PARAMETERS = 16
    HOLD = 17
    RELEASE = 18
    FORGET = 19
    KEPT = 20
    EVALUATE = 21
    LISTENING = 64
    FAILED = 65
    ANNOUNCED = 66
    CONNECTED = 67
    STARTED = 68
    LEFT = 69
    SEGMENTS = 70
    EPISODES = 71
    STATS = 72
    QUOTA_PROGRESS = 73
    WEIGHTS_READ = 75
    WANT_BLOCKS = 76
    PROBLEM = 78
    GHOST_STEPS = 79
    MATCHES = 80
    HANDED_OVER = 81
    EVALUATED = 82
    ALIVE = 90


ALIVE_SECONDS = 1.0
"""How often a collector says that it lives."""


@dataclass(frozen=True, slots=True)
class Message:
    """A control message: its fields are JSON values."""

    kind: ClassVar[Kind]

    def pack(self) -> bytes:
        """Serialise the fields."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Read what `pack` wrote."""
        return read_record(cls, json.loads(payload))


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """How a collector builds one network."""

    network_settings: Mapping[str, Any]
    """`NetworkSettings.model_dump(mode="json")`."""
    head: str
    """The kind of its last layer: a key of `ludus.collector.heads.HEADS`."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """How a collector builds the acting policy of a behavior."""

    network_settings: Mapping[str, Any]
    """`NetworkSettings.model_dump(mode="json")`."""
    weights_size: int
    """Length of the flat weight vector."""
    time_horizon: int
    """Longest segment, in steps."""
    head: str = "gaussian"
    """The kind of the last layer: a key of `ludus.collector.heads.HEADS`."""
    pink_noise: bool = False
    """Whether the noise of continuous actions is pink (`ludus.collector.exploration`)."""
    device: str = "cpu"
    """Where policies act that need torch: `cpu`, `cuda` or `cuda:N`."""
    self_play: bool = False
    """Whether one team learns and the others play frozen policies: no agent is answered before `Opponents` came."""
    evaluated: tuple[NetworkSpec, ...] = ()
    """The policies of an evaluation, which answer all agents: the candidate, then the champion. Weights are not
    published and steps are not granted; what simulators play before `BeginEvaluation` does not count."""


@dataclass(frozen=True, slots=True)
class OpponentAssignment:
    """Which team of a behavior learns, and which policies the others play. Keys as in `ludus.collector.opponents`."""

    learning: int | None
    """None: no team of this behavior."""
    teams: Mapping[int, Sequence[int]]
    """The draws of each team: simulator `n` plays draw `n mod k`."""
    others: Sequence[int]
    """Draws of teams that are not among them."""

    @property
    def keys(self) -> set[int]:
        """All policies that are named."""
        return {key for keys in (*self.teams.values(), self.others) for key in keys}


@dataclass(frozen=True, slots=True)
class Settings(Message):
    """First message to a collector. What is in `settings` is `CollectorSettings.to_json`."""

    kind: ClassVar = Kind.SETTINGS
    index: int
    generation: int
    """Counts the processes of this collector."""
    first_number: int
    """Number of the first simulator that comes without a ticket; the others follow in steps of `count`."""
    settings: str
    kept: bool = False
    """Whether a frame of kind KEPT follows: what was handed over in a former attempt (`handover.pack`)."""


@dataclass(frozen=True, slots=True)
class Admit(Message):
    """A behavior may act.

    Carries the descriptor of its arena, and that of its weight buffers. An assessment has none of the latter, but the
    weights of each of its policies (`weights.freeze`).
    """

    kind: ClassVar = Kind.ADMIT
    runner: int
    spec: str
    """`spec_to_text`."""
    policy: PolicySpec
    rows: int
    """Steps of a block of the arena."""
    blocks: int
    memory_size: int
    weight_buffers: int
    low_blocks: int
    """Ask for blocks when fewer than this are free."""


@dataclass(frozen=True, slots=True)
class Refuse(Message):
    """Sessions that announce this behavior, or have done so, end with this code."""

    kind: ClassVar = Kind.REFUSE
    behavior: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Weights(Message):
    """A newer version lies in a buffer. Answered by WeightsRead."""

    kind: ClassVar = Kind.WEIGHTS
    runner: int
    index: int
    version: int


@dataclass(frozen=True, slots=True)
class FrozenPolicy(Message):
    """A policy that `Opponents` names from now on. Carries the descriptor of its weights (`weights.freeze`)."""

    kind: ClassVar = Kind.FROZEN_POLICY
    runner: int
    key: int
    """As in `ludus.collector.opponents`."""


@dataclass(frozen=True, slots=True)
class Opponents(Message):
    """Which team learns, and what the others play; a change of the former is followed by a reset (`Parameters`)."""

    kind: ClassVar = Kind.OPPONENTS
    runner: int
    assignment: OpponentAssignment


@dataclass(frozen=True, slots=True)
class BeginEvaluation(Message):
    """A simulator begins new episodes, with an evaluation batch. Answered by EvaluationEnded if it stays."""

    kind: ClassVar = Kind.EVALUATE
    runner: int
    session_id: str
    episode_batch: int
    team: int | None
    """Number of the team that the candidate plays; None: all of them."""
    parameters: dict[str, Any]
    """Environment parameters of its own, on top of the run's: `environment_parameters.to_plain`."""


@dataclass(frozen=True, slots=True)
class GrantSteps(Message):
    """Quota of a round; the fields but the last are those of `StepQuota.grant`."""

    kind: ClassVar = Kind.GRANT
    runner: int
    round: int
    steps: int
    size: int
    report_every: int
    version: int
    """No decision is answered by weights older than this."""


@dataclass(frozen=True, slots=True)
class EndRound(Message):
    """A round is complete: answer no more of it. Steps that are outstanding are delivered as they return."""

    kind: ClassVar = Kind.END_ROUND
    runner: int
    round: int


@dataclass(frozen=True, slots=True)
class Unrecorded(Message):
    """Answer this behavior without limits and without recording."""

    kind: ClassVar = Kind.UNRECORDED
    runner: int


@dataclass(frozen=True, slots=True)
class EndSession(Message):
    """End one simulator's session."""

    kind: ClassVar = Kind.END_SESSION
    session_id: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Parameters(Message):
    """Environment parameters: every simulator is told with its next answer, and begins later episodes with them."""

    kind: ClassVar = Kind.PARAMETERS
    environment_parameters: dict[str, Any]
    """`environment_parameters.to_plain`."""
    parameter_set: int
    """Number of this set of parameters; counts changes from 0."""
    reset: bool
    """Whether they are told at once, by a reset: every simulator abandons its episodes."""


@dataclass(frozen=True, slots=True)
class Hold(Message):
    """Answer no agent until Release, and send snapshots. Answered by a frame of kind HANDED_OVER (`handover.pack`)."""

    kind: ClassVar = Kind.HOLD
    timeout: float
    """Seconds to wait for simulators to come to rest."""


@dataclass(frozen=True, slots=True)
class Release(Message):
    """The checkpoint has been taken: go on."""

    kind: ClassVar = Kind.RELEASE


@dataclass(frozen=True, slots=True)
class Forget(Message):
    """A simulator plays at another collector: it does not come back to where it was in a former attempt."""

    kind: ClassVar = Kind.FORGET
    session_id: str


@dataclass(frozen=True, slots=True)
class CloseAll(Message):
    """Close every session and exit."""

    kind: ClassVar = Kind.CLOSE
    code: str
    reason: str
    rejoin: bool


@dataclass(frozen=True, slots=True)
class Alive(Message):
    """A sign of life, every `ALIVE_SECONDS`."""

    kind: ClassVar = Kind.ALIVE


@dataclass(frozen=True, slots=True)
class Listening(Message):
    """The collector serves on this port."""

    kind: ClassVar = Kind.LISTENING
    port: int


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """The collector can't serve; it exits."""

    kind: ClassVar = Kind.FAILED
    reason: str


@dataclass(frozen=True, slots=True)
class Announced(Message):
    """A behavior that this collector has not heard of before."""

    kind: ClassVar = Kind.ANNOUNCED
    spec: str


@dataclass(frozen=True, slots=True)
class SimulatorConnected(Message):
    """A simulator was welcomed."""

    kind: ClassVar = Kind.CONNECTED
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

    kind: ClassVar = Kind.STARTED
    session_id: str
    behaviors: tuple[str, ...]
    """All names that it has announced."""
    agents: int
    """Agents that asked for an action in the first step."""


@dataclass(frozen=True, slots=True)
class SimulatorLeft(Message):
    """A session ended, or one was refused (then no `SimulatorConnected` came before)."""

    kind: ClassVar = Kind.LEFT
    session_id: str
    """Empty when it ended before the simulator had said who it is."""
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

    kind: ClassVar = Kind.PROBLEM
    session_id: str
    number: int
    code: str
    sentence: str
    """The problem, and what to do."""


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
    the same message, else of those that the simulator had been told."""


@dataclass(frozen=True, slots=True)
class Stats(Message):
    """Reported numbers, one entry per parameter set, key and aggregation."""

    kind: ClassVar = Kind.STATS
    stats: tuple[StatsReported, ...]


@dataclass(frozen=True, slots=True)
class QuotaProgress(Message):
    """Progress of a collector in a round. Answered by GrantSteps if the quota is used and the round lacks steps."""

    kind: ClassVar = Kind.QUOTA_PROGRESS
    runner: int
    round: int
    steps: int
    """Steps of the round that have returned."""
    used: bool
    """Whether the whole quota is used, and all steps of it are delivered."""


@dataclass(frozen=True, slots=True)
class GhostStepsPlayed(Message):
    """Decisions that were answered for the teams of a behavior that do not learn, since the last such message."""

    kind: ClassVar = Kind.GHOST_STEPS
    behavior: str
    steps: int


@dataclass(frozen=True, slots=True)
class EndedMatch:
    """One match in self-play."""

    simulator: int
    team: int
    """Number of the learning team."""
    outcome: int
    """Of the team that learns: a value of `ludus.v1.Outcome`, never UNSPECIFIED."""
    truncated: bool
    settled: bool
    """Whether every opposing team played one and the same policy from the beginning to the end."""
    opponents: tuple[tuple[str, int, int], ...]
    """Behavior, team and key of the policy (`ludus.collector.opponents`) of each opposing team. Where the policy
    changed during the match, it is the newest one."""


@dataclass(frozen=True, slots=True)
class MatchesEnded(Message):
    """Matches of the learning team that ended, in order."""

    kind: ClassVar = Kind.MATCHES
    behavior: str
    matches: tuple[EndedMatch, ...]


@dataclass(frozen=True, slots=True)
class EndedGame:
    """One game of an evaluation."""

    outcome: int
    """Of the watched team: a value of `ludus.v1.Outcome`, never UNSPECIFIED."""
    episode_return: float
    length: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class EvaluationEnded(Message):
    """A simulator has played all games of its evaluation batch (`BeginEvaluation`)."""

    kind: ClassVar = Kind.EVALUATED
    behavior: str
    session_id: str
    episode_batch: int
    games: tuple[EndedGame, ...]
    """In the order of their agents, or groups."""


@dataclass(frozen=True, slots=True)
class WeightsRead(Message):
    """The buffer is no longer needed."""

    kind: ClassVar = Kind.WEIGHTS_READ
    runner: int
    index: int


@dataclass(frozen=True, slots=True)
class WantBlocks(Message):
    """Free blocks run low."""

    kind: ClassVar = Kind.WANT_BLOCKS
    runner: int


MESSAGES: Final[Mapping[int, type[Message]]] = {each.kind: each for each in Message.__subclasses__()}


def read(frame: Frame) -> Message:
    """Read a control message. Raises KeyError for a frame of a kind that is packed in another way."""
    return MESSAGES[frame.kind].unpack(frame.payload)


def spec_to_text(spec: BehaviorSpec) -> str:
    """Encode a spec for a JSON field."""
    return spec_to_message(spec).SerializeToString().hex()


def spec_from_text(text: str) -> BehaviorSpec:
    """Read what `spec_to_text` wrote."""
    return spec_from_message(pb.BehaviorSpec.FromString(bytes.fromhex(text)))


def pack_numbered(runner: int, payload: bytes) -> bytes:
    """Prefix a packed payload with its runner."""
    return runner.to_bytes(4, "little") + payload


def unpack_numbered(payload: bytes) -> tuple[int, memoryview]:
    """Read what `pack_lane` wrote."""
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
