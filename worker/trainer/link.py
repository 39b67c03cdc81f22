"""The pipe between a supervisor and its trainer: typed messages, bounded, never blocking the learner.

Frames are a 4-byte big-endian length and one JSON message over a Unix stream socket. The trainer's end
(`TrainerLink`) has a thread that reads and one that writes, so that neither a slow supervisor nor a database outage
behind it holds up an update: metric points wait in a bounded backlog that is thinned evenly when it overflows,
everything else is never dropped. End of file, or silence for one lease, means that the supervisor is gone: the
trainer then ends itself (`on_silence`).
"""

import contextlib
import json
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

HEADER = struct.Struct(">I")
MAX_FRAME_BYTES = 64 << 20
SEND_SECONDS = 10.0
"""How long a supervisor waits for a trainer that does not read; its reader is a thread that does nothing else."""
METRIC_BACKLOG = 4096
"""Metric points that may wait for the supervisor before they are thinned."""


Action = Literal["pause", "stop", "cancel", "release"]
CheckpointReason = Literal["interval", "final", "requested"]
Outcome = Literal["succeeded", "cancelled", "paused", "released", "failed", "lost"]
Level = Literal["info", "warning", "error"]


class Message(BaseModel):
    """Parent of all messages."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Endpoint(Message):
    """Where a collector listens."""

    index: int
    address: str
    """host:port as simulators shall dial it."""


class ChangedKey(Message):
    """One key of a run's configuration that a user has changed."""

    path: str
    """Dotted keys, as `server.config.problems.join_path` writes them."""
    old: object
    new: object


class Amendment(Message):
    """A change of a run's configuration: keys that change together."""

    seq: int
    """Counts the run's amendments from 1. One that a trainer, or the checkpoint that it began with, knows is not told
    again."""
    changes: list[ChangedKey]


# Supervisor to trainer ------------------------------------------------------------------------------------------------


class Job(Message):
    """What to execute. The first message; a warm trainer waits for it."""

    type: Literal["job"] = "job"
    run_id: str
    epoch: int
    config: dict[str, object]
    """The run's resolved configuration, with all of `amendments`."""
    amendments: list[Amendment] = Field(default_factory=list)
    """What users have changed in it since the run was created, in order."""
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
    demonstrations: dict[str, str] = Field(default_factory=dict)
    """Where each demonstration of the configuration lies, by its id."""
    checkpoints: dict[str, str] = Field(default_factory=dict)
    """The folder of each checkpoint that behaviors begin with (`initialize_from`) or play against
    (`self_play.opponents`), by its id."""
    policies: dict[str, dict[str, object]] = Field(default_factory=dict)
    """How the behavior that is assessed was trained in each of these checkpoints, by id: `trainer_type`,
    `network_settings`."""
    assessed: dict[str, object] | None = None
    """What earlier attempts have counted of an assessment (`Assessed.state`)."""
    max_message_bytes: int = 64 << 20
    lease_seconds: float = 10.0
    """Silence of the supervisor after which the trainer ends itself."""


class Beat(Message):
    """Sign of life; sent at least twice per lease."""

    type: Literal["beat"] = "beat"


class Command(Message):
    """What the trainer shall do at the next boundary between updates."""

    type: Literal["command"] = "command"
    action: Action
    """`stop`: final checkpoint, then finish. `pause`: checkpoint, then finish as paused. `cancel`: finish at once.
    `release`: checkpoint, then hand the run back."""
    detail: str = "the worker is shutting down"
    """Of `release`: why, as a sentence; simulators and the log are told."""


class SaveCheckpoint(Message):
    """Write a checkpoint between two updates, and go on; answered by `CheckpointWritten` or `CheckpointDeclined`."""

    type: Literal["save_checkpoint"] = "save_checkpoint"
    request: int


class Amend(Message):
    """Go on with a changed configuration, in this order; each is answered by `Amended`."""

    type: Literal["amend"] = "amend"
    amendments: list[Amendment]


class ParameterEdit(Message):
    """What somebody wants of one environment parameter of a running run: another lesson, another value, or both."""

    seq: int
    """Counts the run's edits from 1. An edit that a trainer, or the checkpoint that it began with, knows is not done
    again."""
    parameter: str
    lesson: int | None = None
    """Number of the lesson to begin, from 1."""
    value: float | dict[str, object] | None = None
    """The lesson's new value, as configurations write it, with its seed."""


