"""Behaviors in a collector: announced by simulators, decided by the learner, and answered by policies."""

from dataclasses import dataclass, field

from ludus.collector import messages
from ludus.collector.arena import Arena, ArenaLayout
from ludus.collector.checkpoint_barrier import CheckpointBarrier
from ludus.collector.evaluation import EvaluationRunner
from ludus.collector.learner_connection import LearnerConnection
from ludus.collector.matches import MatchRecorder
from ludus.collector.opponents import OpponentRunner
from ludus.collector.runner_factory import RunnerFactory
from ludus.collector.runners import LearningRunner
from ludus.collector.session import RunnerOf, Session
from ludus.collector.ticks import BatchTicks
from ludus.collector.weights import WeightBuffers, WeightsLayout, unfreeze
from ludus.protocol.codec import CloseCode, ProtocolError
from ludus.protocol.contract import conflict, same_spec
from ludus.protocol.environment_parameters import from_plain
from ludus.protocol.spec import BehaviorSpec


@dataclass(slots=True)
class TeamAssignment:
    """The learning team of a behavior in self-play, and the runner of its opponents."""

    opponent_runner: OpponentRunner
    known: bool = False
    """Whether the learner has said which team learns, and what the others play."""
    learning: int | None = None


@dataclass(slots=True)
class Behavior:
    """A behavior that some session announced."""

    spec: BehaviorSpec
    runner: LearningRunner | None = None
    side: TeamAssignment | None = None
    """In self-play, once the behavior is admitted."""
    assessment: EvaluationRunner | None = None
    """In an assessment, once the behavior is admitted; there is no other runner then."""
    refusal: tuple[str, str] | None = None
    """Code and reason."""
    sessions: set[Session] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """With teams, as the learner was told of them."""

    def runners(self) -> RunnerOf | None:
        """Return who answers each team; None while the learner decides."""
        runner, side, assessment = self.runner, self.side, self.assessment
        if assessment is not None:
            return lambda _: assessment
        if runner is None or (side is not None and not side.known):
            return None
        return lambda team: runner if side is None or team == side.learning else side.opponent_runner


