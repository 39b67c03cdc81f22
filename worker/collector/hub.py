"""Hub: the state of a collector process. Sessions on one side, the learner's channel on the other, lanes between them.

Everything here runs in the event loop and returns at once (see `process.py`).
"""

import asyncio
import itertools
import os
import time
from dataclasses import astuple, dataclass, field, replace

import numpy as np
import structlog

from ludus.environment_parameters import from_plain
from ludus.spec import BehaviorSpec
from ludus.wire.batches import StatValue
from ludus.wire.codec import CloseCode, ProtocolError
from worker.collector import messages
from worker.collector.agents import Roster
from worker.collector.assessment import AssessmentLane, Sittings
from worker.collector.batcher import BaseLane, Lane
from worker.collector.exploration import PinkNoise
from worker.collector.handover import KeptSession, State
from worker.collector.holding import Holding, hold
from worker.collector.matches import Referee
from worker.collector.messages import Kind, Message, pack_lane, unpack_lane
from worker.collector.native import NativeSession
from worker.collector.opponents import Opponents, OppositionLane
from worker.collector.rounds import Rounds
from worker.collector.service import Outbox
from worker.collector.session import CONNECTION_LOST, DISCONNECTED, LaneOf, Session, conflict, same_spec
from worker.collector.settings import CollectorSettings
from worker.collector.stats import StatSums
from worker.collector.tracker import Tracker
from worker.collector.unity.session import UnitySession
from worker.collector.unity.trouble import Connections
from worker.experience.arena import Arena, ArenaLayout
from worker.experience.channel import Channel, ChannelClosedError, Frame
from worker.experience.weights import WeightBuffers, WeightsLayout, thaw
from worker.networks.acting import make_policy, make_stacked

log = structlog.get_logger()

TICK_SECONDS = 0.05
"""Period of everything that watches time, and the longest that closed segments stay here."""
STATS_SECONDS = 1.0
PROMPT_SEGMENTS = 64
"""So many closed segments are delivered at once."""


@dataclass(slots=True)
class Behavior:
    """A behavior that some session announced."""

    spec: BehaviorSpec
    lane: Lane | None = None
    side: "Side | None" = None
    """In self-play, once the behavior is admitted."""
    assessment: AssessmentLane | None = None
    """In an assessment, once the behavior is admitted; there is no other lane then."""
    weights: WeightBuffers | None = None
    refusal: tuple[str, str] | None = None
    """Code and reason."""
    sessions: set[Session] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """With teams, as the learner was told of them."""

    def lanes(self) -> LaneOf | None:
        """Return who answers each team; None while the learner decides."""
        lane, side, assessment = self.lane, self.side, self.assessment
        if assessment is not None:
            return (lambda _: assessment) if assessment.ready else None
        if lane is None or (side is not None and not side.known):
            return None
        return lambda team: lane if side is None or team == side.learning else side.opposition


@dataclass(slots=True)
class Side:
    """Who of a behavior in self-play learns, and who answers the others."""

    opposition: OppositionLane
    referee: Referee
    known: bool = False
    """Whether the learner has said which team learns, and what the others play."""
    learning: int | None = None


