"""The messages between a supervisor and its trainer: frozen values, one class for each.

`worker.trainer.connection` sends them. Messages of collectors (`ludus.collector.messages`) that the supervisor records
travel on as they are.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ludus.collector.messages import SimulatorConnected, SimulatorLeft, SimulatorStarted
from ludus.config.assessment import TrainedPolicy
from ludus.config.run import RunConfig
from ludus.schemas import Finding, OnnxModel, ScoredBy
from ludus.schemas.states import StopReason
from server.ladders.refs import PlayedMatch
from server.metrics.points import MetricPoint
from server.runs.diagnosis import TimeSpent
from server.runs.refs import AmendmentRef, EdgeCollectorRef
from worker.collectors.events import EdgeReaderFailed, Endpoint

Action = Literal["pause", "stop", "cancel", "release"]
CheckpointReason = Literal["interval", "final", "requested"]
Outcome = Literal["succeeded", "cancelled", "paused", "released", "failed", "lost"]
Level = Literal["info", "warning", "error"]
LEARNING_BEGAN: Final = "learning_began"
"""Type of the event that a learner has made its first update."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Job(_Frozen):
    """The attempt to execute. The first message; a warm trainer waits for it."""

    run_id: str
    attempt: int
    config: RunConfig
    """The run's resolved configuration, with all of `amendments`."""
    amendments: list[AmendmentRef] = Field(default_factory=list)
    """Users' changes of it since the run was created, in order."""
    seed: int
    resume_from: str | None = None
    """Folder of the checkpoint to go on from."""
    scratch: str
    """Folder for checkpoints on their way to the artifact store, and for logs."""
    log_path: str | None = None
    """File that takes over standard output and standard error."""
    collectors: int = 1
    bind_host: str = "127.0.0.1"
    advertise_host: str = "127.0.0.1"
    port_range: tuple[int, int] | None = None
    """First and last port that collectors may take; None: whatever is free."""
    ticket_key: str | None = None
    """Hexadecimal key of simulator tickets. None: simulators need no ticket (a trainer run alone on loopback)."""
    tls_certificate: str | None = None
    """PEM file of the certificate that collectors show, with `tls_key`; None: they speak no TLS."""
    tls_key: str | None = None
    tls_client_ca: str | None = None
    """PEM file of the authority of simulators' certificates; given, they must show one."""
    websocket_origins: tuple[str, ...] | None = None
    """Origins of pages that may connect to collectors by WebSockets. None: WebSockets are off."""
    websocket_range: tuple[int, int] | None = None
    demonstrations: dict[str, str] = Field(default_factory=dict)
    """Where each demonstration of the configuration lies, by its id."""
    demonstration_labels: dict[str, str] = Field(default_factory=dict)
    """The name of each demonstration in messages, by its id."""
    checkpoints: dict[str, str] = Field(default_factory=dict)
    """The folder of each checkpoint that behaviors begin with (`initialize_from`) or play against
    (`self_play.opponents`), by its id."""
    policies: dict[str, TrainedPolicy] = Field(default_factory=dict)
    """How the assessed behavior was trained in each of these checkpoints, by id."""
    assessed: dict[str, object] | None = None
    """The state of an assessment after earlier attempts (`Assessed.state`)."""
    lease_seconds: float = 10.0
    """Silence of the supervisor after which the trainer ends itself."""


class Heartbeat(_Frozen):
    """Sign of life; sent at least twice per lease."""


class Command(_Frozen):
    """A command for the trainer, carried out between two updates."""

    action: Action
    """`stop`: final checkpoint, then finish. `pause`: checkpoint, then finish as paused. `cancel`: finish at once.
    `release`: checkpoint, then hand the run back."""
    detail: str = "the worker is shutting down"
    """Of `release`: the reason as a sentence, for simulators and the log."""


class SaveCheckpoint(_Frozen):
    """Write a checkpoint between two updates, and go on; answered by `CheckpointWritten` or `CheckpointDeclined`."""

    request: int


class Amend(_Frozen):
    """Go on with a changed configuration, in this order; each is answered by `Amended`."""

    amendments: list[AmendmentRef]


class ParameterEdit(_Frozen):
    """A user's edit of one environment parameter of a run: another lesson, another value, or both."""

    seq: int
    """Counts the run's edits from 1. A trainer leaves out those that it, or its checkpoint, knows."""
    parameter: str
    lesson: int | None = None
    """Number of the lesson to begin, from 1."""
    value: float | dict[str, object] | None = None
    """The lesson's new value, as configurations write it, with its seed."""


class EditParameters(_Frozen):
    """Edits to apply, in their order; answered by events and by `ParameterStates`."""

    edits: list[ParameterEdit]


class OpenPlaces(_Frozen):
    """Open the places for edge collectors, because one has asked. Answered by `Listening` or `EdgeReaderFailed`."""


class CheckpointCommitted(_Frozen):
    """A checkpoint is published and has its row: it is acknowledged."""

    folder: str


class CheckpointRefused(_Frozen):
    """A checkpoint could not be published."""

    folder: str
    code: str
    detail: str


class RunAdvanced(_Frozen):
    """A run that self-play follows (`self_play.opponents`: `run:NAME`) has a newer checkpoint."""

    run: str
    """Its id or name, as the configuration has it."""
    checkpoint: str
    folder: str
    """Where its files lie. The trainer removes them when the next one is here."""


Order = (
    Command
    | SaveCheckpoint
    | Amend
    | EditParameters
    | OpenPlaces
    | CheckpointCommitted
    | CheckpointRefused
    | RunAdvanced
)
"""The messages that the trainer's loop handles."""
ToTrainer = Job | Heartbeat | Order