class Behaviors:
    """The behaviors of one collector process."""

    def __init__(
        self, link: LearnerConnection, builder: RunnerFactory, turns: BatchTicks, barrier: CheckpointBarrier
    ) -> None:
        self.runners: dict[int, LearningRunner] = {}
        """Of agents that learn, by number."""
        self._link = link
        self._builder = builder
        self._ticks = turns
        self._barrier = barrier
        self._behaviors: dict[str, Behavior] = {}
        self._weights: dict[int, WeightBuffers] = {}
        """By the number of the runner."""
        self._sides: dict[int, TeamAssignment] = {}
        """By the number of the runner, of behaviors in self-play."""
        self._assessed: dict[int, EvaluationRunner] = {}
        """By number."""

    # Sessions ---------------------------------------------------------------------------------------------------

    def announced(self, session: Session, spec: BehaviorSpec) -> RunnerOf | None:
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
        return behavior.runners()

    def ended(self, session: Session) -> None:
        """Forget a session."""
        for behavior in list(self._behaviors.values()):
            behavior.sessions.discard(session)
            if (behavior.runner or behavior.assessment or behavior.refusal) is None and not behavior.sessions:
                # No session waits for a decision any more: the next simulator may bring another spec.
                del self._behaviors[behavior.spec.behavior]

    def _admit_sessions(self, behavior: Behavior) -> None:
        """Admit the sessions that wait for the learner's decision."""
        runner_of = behavior.runners()
        if runner_of is None:
            return
        for session in list(behavior.sessions):
            try:
                session.admit(behavior.spec, runner_of)
            except ProtocolError as error:
                session.end(error.code.value, error.message, rejoin=error.code.rejoin)

    # The learner ------------------------------------------------------------------------------------------------

    def refuse(self, message: messages.Refuse) -> None:
        """End the sessions that have announced the behavior."""
        behavior = self._behaviors.get(message.behavior)
        if behavior is None:
            return  # the simulator that announced it has left; it will be announced again
        behavior.refusal = (message.code, message.reason)
        for session in list(behavior.sessions):
            session.end(message.code, message.reason, rejoin=False)

    def admit(self, message: messages.Admit, descriptors: tuple[int, ...]) -> None:
        """Make the runners of a behavior, and let those play who wait for it."""
        arena_fd, *weights_fds = descriptors
        spec = messages.spec_from_text(message.spec)
        arena = Arena(arena_fd, ArenaLayout(spec, message.rows, message.blocks, message.memory_size))
        arena.close()  # the mapping stays
        behavior = self._behaviors.setdefault(spec.behavior, Behavior(spec))
        behavior.spec = spec
        if message.policy.evaluated:
            runner = self._builder.assessment(message, spec, arena, [unfreeze(fd) for fd in weights_fds])
            behavior.assessment = self._assessed[message.runner] = runner
        else:
            self._admit_learning(behavior, message, arena, *weights_fds)
        self._admit_sessions(behavior)

    def _admit_learning(self, behavior: Behavior, message: messages.Admit, arena: Arena, weights_fd: int) -> None:
        weights = WeightBuffers(weights_fd, WeightsLayout(message.policy.weights_size, message.weight_buffers))
        weights.close()
        self._weights[message.runner] = weights
        behavior.runner = self.runners[message.runner] = self._builder.learning(message, behavior.spec, arena)
        behavior.runner.peers = self.runners.values()
        if message.policy.self_play:
            behavior.runner.observer = match_recorder = MatchRecorder()
            opponent_runner = self._builder.opponent_runner(message, behavior.spec, arena)
            self._ticks.assign_opponents(behavior.runner, opponent_runner, match_recorder)
            behavior.side = self._sides[message.runner] = TeamAssignment(opponent_runner)
        else:
            self._barrier.restore(behavior.runner)

    def load(self, message: messages.Weights) -> None:
        """Load newer weights."""
        runner = self.runners[message.runner]
        runner.policy.load(self._weights[message.runner].read(message.index, message.version))
        runner.version = message.version
        self._link.tell(messages.WeightsRead(message.runner, message.index))
        runner.schedule()

    def take_opponent(self, message: messages.FrozenPolicy, fd: int) -> None:
        """Take the weights of a frozen policy."""
        self._sides[message.runner].opponent_runner.opponents.take(message.key, unfreeze(fd))

    def assign_opponents(self, message: messages.Opponents) -> None:
        """Set the learning team, and the policies of the others from their next episodes on."""
        side, behavior = self._sides[message.runner], self._behaviors[self.runners[message.runner].behavior]
        opponent_runner = side.opponent_runner
        opponent_runner.opponents.assign(
            opponent_runner.recorder.agents, message.assignment.teams, message.assignment.others
        )
        opponent_runner.version = 0
        changed = side.known and side.learning != message.assignment.learning
        side.known, side.learning = True, message.assignment.learning
        runner_of = behavior.runners()
        assert runner_of is not None
        if changed:
            for session in behavior.sessions:
                session.change_sides(behavior.spec.behavior, runner_of)
        self._admit_sessions(behavior)

    def sit(self, session: Session, message: messages.BeginEvaluation) -> None:
        """Begin an evaluation batch on a simulator."""
        assessment = self._assessed[message.runner]
        agent_indexes = {
            agent_index.team: agent_index
            for runner, agent_index in session.agent_indexes.values()
            if runner is assessment
        }
        if not agent_indexes or (message.team is not None and message.team not in agent_indexes):
            return  # another one has taken its place, and has not begun to play
        session.own_parameters = from_plain(message.parameters)
        session.reset()
        assessment.sit(agent_indexes, message.session_id, message.episode_batch, message.team)