class Collector:
    """The state of a collector process: sessions, behaviors, the channel to the learner."""

    def __init__(self, channel: Channel, start: messages.Settings, kept: State | None = None) -> None:
        """`kept` is what was handed over in a former attempt, if there is anything (`handover.merged`)."""
        settings = CollectorSettings.from_json(start.settings)
        self.settings = settings
        self._start = start
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._sessions: set[Session] = set()
        self._by_incarnation: dict[str, Session] = {}
        self._behaviors: dict[str, Behavior] = {}
        self._lanes: dict[int, Lane] = {}
        self._weights: dict[int, WeightBuffers] = {}
        self._sides: dict[int, Side] = {}
        """By lane, of behaviors in self-play."""
        self._assessed: dict[int, AssessmentLane] = {}
        """By lane."""
        self._stats = StatSums()
        self._connections = Connections()
        self._numbers = itertools.count(start.first_number, settings.count)
        self.port = 0
        """On which it listens, once it does."""
        self._spent: dict[str, float] = {}
        """Tickets that have opened a session, until they expire: a copy of one opens none."""
        self._rosters = itertools.count(1)
        self._due: list[BaseLane] = []
        self._recalled: dict[int, int] = {}
        """Lane -> round in which other collectors lack permits."""
        self._next_stats = 0.0
        self._orphan = False
        self._holding = Holding(kept, lambda payload: self._send(Kind.HANDED_OVER, payload))
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
        self.tell(messages.Connected(session.incarnation, session.number, session.peer, client, behaviors))

    def announced(self, session: Session, spec: BehaviorSpec) -> LaneOf | None:
        """Return who answers each team of a behavior, or None while the learner decides. Raises ProtocolError."""
        behavior = self._behaviors.setdefault(spec.behavior, Behavior(spec))
        if behavior.refusal is not None:
            code, reason = behavior.refusal
            raise ProtocolError(CloseCode(code), reason)
        if not same_spec(behavior.spec, spec):
            raise ProtocolError(CloseCode.SPEC_CONFLICT, conflict(behavior.spec, spec))
        behavior.sessions.add(session)
        if spec.name not in behavior.names:
            behavior.names.add(spec.name)
            self.tell(messages.Announced(messages.spec_to_text(spec)))
        return behavior.lanes()

    def started(self, session: Session, behaviors: list[str], agents: int) -> None:
        """Tell the learner of a session's first step, or of all behaviors that it has announced by now."""
        self.tell(messages.Started(session.incarnation, behaviors, agents))

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
            self._deliver(lane)
        self._report_stats()
        self._holding.hand_over(self._lanes.values(), self._sessions)

    def is_connected(self, peer: str) -> bool:
        """Whether the connection of a gRPC peer lives, as far as the host knows."""
        return self._connections.lives(peer, self.now())

    def troubled(self, session: Session, code: str, sentence: str) -> None:
        """Tell the learner of something that is probably not meant so."""
        self.tell(messages.Trouble(session.incarnation, session.number, code, sentence))

    def reported(self, stats: list[StatValue], parameter_set: int) -> None:
        """Sum up reported numbers."""
        self._stats.add(stats, parameter_set)

    def ended(self, session: Session) -> None:
        """Forget a session and tell the learner why it ended."""
        self._sessions.discard(session)
        if self._by_incarnation.get(session.incarnation) is session:
            del self._by_incarnation[session.incarnation]
        for behavior in list(self._behaviors.values()):
            behavior.sessions.discard(session)
            if (behavior.lane or behavior.assessment or behavior.refusal) is None and not behavior.sessions:
                # Nobody waits for a decision any more: the next simulator may bring another spec.
                del self._behaviors[behavior.spec.behavior]
        code, reason = session.closed or ("", "")
        self.tell(messages.Left(session.incarnation, session.number, code, reason, session.steps, session.peer))

    # The learner ------------------------------------------------------------------------------------------------

    def tell(self, message: Message) -> None:
        """Send a control message to the learner."""
        self._send(message.kind, message.pack())

    def _send(self, kind: Kind, payload: bytes) -> None:
        if self._orphan:
            return
        try:
            self._channel.send(kind, payload)
            if self._channel.pending:
                self._loop.add_writer(self._channel.fileno(), self._writable)
        except ChannelClosedError:
            self._orphaned()

    def _writable(self) -> None:
        try:
            self._channel.flush()
        except ChannelClosedError:
            self._orphaned()
        if not self._channel.pending:
            self._loop.remove_writer(self._channel.fileno())

    def readable(self) -> None:
        """Handle what the learner has sent."""
        try:
            frames = self._channel.receive()
        except ChannelClosedError:
            self._orphaned()
            return
        try:
            for frame in frames:
                self._handle(frame)
        except Exception as error:  # the edge of the process, as in `_run_due`
            log.exception("message_of_learner_failed")
            self.fail(error)

    def _orphaned(self) -> None:
        self._orphan = True
        self._loop.remove_reader(self._channel.fileno())
        self._loop.remove_writer(self._channel.fileno())
        if not self.done.done():
            self.done.set_result(None)

    def _handle(self, frame: Frame) -> None:
        match Kind(frame.kind):
            case Kind.BLOCKS:
                number, payload = unpack_lane(frame.payload)
                lane = self._lanes[number]
                lane.tracker.segments.blocks.extend(np.frombuffer(payload, np.int32).tolist())
                lane.wanted_blocks = False
                self.schedule(lane)
            case Kind.GRANT:
                self._grant(messages.GrantSteps.unpack(frame.payload))
            case Kind.WEIGHTS:
                self._load(messages.Weights.unpack(frame.payload))
            case Kind.RECALL:
                self._recall(messages.RecallSteps.unpack(frame.payload))
            case Kind.ADMIT:
                self._admit(messages.Admit.unpack(frame.payload), frame.descriptors)
            case Kind.FROZEN_POLICY:
                (fd,) = frame.descriptors
                self._take_policy(messages.FrozenPolicy.unpack(frame.payload), fd)
            case Kind.SIT:
                self._sit(messages.Sit.unpack(frame.payload))
            case Kind.OPPONENTS:
                self._oppose(messages.Opponents.unpack(frame.payload))
            case Kind.REFUSE:
                self._refuse(messages.Refuse.unpack(frame.payload))
            case Kind.UNRECORDED:
                self._lanes[messages.Unrecorded.unpack(frame.payload).lane].stop_recording()
            case Kind.END_SESSION:
                self._end_session(messages.EndSession.unpack(frame.payload))
            case Kind.RESET:
                self._take_parameters(messages.ResetAll.unpack(frame.payload))
                for lane in self._lanes.values():
                    self._deliver(lane)  # what one team's turn brought comes before what another one's brings
                for session in [session for session in self._sessions if session.number >= 0]:
                    session.reset()
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

    def _take_parameters(self, message: messages.ResetAll | messages.Parameters) -> None:
        """Keep the newest environment parameters; sessions look at them with every answer."""
        self.settings = replace(
            self.settings,
            environment_parameters=from_plain(message.environment_parameters),
            parameter_set=message.parameter_set,
        )

    def _admit(self, message: messages.Admit, descriptors: tuple[int, ...]) -> None:
        arena_fd, weights_fd = descriptors
        if message.assessment:
            os.close(weights_fd)  # nothing is published
            self._admit_assessed(message, arena_fd)
            return
        spec = messages.spec_from_text(message.spec)
        arena = Arena(arena_fd, ArenaLayout(spec, message.rows, message.blocks, message.memory_size))
        arena.close()  # the mapping stays
        weights = WeightBuffers(weights_fd, WeightsLayout(message.weights_size, message.weight_buffers))
        weights.close()
        rounds = Rounds(self._start.index, self.settings.count)
        behavior = self._behaviors.setdefault(spec.behavior, Behavior(spec))
        lane = Lane(
            number=message.lane,
            behavior=spec.behavior,
            policy=make_policy(spec, message.network_settings, message.squashed, message.device),
            tracker=Tracker(arena, message.time_horizon, rounds),
            rounds=rounds,
            rng=np.random.default_rng([self.settings.seed, self._start.index, self._start.generation, message.lane]),
            low_blocks=message.low_blocks,
            ticks=(self._start.generation * self.settings.count + self._start.index) << 32,
            noise=PinkNoise(spec.actions.continuous_size) if message.pink_noise else None,
            schedule=lambda: self.schedule(lane),
        )
        if not message.self_play:
            self._holding.restore(lane)
        behavior.spec, behavior.lane, behavior.weights = spec, lane, weights
        self._lanes[message.lane] = lane
        self._weights[message.lane] = weights
        if message.self_play:
            lane.observer = referee = Referee()
            behavior.side = self._sides[message.lane] = Side(self._opposition(message, spec, arena), referee)
        self._admit_sessions(behavior)

    def _admit_assessed(self, message: messages.Admit, arena_fd: int) -> None:
        """Make the lane of a behavior whose frozen policies are judged. It plays when their weights are here."""
        spec = messages.spec_from_text(message.spec)
        arena = Arena(arena_fd, ArenaLayout(spec, message.rows, message.blocks, message.memory_size))
        arena.close()  # the mapping stays
        settings, sittings = self.settings, Sittings()
        seed = [settings.seed, settings.epoch, self._start.index, self._start.generation, message.lane]
        lane = AssessmentLane(
            number=message.lane,
            behavior=spec.behavior,
            policies=[make_policy(spec, **each, device=message.device) for each in message.assessment],
            sittings=sittings,
            observer=sittings,
            tracker=Tracker(arena, message.time_horizon, Rounds()),
            rounds=Rounds(),
            rng=np.random.default_rng(seed),
            low_blocks=0,
            recorded=False,
            version=0,
            schedule=lambda: self.schedule(lane),
        )
        behavior = self._behaviors.setdefault(spec.behavior, Behavior(spec))
        behavior.spec, behavior.assessment = spec, lane
        self._assessed[message.lane] = lane

    def _take_policy(self, message: messages.FrozenPolicy, fd: int) -> None:
        """Take the weights of a frozen policy."""
        assessment = self._assessed.get(message.lane)
        if assessment is None:
            self._sides[message.lane].opposition.opponents.take(message.key, thaw(fd))
            return
        assessment.take(message.key, thaw(fd))
        self._admit_sessions(self._behaviors[assessment.behavior])

    def _sit(self, message: messages.Sit) -> None:
        """Let a simulator begin a sitting of an assessment."""
        session, assessment = self._by_incarnation.get(message.incarnation), self._assessed[message.lane]
        if session is None:
            return  # it has left, and the learner hears of it
        rosters = {roster.team: roster for lane, roster in session.rosters.values() if lane is assessment}
        if not rosters or (message.team is not None and message.team not in rosters):
            return  # another one has taken its place, and has not begun to play
        session.own_parameters = from_plain(message.parameters)
        session.reset()
        assessment.sit(rosters, message.incarnation, message.sitting, message.team)

    def _opposition(self, message: messages.Admit, spec: BehaviorSpec, arena: Arena) -> OppositionLane:
        """Make the lane of teams that do not learn."""
        opponents = Opponents(make_stacked(spec, message.network_settings, message.squashed, message.device))
        lane = OppositionLane(
            number=message.lane,
            behavior=spec.behavior,
            opponents=opponents,
            observer=opponents,
            tracker=Tracker(arena, message.time_horizon, Rounds()),
            rounds=Rounds(),
            rng=np.random.default_rng([self.settings.seed, self._start.index, self._start.generation, message.lane, 1]),
            low_blocks=0,
            recorded=False,
            schedule=lambda: self.schedule(lane),
        )
        return lane

    def _admit_sessions(self, behavior: Behavior) -> None:
        """Let sessions that wait for the learner's decision play."""
        lane_of = behavior.lanes()
        if lane_of is None:
            return
        for session in list(behavior.sessions):
            try:
                session.admit(behavior.spec, lane_of)
            except ProtocolError as error:
                session.end(error.code.value, error.message, rejoin=error.code.rejoin)

    def _oppose(self, message: messages.Opponents) -> None:
        """Let a team learn, and the others play these policies from their next episodes on."""
        side, behavior = self._sides[message.lane], self._behaviors[self._lanes[message.lane].behavior]
        opposition = side.opposition
        opposition.opponents.assign(opposition.tracker.agents, dict(message.teams), message.others)
        opposition.version = 0
        changed = side.known and side.learning != message.learning
        side.known, side.learning = True, message.learning
        lane_of = behavior.lanes()
        assert lane_of is not None
        if changed:
            for session in behavior.sessions:
                session.change_sides(behavior.spec.behavior, lane_of)
        self._admit_sessions(behavior)

    def _refuse(self, message: messages.Refuse) -> None:
        behavior = self._behaviors.get(message.behavior)
        if behavior is None:
            return  # whoever announced it has left; it will be announced again
        behavior.refusal = (message.code, message.reason)
        for session in list(behavior.sessions):
            session.end(message.code, message.reason, rejoin=False)

    def _grant(self, message: messages.GrantSteps) -> None:
        lane = self._lanes[message.lane]
        lane.rounds.grant(message.round, message.steps, size=message.size, closed=message.closed)
        lane.required_version = max(lane.required_version, message.version)
        lane.wanted = False
        self.schedule(lane)

    def _load(self, message: messages.Weights) -> None:
        lane = self._lanes[message.lane]
        lane.policy.load(self._weights[message.lane].read(message.index, message.version))
        lane.version = message.version
        self.tell(messages.WeightsRead(message.lane, message.index))
        self.schedule(lane)

    def _recall(self, message: messages.RecallSteps) -> None:
        lane = self._lanes[message.lane]
        spare = 0
        if message.round == lane.rounds.number:
            busy = bool(lane.rounds.outstanding[message.round])
            # Not what its own agents wait for: collectors with too little each would pass it back and forth.
            needed = sum(batch.rows for batch in lane.waiting)
            spare = max(lane.rounds.left - needed, 0) // (2 if busy else 1)
            lane.rounds.left -= spare
            self._recalled[message.lane] = message.round
        self.tell(messages.Returned(message.lane, message.round, spare))

    def _end_session(self, message: messages.EndSession) -> None:
        session = self._by_incarnation.get(message.incarnation)
        if session is not None:
            session.end(message.code, message.reason, rejoin=CloseCode(message.code).rejoin)

    # Turns ------------------------------------------------------------------------------------------------------

    def schedule(self, lane: BaseLane) -> None:
        """Run a lane after the messages that are ready now."""
        if not self._due:
            self._loop.call_soon(self._run_due)
        if lane not in self._due:
            self._due.append(lane)

    def _run_due(self) -> None:
        due, self._due = self._due, []
        due.sort(key=lambda lane: isinstance(lane, Lane))  # opponents first: their steps count before a round ends
        try:
            for lane in due:
                self._run(lane)
            self.came_to_rest()
        except Exception as error:  # the edge of the process: a lane in an unknown state must not go on
            log.exception("lane_failed")
            self.fail(error)

    def _run(self, lane: BaseLane) -> None:
        report = lane.run()
        if isinstance(lane, AssessmentLane):
            self._tell_of_sittings(lane)
        if not isinstance(lane, Lane):
            return
        if report.want and lane.rounds.number is not None:
            self.tell(messages.Want(lane.number, lane.rounds.number))
        if report.want_blocks:
            self.tell(messages.WantBlocks(lane.number))
        if report.deliver or lane.tracker.segments.waiting >= PROMPT_SEGMENTS:
            self._deliver(lane)

    def fail(self, error: Exception) -> None:
        """End the process because of a mistake of ours. The pool starts another one; partial segments are lost."""
        if not self.done.done():
            self.done.set_exception(error)

    def _deliver(self, lane: Lane) -> None:
        if self._holding.done:
            return  # what was handed over goes with what was delivered before
        borrowed = lane.rounds.take_borrowed()
        if borrowed:
            self.tell(messages.Borrowed(lane.number, borrowed))
        side = self._sides.get(lane.number)
        if side is not None:
            self._tell_of_opponents(lane.number, side)
        episodes = lane.tracker.take_episodes()
        if episodes is not None:
            self._report_stats()  # so that a summary has the numbers of the episodes that it has
            self._send(Kind.EPISODES, pack_lane(lane.number, episodes))
        segments = lane.tracker.segments.take()
        if segments is not None:
            self._send(Kind.SEGMENTS, pack_lane(lane.number, segments))

    def _tell_of_opponents(self, number: int, side: Side) -> None:
        steps, matches = side.opposition.take_steps(), side.referee.take()
        if steps:
            self.tell(messages.GhostSteps(number, steps))
        if matches:
            self.tell(messages.Matches(number, [astuple(match) for match in matches]))

    def _tell_of_sittings(self, lane: AssessmentLane) -> None:
        lane.tracker.take_episodes()
        for incarnation, sitting, games in lane.sittings.take():
            self.tell(messages.Sat(lane.number, incarnation, sitting, [astuple(game) for game in games]))

    def tick(self) -> None:
        """Do what is due by the clock."""
        now = self.now()
        self.came_to_rest()
        for lane in self._lanes.values():
            self._deliver(lane)
            self._release_stragglers(lane, now)
            self._return_idle_permits(lane)
        self._end_silent_sessions(now)
        if now >= self._next_stats:
            self._next_stats = now + STATS_SECONDS
            self._report_stats()

    def _report_stats(self) -> None:
        rows = self._stats.take()
        if rows:
            self.tell(messages.Stats(rows))

    def _release_stragglers(self, lane: Lane, now: float) -> None:
        """Let others take the places of steps that do not come back, in a round that would otherwise be complete.

        Such are simulators that are silent while others are held, and agents whose simulator goes on without them.
        """
        number = lane.rounds.number
        if number is None or not lane.rounds.outstanding[number]:
            return
        elsewhere = self._is_lacked_elsewhere(lane, number)
        if lane.rounds.left > 0 and not elsewhere:
            return
        grace = self.settings.straggler_grace
        late = [
            roster
            for session in self._sessions
            for other, roster in session.rosters.values()
            if other is lane
            and (
                (now - session.last_activity > grace and (lane.waiting or elsewhere))
                or _borrows_too_long(roster, number, now, grace)
            )
        ]
        if late:
            lane.release_stragglers(late)

    def _return_idle_permits(self, lane: Lane) -> None:
        """Give permits back that other collectors lack and nobody here is about to use."""
        number = lane.rounds.number
        if (
            number is not None
            and lane.rounds.left > 0
            and self._is_lacked_elsewhere(lane, number)
            and not lane.waiting
            and not lane.rounds.outstanding[number]
        ):
            spare, lane.rounds.left = lane.rounds.left, 0
            lane.rounds.closed = lane.wanted = False  # whoever comes later asks anew
            self.tell(messages.Returned(lane.number, number, spare, idle=True))

    def _is_lacked_elsewhere(self, lane: Lane, number: int) -> bool:
        """Whether other collectors may wait for permits of this round.

        They do if ours were recalled. If we wanted some ourselves, and heard that none are left, ours were not asked
        for, but may have become too many since: simulators leave, and what they had is refunded.
        """
        return self._recalled.get(lane.number) == number or (lane.rounds.closed and self.settings.count > 1)

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
            self._deliver(lane)
        self._report_stats()
        for session in list(self._sessions):
            session.end(message.code, message.reason, rejoin=message.rejoin)

    @property
    def sessions(self) -> int:
        """Open sessions."""
        return len(self._sessions)


def _borrows_too_long(roster: Roster, number: int, now: float, grace: float) -> bool:
    """Whether a session has been answered in advance for a while, because of steps that it still owes."""
    if roster.borrowing != number:
        return False
    if roster.borrowing_since[0] != number:
        roster.borrowing_since = (number, now)
    return now - roster.borrowing_since[1] > grace
