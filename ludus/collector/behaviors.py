"""Behaviors: what the simulators of a collector announce, what the learner decides about it, and who answers whom."""

from dataclasses import dataclass, field

from ludus.collector import messages
from ludus.collector.arena import Arena, ArenaLayout
from ludus.collector.assessment import AssessmentLane
from ludus.collector.batcher import Lane
from ludus.collector.holding import Holding
from ludus.collector.lanes import LaneBuilder
from ludus.collector.link import Link
from ludus.collector.matches import Referee
from ludus.collector.opponents import OppositionLane
from ludus.collector.session import LaneOf, Session
from ludus.collector.turns import Turns
from ludus.collector.weights import WeightBuffers, WeightsLayout, thaw
from ludus.protocol.codec import CloseCode, ProtocolError
from ludus.protocol.contract import conflict, same_spec
from ludus.protocol.environment_parameters import from_plain
from ludus.protocol.spec import BehaviorSpec


@dataclass(slots=True)
class Side:
    """Who of a behavior in self-play learns, and who answers the others."""

    opposition: OppositionLane
    known: bool = False
    """Whether the learner has said which team learns, and what the others play."""
    learning: int | None = None


@dataclass(slots=True)
class Behavior:
    """A behavior that some session announced."""

    spec: BehaviorSpec
    lane: Lane | None = None
    side: Side | None = None
    """In self-play, once the behavior is admitted."""
    assessment: AssessmentLane | None = None
    """In an assessment, once the behavior is admitted; there is no other lane then."""
    refusal: tuple[str, str] | None = None
    """Code and reason."""
    sessions: set[Session] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """With teams, as the learner was told of them."""

    def lanes(self) -> LaneOf | None:
        """Return who answers each team; None while the learner decides."""
        lane, side, assessment = self.lane, self.side, self.assessment
        if assessment is not None:
            return lambda _: assessment
        if lane is None or (side is not None and not side.known):
            return None
        return lambda team: lane if side is None or team == side.learning else side.opposition


class Behaviors:
    """The behaviors of one collector process."""

    def __init__(self, link: Link, builder: LaneBuilder, turns: Turns, holding: Holding) -> None:
        self.lanes: dict[int, Lane] = {}
        """Of agents that learn, by number."""
        self._link = link
        self._builder = builder
        self._turns = turns
        self._holding = holding
        self._behaviors: dict[str, Behavior] = {}
        self._weights: dict[int, WeightBuffers] = {}
        """By the number of the lane."""
        self._sides: dict[int, Side] = {}
        """By the number of the lane, of behaviors in self-play."""
        self._assessed: dict[int, AssessmentLane] = {}
        """By number."""

    # Sessions ---------------------------------------------------------------------------------------------------

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
            self._link.tell(messages.Announced(messages.spec_to_text(spec)))
        return behavior.lanes()

    def ended(self, session: Session) -> None:
        """Forget a session."""
        for behavior in list(self._behaviors.values()):
            behavior.sessions.discard(session)
            if (behavior.lane or behavior.assessment or behavior.refusal) is None and not behavior.sessions:
                # Nobody waits for a decision any more: the next simulator may bring another spec.
                del self._behaviors[behavior.spec.behavior]

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

    # The learner ------------------------------------------------------------------------------------------------

    def refuse(self, message: messages.Refuse) -> None:
        """End the sessions that have announced the behavior."""
        behavior = self._behaviors.get(message.behavior)
        if behavior is None:
            return  # whoever announced it has left; it will be announced again
        behavior.refusal = (message.code, message.reason)
        for session in list(behavior.sessions):
            session.end(message.code, message.reason, rejoin=False)

    def admit(self, message: messages.Admit, descriptors: tuple[int, ...]) -> None:
        """Make the lanes of a behavior, and let those play who wait for it."""
        arena_fd, *weights_fds = descriptors
        spec = messages.spec_from_text(message.spec)
        arena = Arena(arena_fd, ArenaLayout(spec, message.rows, message.blocks, message.memory_size))
        arena.close()  # the mapping stays
        behavior = self._behaviors.setdefault(spec.behavior, Behavior(spec))
        behavior.spec = spec
        if message.assessment:
            lane = self._builder.assessment(message, spec, arena, [thaw(fd) for fd in weights_fds])
            behavior.assessment = self._assessed[message.lane] = lane
        else:
            self._admit_learning(behavior, message, arena, *weights_fds)
        self._admit_sessions(behavior)

    def _admit_learning(self, behavior: Behavior, message: messages.Admit, arena: Arena, weights_fd: int) -> None:
        weights = WeightBuffers(weights_fd, WeightsLayout(message.weights_size, message.weight_buffers))
        weights.close()
        self._weights[message.lane] = weights
        behavior.lane = self.lanes[message.lane] = self._builder.learning(message, behavior.spec, arena)
        behavior.lane.peers = self.lanes.values()
        if message.self_play:
            behavior.lane.observer = referee = Referee()
            opposition = self._builder.opposition(message, behavior.spec, arena)
            self._turns.oppose(behavior.lane, opposition, referee)
            behavior.side = self._sides[message.lane] = Side(opposition)
        else:
            self._holding.restore(behavior.lane)

    def load(self, message: messages.Weights) -> None:
        """Let newer weights act."""
        lane = self.lanes[message.lane]
        lane.policy.load(self._weights[message.lane].read(message.index, message.version))
        lane.version = message.version
        self._link.tell(messages.WeightsRead(message.lane, message.index))
        lane.schedule()

    def take_opponent(self, message: messages.FrozenPolicy, fd: int) -> None:
        """Take the weights of a frozen policy."""
        self._sides[message.lane].opposition.opponents.take(message.key, thaw(fd))

    def oppose(self, message: messages.Opponents) -> None:
        """Let a team learn, and the others play these policies from their next episodes on."""
        side, behavior = self._sides[message.lane], self._behaviors[self.lanes[message.lane].behavior]
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

    def sit(self, session: Session, message: messages.Sit) -> None:
        """Let a simulator begin a sitting of an assessment."""
        assessment = self._assessed[message.lane]
        rosters = {roster.team: roster for lane, roster in session.rosters.values() if lane is assessment}
        if not rosters or (message.team is not None and message.team not in rosters):
            return  # another one has taken its place, and has not begun to play
        session.own_parameters = from_plain(message.parameters)
        session.reset()
        assessment.sit(rosters, message.incarnation, message.sitting, message.team)
