"""State of a collector process: sessions on one side, the learner's channel on the other, runners between them.

Everything here runs in the event loop and returns at once (see `process.py`).
"""

import asyncio
import itertools
import time
from dataclasses import replace

import numpy as np
import structlog

from ludus.collector import messages
from ludus.collector.acting import PolicyFactory
from ludus.collector.behaviors import Behaviors
from ludus.collector.channel import Channel, Frame
from ludus.collector.checkpoint_barrier import CheckpointBarrier, hold
from ludus.collector.late_agents import release_late_agents
from ludus.collector.learner_connection import LearnerConnection
from ludus.collector.messages import Kind, unpack_numbered
from ludus.collector.native import NativeSession
from ludus.collector.runner_factory import RunnerFactory
from ludus.collector.service import Outbox
from ludus.collector.session import CONNECTION_LOST, DISCONNECTED, RunnerOf, Session
from ludus.collector.session_snapshots import SessionSnapshot, State
from ludus.collector.settings import CollectorSettings
from ludus.collector.ticks import BatchTicks
from ludus.collector.unity.diagnostics import Connections
from ludus.collector.unity.session import UnitySession
from ludus.protocol.batches import StatValue
from ludus.protocol.codec import CloseCode
from ludus.protocol.environment_parameters import from_plain
from ludus.protocol.spec import BehaviorSpec

log = structlog.get_logger()

TICK_SECONDS = 0.05
"""Period of everything that watches time, and the longest that closed segments stay here."""
STATS_SECONDS = 1.0
FAILED = "the collector made a mistake and is started again; its log has the details"


