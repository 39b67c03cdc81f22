"""Session: the state machine of one simulator's stream, without the transport.

`receive` takes a message's bytes and raises `ProtocolError` when the simulator breaks the contract; whoever carries the
stream then calls `end`. Whatever happens in a session, the others don't notice.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from google.protobuf.message import DecodeError

from ludus.spec import BehaviorSpec
from ludus.wire import simulation_pb2 as pb
from ludus.wire.batches import BehaviorBatch, StatValue
from ludus.wire.codec import (
    PROTOCOL_VERSION,
    BehaviorLayout,
    CloseCode,
    ProtocolError,
    decode_stats,
    decode_step,
    spec_from_message,
)
from ludus.wire.specs import MAX_BEHAVIORS
from server.gateway.tickets import TicketExpired, TicketInvalid, verify
from worker.collector.batcher import Lane
from worker.collector.settings import CollectorSettings
from worker.collector.tracker import Roster

INCARNATION = re.compile(r"[0-9A-Za-z_-]{1,64}")
MAX_CLIENT = 100
MAX_UNADMITTED_STEPS = 64
"""Steps of a session that are kept while the learner decides about their behavior."""

LEFT = "left"
"""Code of a session that the client ended by half-closing."""
DISCONNECTED = "disconnected"
"""Code of a session whose stream broke."""


class Collector(Protocol):
    """What a session needs of the process that it lives in."""

    settings: CollectorSettings

    def now(self) -> float:
        """Return the loop's time in seconds."""

    def wall_clock(self) -> float:
        """Return seconds since 1970."""

    def welcomed(self, session: "Session", behaviors: list[str], client: str) -> None:
        """Register a session that has said hello; an older one of the same incarnation ends."""

    def next_number(self) -> int:
        """Return a number for a simulator that comes without a ticket."""

    def announced(self, session: "Session", spec: BehaviorSpec) -> Lane | None:
        """Return the lane of a behavior, or None while the learner decides. Raises ProtocolError."""

    def started(self, session: "Session", behaviors: list[str], agents: int) -> None:
        """Note a session's first step."""

    def reported(self, stats: list[StatValue]) -> None:
        """Take reported numbers."""

    def next_roster(self) -> int:
        """Return a number for a roster."""