class EditParameters(Message):
    """Edits to carry out, in their order; answered by events and by `ParameterStates`."""

    type: Literal["edit_parameters"] = "edit_parameters"
    edits: list[ParameterEdit]


class CheckpointCommitted(Message):
    """A checkpoint is published and has its row: it is acknowledged."""

    type: Literal["checkpoint_committed"] = "checkpoint_committed"
    folder: str


class CheckpointRefused(Message):
    """A checkpoint could not be published."""

    type: Literal["checkpoint_refused"] = "checkpoint_refused"
    folder: str
    code: str
    detail: str


Order = Command | SaveCheckpoint | Amend | EditParameters | CheckpointCommitted | CheckpointRefused
"""What a trainer's loop has to know."""
ToTrainer = Annotated[Job | Beat | Order, Field(discriminator="type")]


# Trainer to supervisor ------------------------------------------------------------------------------------------------


class Listening(Message):
    """Collectors that listen now (the whole list each time)."""

    type: Literal["listening"] = "listening"
    endpoints: list[Endpoint]


class Progress(Message):
    """Where the learning is; at least once a second, and the trainer's sign of life."""

    type: Literal["progress"] = "progress"
    step: int
    simulators: int


class Point(Message):
    """One point of a metric."""

    behavior: str
    key: str
    step: int
    at: float
    """Seconds since 1970-01-01 UTC."""
    value: float


class Metrics(Message):
    """Points of metrics."""

    type: Literal["metrics"] = "metrics"
    points: list[Point]


class EventRecord(Message):
    """Something that happened, for the run's events."""

    type: Literal["event"] = "event"
    name: str
    level: Level = "info"
    message: str
    data: dict[str, object] = Field(default_factory=dict)


class Amended(Message):
    """An amendment holds from now on."""

    type: Literal["amended"] = "amended"
    amendment: Amendment
    step: int
    """Agent steps of all behaviors together."""


class ParameterStates(Message):
    """Where each environment parameter is; the whole list each time."""

    type: Literal["parameter_states"] = "parameter_states"
    parameters: list[dict[str, object]]
    """`server.config.lessons.ParameterStatus.to_plain`."""
    edit: int
    """Number of the newest edit that was carried out; 0 without any."""


class SelfPlayStatus(Message):
    """Whose turn it is in self-play, and how the policies that learn are rated; all of it each time."""

    type: Literal["self_play_status"] = "self_play_status"
    learning_team: int
    elo: dict[str, float]
    """By behavior."""


class SimulatorUp(Message):
    """A simulator has opened its session."""

    type: Literal["simulator_up"] = "simulator_up"
    incarnation: str
    number: int
    collector: int
    peer: str
    client: str
    behaviors: list[str]


class SimulatorPlays(Message):
    """A simulator's first step came: by now it has announced its behaviors."""

    type: Literal["simulator_plays"] = "simulator_plays"
    incarnation: str
    behaviors: list[str]
    agents: int
    """Agents that asked for an action in it."""


class SimulatorDown(Message):
    """A simulator's session has ended."""

    type: Literal["simulator_down"] = "simulator_down"
    incarnation: str
    number: int
    """-1 for a session that was refused before it had a number."""
    peer: str
    code: str
    reason: str
    steps: int


class Seat(Message):
    """One side of a match."""

    behavior: str
    team: int
    snapshot: int | None
    """Number of the frozen policy; None: the policy that learns."""
    step: int
    """Steps for which the policy had learnt; of a frozen one: when it was taken."""
    checkpoint: str | None = None
    """The checkpoint of another run that the policy is from; None: it is one of this run."""
    scripted: str | None = None
    """What plays there instead of a policy that was learnt: `random`."""


class Match(Message):
    """A match that has ended."""

    number: int
    """Counts the matches of this behavior in the run, from 1; goes on over attempts."""
    behavior: str
    """Whose team learnt."""
    simulator: int | None
    at: float
    """Seconds since 1970-01-01 UTC."""
    step: int
    """How far the behavior was."""
    seats: list[Seat]
    """The learning side first."""
    outcome: Literal["win", "draw", "loss"]
    """Of the first seat."""
    truncated: bool
    rated: bool
    """Whether it changed the Elo ratings."""
    elo: float | None
    """Of the learning policy after it; None where none learns."""