class Listening(_Frozen):
    """The endpoints of the collectors; the whole list each time."""

    endpoints: list[Endpoint]


class EdgeCollectors(_Frozen):
    """The edge collectors that collect now; the whole list each time."""

    collectors: list[EdgeCollectorRef]


class Progress(_Frozen):
    """The progress of learning, at least once a second: it shows that the trainer lives."""

    step: int
    simulators: int
    time_spent: TimeSpent | None = None
    """Where the newest time went; None before it is known."""


class Metrics(_Frozen):
    """Points of metrics."""

    points: list[MetricPoint]


class EventRecord(_Frozen):
    """An event of the run."""

    name: str
    level: Level = "info"
    message: str
    data: dict[str, object] = Field(default_factory=dict)


class Findings(_Frozen):
    """All findings about the run's learning that hold now; the whole list each time, also when it becomes empty."""

    findings: list[Finding]


class Amended(_Frozen):
    """An amendment takes effect."""

    amendment: AmendmentRef
    step: int
    """Agent steps of all behaviors together."""


class ParameterStates(_Frozen):
    """Lesson and value of each environment parameter; the whole list each time."""

    parameters: list[dict[str, object]]
    """The fields of `ludus.schemas.EnvironmentParameter` of each."""
    edit: int
    """Number of the newest edit that was applied; 0 without any."""


class SelfPlayStatus(_Frozen):
    """The learning team in self-play, and the ratings of the policies that learn; all of it each time."""

    learning_team: int
    elo: dict[str, float]
    """By behavior."""


class MatchesResumed(_Frozen):
    """The attempt begins: matches that earlier attempts played beyond its checkpoint do not count any more."""

    newest: dict[str, int]
    """Number of each behavior's newest match that the checkpoint counts; of those that are not named, 0."""


class MatchesPlayed(_Frozen):
    """Matches that ended, in order; each is reported once."""

    matches: list[PlayedMatch]


class Assessed(_Frozen):
    """The present state of an assessment; all of it each time."""

    games: int
    """Games, or episodes, that are counted."""
    result: dict[str, object]
    """For people and programs."""
    state: dict[str, object]
    """For the next attempt."""


class CheckpointWritten(_Frozen):
    """A checkpoint lies complete in `folder`; the supervisor publishes it and answers."""

    folder: str
    step: int
    steps: dict[str, int]
    reason: CheckpointReason
    keep: int
    """Newest checkpoints that the run keeps."""
    metrics: dict[str, float | None]
    """Per behavior: mean return of the episodes that `scored_by` describes; None without any."""
    scored_by: dict[str, ScoredBy] = Field(default_factory=dict)
    request: int | None = None
    """Number of the `SaveCheckpoint` that it answers."""
    models: dict[str, OnnxModel] = Field(default_factory=dict)
    """Descriptions of the models, by the names of their files in `folder`."""


class CheckpointDeclined(_Frozen):
    """A requested checkpoint can't be written."""

    request: int
    detail: str


class Finished(_Frozen):
    """The last message of a trainer: how the attempt ended."""

    outcome: Outcome
    """`lost` is the supervisor's conclusion about a trainer that died."""
    reason: str | None = None
    """A `StopReason`."""
    detail: str | None = None

    @classmethod
    def invalid_config(cls, detail: str) -> Self:
        """Return the end of a run that can't be executed as it is configured."""
        return cls(outcome="failed", reason=StopReason.INVALID_CONFIG, detail=detail)


Report = (
    Amended
    | Assessed
    | CheckpointDeclined
    | EdgeCollectors
    | EdgeReaderFailed
    | EventRecord
    | Findings
    | Listening
    | MatchesPlayed
    | MatchesResumed
    | ParameterStates
    | SelfPlayStatus
    | SimulatorConnected
    | SimulatorLeft
    | SimulatorStarted
)
"""The messages that the supervisor writes to the database, without any other effect."""
ToSupervisor = Report | Metrics | Progress | CheckpointWritten | Finished
Message = ToTrainer | ToSupervisor

TO_TRAINER: dict[str, TypeAdapter[ToTrainer]] = {kind.__name__: TypeAdapter(kind) for kind in get_args(ToTrainer)}
TO_SUPERVISOR: dict[str, TypeAdapter[ToSupervisor]] = {
    kind.__name__: TypeAdapter(kind) for kind in get_args(ToSupervisor)
}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {**TO_TRAINER, **TO_SUPERVISOR}
Kind = TypeVar("Kind")


def encode(message: Message) -> bytes:
    """Return a message as the name of its class, a line break, and its fields as JSON."""
    name = type(message).__name__
    return name.encode() + b"\n" + _ADAPTERS[name].dump_json(message)


def decode(frame: bytes, kinds: Mapping[str, TypeAdapter[Kind]]) -> Kind:
    """Return a message of `TO_TRAINER` or `TO_SUPERVISOR`. Raises `KeyError` and `ValueError` for anything else."""
    name, _, fields = frame.partition(b"\n")
    return kinds[name.decode()].validate_json(fields)


def describe(message: Message) -> str:
    """Return a message as one line of JSON, its kind under `type`, for a person who runs a trainer alone."""
    name = type(message).__name__
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Record")).lower()
    return json.dumps({"type": kind, **_ADAPTERS[name].dump_python(message, mode="json")})


class SupervisorPort(Protocol):
    """The connection to a supervisor, or the console of a trainer that runs alone."""

    def post(self, message: Message) -> None:
        """Send a report. Never blocks."""

    def commands(self) -> list[Order]:
        """Return the messages since the last call."""
