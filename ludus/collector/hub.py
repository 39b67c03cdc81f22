"""Hub: the state of a collector process. Sessions on one side, the learner's channel on the other, lanes between them.

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
from ludus.collector.handover import KeptSession, State
from ludus.collector.holding import Holding, hold
from ludus.collector.lanes import LaneBuilder
from ludus.collector.link import Link
from ludus.collector.messages import Kind, unpack_lane
from ludus.collector.native import NativeSession
from ludus.collector.permits import Permits
from ludus.collector.service import Outbox
from ludus.collector.session import CONNECTION_LOST, DISCONNECTED, LaneOf, Session
from ludus.collector.settings import CollectorSettings
from ludus.collector.turns import Turns
from ludus.collector.unity.session import UnitySession
from ludus.collector.unity.trouble import Connections
from ludus.protocol.batches import StatValue
from ludus.protocol.codec import CloseCode
from ludus.protocol.environment_parameters import from_plain
from ludus.protocol.spec import BehaviorSpec

log = structlog.get_logger()

TICK_SECONDS = 0.05
"""Period of everything that watches time, and the longest that closed segments stay here."""
STATS_SECONDS = 1.0
FAILED = "the collector made a mistake and is started again; its log has the details"


class Collector:
    """The state of a collector process."""

    def __init__(
        self, channel: Channel, policies: PolicyFactory, start: messages.Settings, kept: State | None = None
    ) -> None:
        """`kept` is what was handed over in a former attempt, if there is anything (`handover.merged`)."""
        settings = CollectorSettings.from_json(start.settings)
        self.settings = settings
        self.port = 0
        """On which it listens, once it does."""
        self.link = link = Link(channel, self._orphaned)
        self._loop = asyncio.get_running_loop()
        self._sessions: set[Session] = set()
        self._by_incarnation: dict[str, Session] = {}
        self._connections = Connections()
        self._numbers = itertools.count(start.first_number, settings.count)
        self._spent: dict[str, float] = {}
        """Tickets that have opened a session, until they expire: a copy of one opens none."""
        self._rosters = itertools.count(1)
        self._holding = Holding(kept, lambda payload: link.send(Kind.HANDED_OVER, payload))
        self._turns = Turns(link, self._holding, self.came_to_rest, self.fail)
        builder = LaneBuilder(settings, start, policies, self._turns.schedule)
        self._behaviors = Behaviors(link, builder, self._turns, self._holding)
        self._lanes = self._behaviors.lanes
        self._permits = Permits(link, settings.straggler_grace)
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

    def next_roster(self) -> int:
        """Return a number for a roster."""
        return next(self._rosters)

    def session(self, peer: str, outbox: Outbox) -> NativeSession:
        """Make a session for a new stream."""
        return NativeSession(self, peer, outbox.put)

    def unity_session(
        self, peer: str, incarnation: str, *, ticket: str | None, client: str, parks: bool, tied: bool
    ) -> UnitySession:
        """Make a session for a new player."""
        return UnitySession(self, peer, incarnation, ticket=ticket, client=client, parks=parks, tied=tied)

    def opened(self, session: Session) -> None:
        """Register a session."""
        self._sessions.add(session)

    def welcomed(self, session: Session, behaviors: list[str], client: str) -> None:
        """Register a session that has said hello; an older one of the same incarnation ends."""
        older = self._by_incarnation.get(session.incarnation)
        self._by_incarnation[session.incarnation] = session
        if older is not None:
            code = CloseCode.SUPERSEDED
            older.end(code.value, "a newer stream of this incarnation took its place", rejoin=code.rejoin)
        self.link.tell(messages.Connected(session.incarnation, session.number, session.peer, client, behaviors))

    def announced(self, session: Session, spec: BehaviorSpec) -> LaneOf | None:
        """Return who answers each team of a behavior, or None while the learner decides. Raises ProtocolError."""
        return self._behaviors.announced(session, spec)

    def started(self, session: Session, behaviors: list[str], agents: int) -> None:
        """Tell the learner of a session's first step, or of all behaviors that it has announced by now."""
        self.link.tell(messages.Started(session.incarnation, behaviors, agents))

    def kept(self, incarnation: str) -> KeptSession | None:
        """Return where a simulator was in a former attempt, if it was handed over and has not gone on since."""
        return self._holding.session(incarnation)

    def forget(self, incarnation: str) -> None:
        """Forget where a simulator was: it goes on from there, or begins anew."""
        self._holding.forget(incarnation)

    def came_to_rest(self) -> None:
        """Hand over if this was the last simulator that was waited for."""
        if not self._holding.pending or not self._holding.is_complete(self._sessions, self.now()):
            return
        for lane in self._lanes.values():
            self._turns.deliver(lane)
        self._turns.report_stats()
        self._holding.hand_over(self._lanes.values(), self._sessions)

    def is_connected(self, peer: str) -> bool:
        """Whether the connection of a gRPC peer lives, as far as the host knows."""
        return self._connections.lives(peer, self.now())

    def troubled(self, session: Session, code: str, sentence: str) -> None:
        """Tell the learner of something that is probably not meant so."""
        self.link.tell(messages.Trouble(session.incarnation, session.number, code, sentence))

    def reported(self, stats: list[StatValue], parameter_set: int) -> None:
        """Sum up reported numbers."""
        self._turns.stats.add(stats, parameter_set)

    def ended(self, session: Session) -> None:
        """Forget a session and tell the learner why it ended."""
        self._sessions.discard(session)
        if self._by_incarnation.get(session.incarnation) is session:
            del self._by_incarnation[session.incarnation]
        self._behaviors.ended(session)
        code, reason = session.closed or ("", "")
        self.link.tell(messages.Left(session.incarnation, session.number, code, reason, session.steps, session.peer))

    # The learner ------------------------------------------------------------------------------------------------

    def readable(self) -> None:
        """Handle what the learner has sent."""
        frames = self.link.receive()
        try:
            for frame in frames:
                self._handle(frame)
        except Exception as error:  # the edge of the process, as in `Turns`
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
        match Kind(frame.kind):
            case Kind.BLOCKS:
                number, payload = unpack_lane(frame.payload)
                lane = self._lanes[number]
                lane.tracker.segments.blocks.extend(np.frombuffer(payload, np.int32).tolist())
                lane.wanted_blocks = False
                lane.schedule()
            case Kind.GRANT:
                grant = messages.GrantSteps.unpack(frame.payload)
                self._permits.take(self._lanes[grant.lane], grant)
            case Kind.WEIGHTS:
                self._behaviors.load(messages.Weights.unpack(frame.payload))
            case Kind.RECALL:
                recall = messages.RecallSteps.unpack(frame.payload)
                self._permits.give_back(self._lanes[recall.lane], recall)
            case Kind.ADMIT:
                self._behaviors.admit(messages.Admit.unpack(frame.payload), frame.descriptors)
            case Kind.FROZEN_POLICY:
                (fd,) = frame.descriptors
                self._behaviors.take_opponent(messages.FrozenPolicy.unpack(frame.payload), fd)
            case Kind.SIT:
                sit = messages.Sit.unpack(frame.payload)
                session = self._by_incarnation.get(sit.incarnation)
                if session is not None:  # else it has left, and the learner hears of it
                    self._behaviors.sit(session, sit)
            case Kind.OPPONENTS:
                self._behaviors.oppose(messages.Opponents.unpack(frame.payload))
            case Kind.REFUSE:
                self._behaviors.refuse(messages.Refuse.unpack(frame.payload))
            case Kind.UNRECORDED:
                self._lanes[messages.Unrecorded.unpack(frame.payload).lane].stop_recording()
            case Kind.END_SESSION:
                self._end_session(messages.EndSession.unpack(frame.payload))
            case Kind.PARAMETERS:
                self._take_parameters(messages.Parameters.unpack(frame.payload))
            case Kind.HOLD:
                self._holding.begin(self.now() + messages.Hold.unpack(frame.payload).patience)
                hold(self._lanes.values(), held=True)
                self.came_to_rest()
            case Kind.RELEASE:
                self._holding.end()
                hold(self._lanes.values(), held=False)
            case Kind.FORGET:
                self.forget(messages.Forget.unpack(frame.payload).incarnation)
            case Kind.CLOSE:
                if not self.done.done():
                    self.done.set_result(messages.CloseAll.unpack(frame.payload))
            case kind:
                raise ValueError(f"the learner sent a frame of kind {kind.name}")

    def _take_parameters(self, message: messages.Parameters) -> None:
        """Keep the newest environment parameters; sessions look at them with every answer, or are reset now."""
        self.settings = replace(
            self.settings,
            environment_parameters=from_plain(message.environment_parameters),
            parameter_set=message.parameter_set,
        )
        if message.reset:
            for lane in self._lanes.values():
                self._turns.deliver(lane)  # what one team's turn brought comes before what another one's brings
            for session in [session for session in self._sessions if session.number >= 0]:
                session.reset()

    def _end_session(self, message: messages.EndSession) -> None:
        session = self._by_incarnation.get(message.incarnation)
        if session is not None:
            session.end(message.code, message.reason, rejoin=CloseCode(message.code).rejoin)

    # The clock --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due by the clock."""
        now = self.now()
        self.came_to_rest()
        for lane in self._lanes.values():
            self._turns.deliver(lane)
            self._permits.release_stragglers(lane, self._sessions, now)
            self._permits.return_idle(lane)
        self._end_silent_sessions(now)
        if now >= self._next_stats:
            self._next_stats = now + STATS_SECONDS
            self._turns.report_stats()

    def _end_silent_sessions(self, now: float) -> None:
        for session in list(self._sessions):
            if session.is_gone():
                session.end(DISCONNECTED, CONNECTION_LOST, rejoin=True, tell=False)
                continue
            error = session.overdue(now)
            if error is not None:
                session.end(error.code.value, error.message, rejoin=error.code.rejoin)

    def close_sessions(self, message: messages.CloseAll) -> None:
        """Send everybody away, and the learner what it has not been told yet."""
        for lane in self._lanes.values():
            self._turns.deliver(lane)
        self._turns.report_stats()
        for session in list(self._sessions):
            session.end(message.code, message.reason, rejoin=message.rejoin)

    def abandon_sessions(self) -> None:
        """Send everybody away after a mistake of ours."""
        for session in list(self._sessions):
            session.abandon(FAILED)

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._sessions)