class Session:
    """One simulator."""

    def __init__(self, collector: Collector, peer: str, send: Callable[[bytes], None]) -> None:
        self._collector = collector
        self._send = send
        self.peer = peer
        self.incarnation = ""
        self.number = -1
        self.started = False
        """Whether a step arrived."""
        self.closed: tuple[str, str] | None = None
        """Code and reason, once the session has ended."""
        self.on_end: Callable[[], object] = lambda: None
        """Called once when the session ends, whoever ends it."""
        self.last_activity = collector.now()
        """When something was last received or sent."""
        self.behaviors: dict[str, BehaviorLayout] = {}
        """By announced name."""
        self.rosters: dict[str, tuple[Lane, Roster]] = {}
        """By announced name, once the behavior is admitted."""
        self._unadmitted: defaultdict[str, list[tuple[int, BehaviorBatch]]] = defaultdict(list)
        self._step_id = 0
        self._reset_id = 0
        self._past_steps = 0

    @property
    def steps(self) -> int:
        """Steps that came back from this simulator."""
        return self._past_steps + sum(
            roster.former_steps + lane.tracker.steps_of(np.fromiter(roster.table.values(), np.intp))
            for lane, roster in self.rosters.values()
        )

    def receive(self, data: bytes) -> None:
        """Handle one message. Raises ProtocolError."""
        self.last_activity = self._collector.now()
        limit = self._collector.settings.max_message_bytes
        if len(data) > limit:
            raise ProtocolError(
                CloseCode.MESSAGE_TOO_LARGE, f"a message has {len(data)} bytes; at most {limit} can be sent"
            )
        try:
            request = pb.ConnectRequest.FromString(data)
        except DecodeError:
            raise ProtocolError(
                CloseCode.MALFORMED_MESSAGE, f"a message of {len(data)} bytes is no ConnectRequest"
            ) from None
        kind = request.WhichOneof("message")
        if kind == "step":
            self._step(request.step)
        elif kind == "hello":
            self._hello(request.hello)
        elif kind == "announce":
            self._announce(request.announce)
        else:
            raise ProtocolError(CloseCode.MALFORMED_MESSAGE, "a message holds neither Hello nor Announce nor Step")

    def answer(self, response: bytes) -> None:
        """Send actions (called by the batcher)."""
        self.last_activity = self._collector.now()
        self._send(response)

    def admit(self, spec: BehaviorSpec, lane: Lane) -> None:
        """Let the agents of a behavior act, and hand over the steps that came before. Raises ProtocolError."""
        for name, layout in self.behaviors.items():
            if layout.spec.behavior == spec.behavior and name not in self.rosters:
                if not same_spec(layout.spec, spec):
                    raise ProtocolError(CloseCode.SPEC_CONFLICT, conflict(spec, layout.spec))
                roster = Roster(self._collector.next_roster(), self.number, name)
                self.rosters[name] = (lane, roster)
                for step_id, batch in self._unadmitted.pop(name, []):
                    lane.stage(self, roster, step_id, batch)

    def reset(self, environment_parameters: dict[str, float]) -> None:
        """Make the simulator begin new episodes; everything pending is void."""
        self._reset_id += 1
        self._forget_agents()
        message = pb.Reset(reset_id=self._reset_id, environment_parameters=environment_parameters)
        self._send(pb.ConnectResponse(reset=message).SerializeToString())

    def end(self, code: str, reason: str, *, rejoin: bool, tell: bool = True) -> None:
        """End the session: its partial segments are dropped, the simulator is told if it can be."""
        if self.closed is not None:
            return
        self.closed = (code, reason)
        self._forget_agents()
        self.rosters.clear()
        if tell:
            message = pb.Close(code=code, reason=reason, rejoin=rejoin)
            self._send(pb.ConnectResponse(close=message).SerializeToString())
        self.on_end()

    # Messages ---------------------------------------------------------------------------------------------------

    def _hello(self, hello: pb.Hello) -> None:
        if self.number >= 0:
            raise ProtocolError(CloseCode.UNEXPECTED_MESSAGE, "Hello came twice; it opens a stream exactly once")
        if hello.protocol_version != PROTOCOL_VERSION:
            raise ProtocolError(
                CloseCode.PROTOCOL_VERSION,
                f"the client speaks protocol version {hello.protocol_version}, this server {PROTOCOL_VERSION}",
            )
        if INCARNATION.fullmatch(hello.incarnation) is None:
            raise ProtocolError(CloseCode.BAD_HELLO, "an incarnation has 1 to 64 characters of 0-9, A-Z, a-z, _ and -")
        if len(hello.behaviors) > MAX_BEHAVIORS or len(hello.client.encode()) > MAX_CLIENT:
            raise ProtocolError(
                CloseCode.BAD_HELLO,
                f"at most {MAX_BEHAVIORS} behaviors, and {MAX_CLIENT} bytes of client, are possible",
            )
        self.incarnation = hello.incarnation
        number = self._number_of(hello)
        specs = [spec_from_message(message) for message in hello.behaviors]
        self.number = number
        self._collector.welcomed(self, [spec.name for spec in specs], hello.client)
        self._welcome()
        for spec in specs:
            self._introduce(spec)

    def _number_of(self, hello: pb.Hello) -> int:
        settings = self._collector.settings
        if settings.ticket_key is None:
            return self._collector.next_number()
        try:
            claims = verify(settings.ticket_key, hello.ticket, self._collector.wall_clock())
        except TicketExpired as error:
            raise ProtocolError(CloseCode.TICKET_EXPIRED, str(error)) from None
        except TicketInvalid as error:
            raise ProtocolError(CloseCode.BAD_TICKET, str(error)) from None
        if (claims.run_id, claims.epoch) != (settings.run_id, settings.epoch):
            raise ProtocolError(
                CloseCode.TICKET_EXPIRED, "the ticket is for another attempt; join again for a fresh one"
            )
        if claims.incarnation != hello.incarnation:
            raise ProtocolError(CloseCode.BAD_TICKET, "the ticket was given to another incarnation")
        return claims.number

    def _welcome(self) -> None:
        settings = self._collector.settings
        welcome = pb.Welcome(
            run_id=settings.run_id,
            simulator_number=self.number,
            seed=(settings.seed + self.number) % 2**31,
            environment_parameters=settings.environment_parameters,
            max_message_bytes=settings.max_message_bytes,
            step_timeout_seconds=settings.step_timeout,
        )
        self._send(pb.ConnectResponse(welcome=welcome).SerializeToString())

    def _announce(self, announce: pb.Announce) -> None:
        self._expect_hello()
        for message in announce.behaviors:
            self._introduce(spec_from_message(message))

    def _introduce(self, spec: BehaviorSpec) -> None:
        known = self.behaviors.get(spec.name)
        if known is not None and known.spec != spec:
            raise ProtocolError(CloseCode.SPEC_CONFLICT, conflict(known.spec, spec))
        if known is None:
            if len(self.behaviors) >= MAX_BEHAVIORS:
                raise ProtocolError(CloseCode.BAD_SPEC, f"a simulator can have at most {MAX_BEHAVIORS} behaviors")
            self.behaviors[spec.name] = BehaviorLayout(spec)
            lane = self._collector.announced(self, spec)
            if lane is not None:
                self.admit(spec, lane)

    def _step(self, step: pb.Step) -> None:
        self._expect_hello()
        step_id = step.step_id
        if step_id <= self._step_id:
            raise ProtocolError(CloseCode.STEP_ORDER, f"step {step_id} came after step {self._step_id}; ids must grow")
        if step.reset_id > self._reset_id:
            raise ProtocolError(
                CloseCode.STEP_ORDER, f"step {step_id} names reset {step.reset_id}; the last one was {self._reset_id}"
            )
        self._step_id = step_id
        if step.stats:
            self._collector.reported(decode_stats(step))
        batches = decode_step(step, self.behaviors)
        if not self.started:
            self._started(batches)
        if step.reset_id < self._reset_id:
            return  # it was sent before the reset arrived there
        for batch in batches:
            pair = self.rosters.get(batch.behavior)
            if pair is None:
                self._keep(step_id, batch)
            else:
                lane, roster = pair
                lane.stage(self, roster, step_id, batch)

    def _started(self, batches: list[BehaviorBatch]) -> None:
        self.started = True
        agents = sum(len(batch.decisions.agent_ids) for batch in batches if batch.decisions is not None)
        self._collector.started(self, list(self.behaviors), agents)

    def _keep(self, step_id: int, batch: BehaviorBatch) -> None:
        """Keep a step whose behavior is not admitted yet."""
        kept = self._unadmitted[batch.behavior]
        if len(kept) >= MAX_UNADMITTED_STEPS:
            raise ProtocolError(
                CloseCode.DECISION_PENDING, f"more than {MAX_UNADMITTED_STEPS} steps came before the first answer"
            )
        if not kept:
            wait = pb.Wait(reason=f"the run is preparing the behavior {batch.behavior}")
            self._send(pb.ConnectResponse(wait=wait).SerializeToString())
        kept.append((step_id, batch))

    def _expect_hello(self) -> None:
        if self.number < 0:
            raise ProtocolError(CloseCode.STEP_BEFORE_HELLO, "the first message of a stream must be Hello")

    def _forget_agents(self) -> None:
        for lane, roster in self.rosters.values():
            lane.drop(roster)
        self._past_steps = self.steps
        for _, roster in self.rosters.values():
            roster.former_steps = 0
        self._unadmitted.clear()


def conflict(known: BehaviorSpec, announced: BehaviorSpec) -> str:
    """Say how two specs of one behavior differ."""
    return (
        f"behavior {announced.behavior!r} was announced with {describe(announced)}, "
        f"but the run uses {describe(known)}; all simulators of a run must agree"
    )


def describe(spec: BehaviorSpec) -> str:
    """Describe a spec in a phrase."""
    observations = ", ".join(f"{item.dtype} {item.shape}" for item in spec.observations)
    actions = spec.actions
    return (
        f"observations [{observations}], {actions.continuous_size} continuous actions and "
        f"discrete branches {actions.discrete_branches}"
    )


def same_spec(one: BehaviorSpec, other: BehaviorSpec) -> bool:
    """Whether two specs agree; the teams in their names don't matter."""
    return replace(one, name=other.name) == other