class MatchesResumed(Message):
    """The attempt goes on from a checkpoint, or anew: what earlier attempts played beyond it counts no more."""

    type: Literal["matches_resumed"] = "matches_resumed"
    newest: dict[str, int]
    """Number of each behavior's newest match that the checkpoint counts; of those that are not named, 0."""


class MatchesPlayed(Message):
    """Matches that ended, in order; each is told once."""

    type: Literal["matches_played"] = "matches_played"
    matches: list[Match]


class Assessed(Message):
    """Where an assessment stands: all of it each time."""

    type: Literal["assessed"] = "assessed"
    games: int
    """Games, or episodes, that are counted."""
    result: dict[str, object]
    """For people and programs."""
    state: dict[str, object]
    """For the next attempt."""


class CheckpointWritten(Message):
    """A checkpoint lies complete in `folder`; the supervisor publishes it and answers."""

    type: Literal["checkpoint_written"] = "checkpoint_written"
    folder: str
    step: int
    steps: dict[str, int]
    reason: CheckpointReason
    keep: int
    """Newest checkpoints that the run keeps."""
    metrics: dict[str, float | None]
    """Mean episode return per behavior since the previous checkpoint."""
    request: int | None = None
    """Number of the `SaveCheckpoint` that it answers."""


class CheckpointDeclined(Message):
    """A checkpoint that was asked for can't be written."""

    type: Literal["checkpoint_declined"] = "checkpoint_declined"
    request: int
    detail: str


class Finished(Message):
    """The trainer's last word."""

    type: Literal["finished"] = "finished"
    outcome: Outcome
    """`lost` is the supervisor's own conclusion: the trainer died without a word."""
    reason: str | None = None
    """A `StopReason`."""
    detail: str | None = None


ToSupervisor = Annotated[
    Listening
    | Progress
    | Metrics
    | EventRecord
    | Amended
    | ParameterStates
    | SelfPlayStatus
    | SimulatorUp
    | SimulatorPlays
    | SimulatorDown
    | MatchesResumed
    | MatchesPlayed
    | Assessed
    | CheckpointWritten
    | CheckpointDeclined
    | Finished,
    Field(discriminator="type"),
]

_TO_TRAINER: TypeAdapter[ToTrainer] = TypeAdapter(ToTrainer)
_TO_SUPERVISOR: TypeAdapter[ToSupervisor] = TypeAdapter(ToSupervisor)


class LinkClosed(Exception):
    """The other end is gone."""


def _send(connection: socket.socket, message: Message, timeout: float | None) -> None:
    """Send one frame. Raises `LinkClosed` if the other end is gone or takes nothing for `timeout` seconds."""
    payload = message.model_dump_json().encode()
    left = memoryview(HEADER.pack(len(payload)) + payload)
    try:
        while left:
            if not _wait(connection, select.POLLOUT, timeout):
                raise LinkClosed(f"the other end has taken nothing for {timeout:g} s")
            with contextlib.suppress(BlockingIOError):
                left = left[connection.send(left, socket.MSG_DONTWAIT) :]
    except OSError as error:
        raise LinkClosed(str(error)) from error


