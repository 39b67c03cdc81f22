"""What learner and collector say to each other: one frozen dataclass per message, on `ludus.collector.channel`.

Control travels as JSON, since there is little of it; segments and episodes travel packed. A behavior is named by its
*lane*, a number that the pool gives out at admission.
"""

import json
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, Self

import numpy as np

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import spec_from_message, spec_to_message
from ludus.protocol.spec import BehaviorSpec


class Kind(IntEnum):
    """Frame kinds. Below 64: learner to collector."""

    SETTINGS = 1
    ADMIT = 2
    REFUSE = 3
    WEIGHTS = 4
    GRANT = 5
    RECALL = 6
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
    SIT = 21
    LISTENING = 64
    FAILED = 65
    ANNOUNCED = 66
    CONNECTED = 67
    STARTED = 68
    LEFT = 69
    SEGMENTS = 70
    EPISODES = 71
    STATS = 72
    WANT = 73
    RETURNED = 74
    WEIGHTS_READ = 75
    WANT_BLOCKS = 76
    BORROWED = 77
    TROUBLE = 78
    OPPOSED = 79
    HANDED_OVER = 81
    SAT = 82
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
        values = json.loads(payload)
        return cls(**{item.name: values[item.name] for item in fields(cls)})


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
    lane: int
    spec: str
    """`spec_to_text`."""
    network_settings: dict[str, Any]
    squashed: bool
    pink_noise: bool
    device: str
    time_horizon: int
    rows: int
    blocks: int
    memory_size: int
    weights_size: int
    weight_buffers: int
    low_blocks: int
    """Ask for blocks when fewer than this are free."""
    self_play: bool
    """Whether one team learns and the others play frozen policies; nobody is answered before `Opponents` came."""
    assessment: list[dict[str, Any]]
    """Of an assessment: the networks of its policies (`network_settings` and `squashed` each); else empty."""


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
    lane: int
    index: int
    version: int


@dataclass(frozen=True, slots=True)
class FrozenPolicy(Message):
    """A policy that `Opponents` names from now on. Carries the descriptor of its weights (`weights.freeze`)."""

    kind: ClassVar = Kind.FROZEN_POLICY
    lane: int
    key: int
    """As in `ludus.collector.opponents`."""


@dataclass(frozen=True, slots=True)
class Opponents(Message):
    """Which team learns, and what the others play; a change of the former is followed by a reset (`Parameters`)."""

    kind: ClassVar = Kind.OPPONENTS
    lane: int
    learning: int | None
    """None: no team of this behavior."""
    teams: list[tuple[int, list[int]]]
    """Team, and the keys of its draws: simulator n plays draw n mod k."""
    others: list[int]
    """Draws of teams that are not among them."""


@dataclass(frozen=True, slots=True)
class Sit(Message):
    """A simulator begins anew, with a sitting of an assessment. Answered by Sat, unless it leaves before the end."""

    kind: ClassVar = Kind.SIT
    lane: int
    incarnation: str
    sitting: int
    team: int | None
    """Number of the team that the candidate plays; None: all of them."""
    parameters: dict[str, Any]
    """Environment parameters of its own, on top of the run's: `environment_parameters.to_plain`."""


@dataclass(frozen=True, slots=True)
class GrantSteps(Message):
    """Permits; the fields but the last are those of `Rounds.grant`."""

    kind: ClassVar = Kind.GRANT
    lane: int
    round: int
    steps: int
    size: int
    closed: bool
    version: int
    """No decision is answered by weights older than this."""


@dataclass(frozen=True, slots=True)
class RecallSteps(Message):
    """Give back permits of this round that are not needed here. Answered by Returned."""

    kind: ClassVar = Kind.RECALL
    lane: int
    round: int


@dataclass(frozen=True, slots=True)
class Unrecorded(Message):
    """Answer this behavior without limits and without recording."""

    kind: ClassVar = Kind.UNRECORDED
    lane: int


@dataclass(frozen=True, slots=True)
class EndSession(Message):
    """End one simulator's session."""

    kind: ClassVar = Kind.END_SESSION
    incarnation: str
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
    """Answer nobody until Release, and hand over. Answered by a frame of kind HANDED_OVER (`handover.pack`)."""

    kind: ClassVar = Kind.HOLD
    patience: float
    """Seconds to wait for simulators to come to rest."""