class CollectorServer:
    """The state of a collector process."""

    def __init__(
        self, channel: Channel, policies: PolicyFactory, start: messages.Settings, kept: State | None = None
    ) -> None:
        """`kept` is what was handed over in a former attempt, if there is anything (`handover.merged`)."""
        settings = CollectorSettings.from_json(start.settings)
        self.settings = settings
        self._index = start.index
        self.port = 0
        """On which it listens, once it does."""
        self.link = link = LearnerConnection(channel, self._orphaned)
        self._loop = asyncio.get_running_loop()
        self._sessions: set[Session] = set()
        self._by_session_id: dict[str, Session] = {}
        self._connections = Connections()
        self._numbers = itertools.count(start.first_number, settings.count)
        self._spent: dict[str, float] = {}
        """Tickets that have opened a session, until they expire: a copy of one opens none."""
        self._index_numbers = itertools.count(1)
        self._barrier = CheckpointBarrier(kept, lambda payload: link.send(Kind.HANDED_OVER, payload))
        self._ticks = BatchTicks(link, self._barrier, self.came_to_rest, self.fail)
        builder = RunnerFactory(settings, start, policies, self._ticks.schedule)
        self._behaviors = Behaviors(link, builder, self._ticks, self._barrier)
        self._runners = self._behaviors.runners
        self._next_stats = 0.0
        self.done: asyncio.Future[messages.CloseAll | None] = self._loop.create_future()
        """Set when the process should end; None = the learner is gone."""

    # Sessions ---------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the loop's time in seconds."""
        return self._loop.time()

    def wall_clock(self) -> float:
        """Return seconds since 1970."""
        return time.time()

    def next_number(self) -> int:
        """Return a number for a simulator that comes without a ticket, unique among the collectors."""
        return next(self._numbers)

    def spend(self, ticket: str, expires_at: float) -> bool:
        """Take a ticket that opens a session until then; False if one was opened with it before."""
        now = self.wall_clock()
        self._spent = {each: until for each, until in self._spent.items() if until > now}
        if ticket in self._spent:
            return False
        self._spent[ticket] = expires_at
        return True

    def next_index_number(self) -> int:
        """Return a number for an agent index."""
        return next(self._index_numbers)

    def session(self, peer: str, outbox: Outbox) -> NativeSession:
        """Make a session for a new stream."""
        return NativeSession(self, peer, outbox.put)

    def unity_session(
        self, peer: str, session_id: str, *, ticket: str | None, client: str, parks: bool, tied: bool
    ) -> UnitySession:
        """Make a session for a new player."""
        return UnitySession(self, peer, session_id, ticket=ticket, client=client, parks=parks, tied=tied)

    def opened(self, session: Session) -> None:
        """Register a session."""
        self._sessions.add(session)

    def welcomed(self, session: Session, behaviors: list[str], client: str) -> None:
        """Register a session that has said hello; an older one of the same session id ends."""
        older = self._by_session_id.get(session.session_id)
        self._by_session_id[session.session_id] = session
        if older is not None:
            code = CloseCode.SUPERSEDED
            older.end(code.value, "a newer stream of this session id took its place", rejoin=code.rejoin)
        self.link.tell(
            messages.SimulatorConnected(
                session.session_id, session.number, self._index, session.peer, client, tuple(behaviors)
            )
        )

    def announced(self, session: Session, spec: BehaviorSpec) -> RunnerOf | None:
        """Return who answers each team of a behavior, or None while the learner decides. Raises ProtocolError."""
        return self._behaviors.announced(session, spec)

    def started(self, session: Session, behaviors: list[str], agents: int) -> None:
        """Tell the learner of a session's first step, or of all behaviors that it has announced by now."""
        self.link.tell(messages.SimulatorStarted(session.session_id, tuple(behaviors), agents))

    def kept(self, session_id: str) -> SessionSnapshot | None:
        """Return where a simulator was in a former attempt, if it was handed over and has not gone on since."""
        return self._barrier.session(session_id)

    def forget(self, session_id: str) -> None:
        """Forget where a simulator was: it goes on from there, or begins again."""
        self._barrier.forget(session_id)

    def came_to_rest(self) -> None:
        """Hand over if this was the last simulator that was waited for."""
        if not self._barrier.pending or not self._barrier.is_complete(self._sessions, self.now()):
            return
        for runner in self._runners.values():
            self._ticks.deliver(runner)
        self._ticks.report_stats()
        self._barrier.hand_over(self._runners.values(), self._sessions)

    def is_connected(self, peer: str) -> bool:
        """Whether the connection of a gRPC peer lives, as far as the host knows."""
        return self._connections.lives(peer, self.now())

    def troubled(self, session: Session, code: str, sentence: str) -> None:
        """Tell the learner of something that is probably not meant so."""
        self.link.tell(messages.SimulatorProblem(session.session_id, session.number, code, sentence))

    def reported(self, stats: list[StatValue], parameter_set: int) -> None:
        """Sum up reported numbers."""
        self._ticks.stats.add(stats, parameter_set)

    def ended(self, session: Session) -> None:
        """Forget a session and tell the learner why it ended."""
        self._sessions.discard(session)
        if self._by_session_id.get(session.session_id) is session:
            del self._by_session_id[session.session_id]
        self._behaviors.ended(session)
        code, reason = session.closed or ("", "")
        self.link.tell(
            messages.SimulatorLeft(session.session_id, session.number, code, reason, session.steps, session.peer)
        )

    # The learner ------------------------------------------------------------------------------------------------

    def readable(self) -> None:
        """Handle what the learner has sent."""
        frames = self.link.receive()
        try:
            for frame in frames:
                self._handle(frame)
        except Exception as error:  # the edge of the process, as in `BatchTicks`
            log.exception("message_of_learner_failed")
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the process because of a mistake of ours. The pool starts another one; partial segments are lost."""
        if not self.done.done():
            self.done.set_exception(error)

    def _orphaned(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _handle(self, frame: Frame) -> None:
        if frame.kind == Kind.BLOCKS:
            number, payload = unpack_numbered(frame.payload)
            runner = self._runners[number]
            runner.recorder.segments.blocks.extend(np.frombuffer(payload, np.int32).tolist())
            runner.wanted_blocks = False
            runner.schedule()
            return
        match message := messages.read(frame):
            case messages.GrantSteps():
                runner = self._runners[message.runner]
                runner.quota.grant(message.round, message.steps, size=message.size, report_every=message.report_every)
                runner.required_version = max(runner.required_version, message.version)
                runner.schedule()
            case messages.Weights():
                self._behaviors.load(message)
            case messages.EndRound():
                self._runners[message.runner].quota.end(message.round)
                self._runners[message.runner].schedule()  # so that the steps which have returned are delivered
            case messages.Admit():
                self._behaviors.admit(message, frame.descriptors)
            case messages.FrozenPolicy():
                (fd,) = frame.descriptors
                self._behaviors.take_opponent(message, fd)
            case messages.BeginEvaluation():
                session = self._by_session_id.get(message.session_id)
                if session is not None:  # else it has left, and the learner is told so
                    self._behaviors.sit(session, message)
            case messages.Opponents():
                self._behaviors.assign_opponents(message)
            case messages.Refuse():
                self._behaviors.refuse(message)
            case messages.Unrecorded():
                self._runners[message.runner].stop_recording()
            case messages.EndSession():
                session = self._by_session_id.get(message.session_id)
                if session is not None:
                    session.end(message.code, message.reason, rejoin=CloseCode(message.code).rejoin)
            case messages.Parameters():
                self._take_parameters(message)
            case messages.Hold():
                self._barrier.begin(self.now() + message.timeout)
                hold(self._runners.values(), held=True)
                self.came_to_rest()
            case messages.Release():
                self._barrier.end()
                hold(self._runners.values(), held=False)
            case messages.Forget():
                self.forget(message.session_id)
            case messages.CloseAll():
                if not self.done.done():
                    self.done.set_result(message)
            case _:
                raise ValueError(f"the learner sent {type(message).__name__}")

    def _take_parameters(self, message: messages.Parameters) -> None:
        """Keep the newest environment parameters; sessions look at them with every answer, or are reset now."""
        self.settings = replace(
            self.settings,
            environment_parameters=from_plain(message.environment_parameters),
            parameter_set=message.parameter_set,
        )
        if message.reset:
            for runner in self._runners.values():
                self._ticks.deliver(runner)  # what one team's turn brought comes before what another one's brings
            for session in [session for session in self._sessions if session.number >= 0]:
                session.reset()

    # The clock --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due by the clock."""
        now = self.now()
        self.came_to_rest()
        for runner in self._runners.values():
            self._ticks.deliver(runner)
            release_late_agents(runner, self._sessions, now, self.settings.late_agents_grace)
        self._end_silent_sessions(now)
        if now >= self._next_stats:
            self._next_stats = now + STATS_SECONDS
            self._ticks.report_stats()

    def _end_silent_sessions(self, now: float) -> None:
        for session in list(self._sessions):
            if session.is_gone():
                session.end(DISCONNECTED, CONNECTION_LOST, rejoin=True, tell=False)
                continue
            error = session.overdue(now)
            if error is not None:
                session.end(error.code.value, error.message, rejoin=error.code.rejoin)

    def close_sessions(self, message: messages.CloseAll) -> None:
        """End every session, and send the learner what is still unsent."""
        for runner in self._runners.values():
            self._ticks.deliver(runner)
        self._ticks.report_stats()
        for session in list(self._sessions):
            session.end(message.code, message.reason, rejoin=message.rejoin)

    def abandon_sessions(self) -> None:
        """End every session after an error of the collector."""
        for session in list(self._sessions):
            session.abandon(FAILED)

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._sessions)