def _wait(connection: socket.socket, event: int, timeout: float | None) -> bool:
    """Wait until a blocking socket is ready. Time-outs of socket objects won't do: they make the file non-blocking for
    the other thread, too.
    """
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(None if timeout is None else max(0.0, timeout) * 1000))


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()

    def read(self, timeout: float | None) -> bytes | None:
        """Return the next frame's content, or None if none is complete within `timeout` seconds.

        Raises `LinkClosed` at the end of the stream.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            frame = self._take()
            if frame is not None:
                return frame
            if not _wait(self._connection, select.POLLIN, None if deadline is None else deadline - time.monotonic()):
                return None
            try:
                chunk = self._connection.recv(1 << 16)
            except OSError as error:
                raise LinkClosed(str(error)) from error
            if not chunk:
                raise LinkClosed("end of stream")
            self._buffer += chunk

    def _take(self) -> bytes | None:
        if len(self._buffer) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise LinkClosed(f"frame of {length} bytes")
        if len(self._buffer) < HEADER.size + length:
            return None
        frame = bytes(self._buffer[HEADER.size : HEADER.size + length])
        del self._buffer[: HEADER.size + length]
        return frame


class SupervisorLink:
    """The supervisor's end: synchronous. Only `send` may be used from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._reader = FrameReader(connection)

    def send(self, message: Job | Beat | Order) -> None:
        """Send one message. Raises `LinkClosed` if the trainer is gone or does not read."""
        with self._sending:
            _send(self._connection, message, SEND_SECONDS)

    def receive(self, timeout: float) -> ToSupervisor | None:
        """Return the next message, or None after `timeout` seconds. Raises `LinkClosed`."""
        frame = self._reader.read(timeout)
        return None if frame is None else _TO_SUPERVISOR.validate_json(frame)

    def close(self) -> None:
        """Close this end; the trainer ends itself when it notices."""
        self._connection.close()


class TrainerLink:
    """The trainer's end: two threads around queues, so that no call of the learner ever waits.

    `on_silence(reason)` is called from the reading thread when the supervisor is gone or has been silent for
    `lease_seconds`; it is expected to end the process.
    """

    def __init__(self, connection: socket.socket, on_silence: Callable[[str], None]) -> None:
        self._connection = connection
        self._reader = FrameReader(connection)
        self._on_silence = on_silence
        self._inbox: deque[Order] = deque()
        self._outbox: deque[Message] = deque()
        self._points: list[Point] = []
        self._wake = threading.Condition()
        self._closing = False
        self._threads: list[threading.Thread] = []

    def await_job(self) -> Job:
        """Wait without limit for the first message. Raises `LinkClosed` if the supervisor goes before it sends one."""
        while True:
            frame = self._reader.read(None)
            assert frame is not None, "a read without time-out returns a frame or raises"
            message = _TO_TRAINER.validate_json(frame)
            if isinstance(message, Job):
                return message

    def start(self, lease_seconds: float) -> None:
        """Start both threads; from now on the supervisor must not be silent for `lease_seconds`."""
        self._threads = [
            threading.Thread(target=self._read, args=(lease_seconds,), name="link-reader", daemon=True),
            threading.Thread(target=self._write, name="link-writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def post(self, message: Message) -> None:
        """Queue a message. Never blocks."""
        with self._wake:
            if isinstance(message, Metrics):
                self._points += message.points
                if len(self._points) > METRIC_BACKLOG:
                    self._points = self._points[-1::-2][::-1]
            else:
                self._outbox.append(message)
            self._wake.notify()

    def commands(self) -> list[Order]:
        """Return what has come in since the last call."""
        taken = []
        while self._inbox:
            taken.append(self._inbox.popleft())
        return taken

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, for `timeout` seconds at most, and stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        for thread in self._threads[1:]:
            thread.join(timeout)
        with contextlib.suppress(OSError):  # the supervisor may be gone
            self._connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
        self._connection.close()

    def _read(self, lease_seconds: float) -> None:
        reason = f"the supervisor has been silent for {lease_seconds:g} s"
        try:
            while (frame := self._reader.read(lease_seconds)) is not None:
                message = _TO_TRAINER.validate_json(frame)
                if not isinstance(message, Beat | Job):
                    self._inbox.append(message)
        except LinkClosed:
            reason = "the supervisor is gone"
        if not self._closing:
            self._on_silence(reason)

    def _write(self) -> None:
        while True:
            with self._wake:
                while not (self._outbox or self._points or self._closing):
                    self._wake.wait()
                batch: list[Message] = list(self._outbox)
                self._outbox.clear()
                if self._points:
                    batch.append(Metrics(points=self._points))
                    self._points = []
                if not batch:
                    return
            try:
                for message in batch:
                    _send(self._connection, message, None)
            except LinkClosed:
                return  # the reading thread notices too, and ends the process


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a link."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def describe(message: Message) -> str:
    """Return a message as one line for a person who runs a trainer alone."""
    return json.dumps(message.model_dump(mode="json"))