@dataclass(frozen=True, slots=True)
class Release(Message):
    """The checkpoint has been taken: go on."""

    kind: ClassVar = Kind.RELEASE


@dataclass(frozen=True, slots=True)
class Forget(Message):
    """A simulator plays at another collector: it does not come back to where it was in a former attempt."""

    kind: ClassVar = Kind.FORGET
    incarnation: str


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
class Connected(Message):
    """As `notices.SimulatorConnected`."""

    kind: ClassVar = Kind.CONNECTED
    incarnation: str
    number: int
    peer: str
    client: str
    behaviors: list[str]


@dataclass(frozen=True, slots=True)
class Started(Message):
    """As `notices.SimulatorStarted`."""

    kind: ClassVar = Kind.STARTED
    incarnation: str
    behaviors: list[str]
    agents: int


@dataclass(frozen=True, slots=True)
class Left(Message):
    """As `notices.SimulatorLeft`."""

    kind: ClassVar = Kind.LEFT
    incarnation: str
    number: int
    code: str
    reason: str
    steps: int
    peer: str


@dataclass(frozen=True, slots=True)
class Trouble(Message):
    """As `notices.SimulatorTrouble`."""

    kind: ClassVar = Kind.TROUBLE
    incarnation: str
    number: int
    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Stats(Message):
    """Reported numbers: rows of (parameter set, key, aggregation, count, total, last, values)."""

    kind: ClassVar = Kind.STATS
    rows: list[tuple[int, str, int, int, float, float, list[float]]]


@dataclass(frozen=True, slots=True)
class Want(Message):
    """Agents wait, or soon will, for permits of this round."""

    kind: ClassVar = Kind.WANT
    lane: int
    round: int


@dataclass(frozen=True, slots=True)
class Returned(Message):
    """Permits that are not needed here."""

    kind: ClassVar = Kind.RETURNED
    lane: int
    round: int
    steps: int
    idle: bool = False
    """Nobody waits here any more: what was wanted before is not."""


@dataclass(frozen=True, slots=True)
class Borrowed(Message):
    """What was answered in advance, of which later rounds. Comes before what is delivered of the same messages."""

    kind: ClassVar = Kind.BORROWED
    lane: int
    steps: list[tuple[int, int]]
    """Round, steps."""


@dataclass(frozen=True, slots=True)
class Opposed(Message):
    """What teams that do not learn have played since the last such message."""

    kind: ClassVar = Kind.OPPOSED
    lane: int
    steps: int
    """Decisions that were answered for them."""
    matches: list[tuple[int, int, int, bool, bool, list[tuple[str, int, int]]]]
    """Those that ended: the fields of each `ludus.collector.matches.EndedMatch`, in order."""


@dataclass(frozen=True, slots=True)
class Sat(Message):
    """A sitting is complete: the fields of each `ludus.collector.assessment.EndedGame`."""

    kind: ClassVar = Kind.SAT
    lane: int
    incarnation: str
    sitting: int
    games: list[tuple[int, float, int, bool]]


@dataclass(frozen=True, slots=True)
class WeightsRead(Message):
    """The buffer is no longer needed."""

    kind: ClassVar = Kind.WEIGHTS_READ
    lane: int
    index: int


@dataclass(frozen=True, slots=True)
class WantBlocks(Message):
    """Free blocks run low."""

    kind: ClassVar = Kind.WANT_BLOCKS
    lane: int


def spec_to_text(spec: BehaviorSpec) -> str:
    """Encode a spec for a JSON field."""
    return spec_to_message(spec).SerializeToString().hex()


def spec_from_text(text: str) -> BehaviorSpec:
    """Read what `spec_to_text` wrote."""
    return spec_from_message(pb.BehaviorSpec.FromString(bytes.fromhex(text)))


def pack_lane(lane: int, payload: bytes) -> bytes:
    """Prefix a packed payload with its lane."""
    return lane.to_bytes(4, "little") + payload


def unpack_lane(payload: bytes) -> tuple[int, memoryview]:
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
