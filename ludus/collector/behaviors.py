"""Behaviors in a collector: announced by simulators, decided by the learner, and answered by policies."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ludus.collector import commands
from ludus.collector.carriers.connection import LearnerConnection
from ludus.collector.channel import Frame
from ludus.collector.evaluation import EvaluationRunner
from ludus.collector.matches import MatchRecorder
from ludus.collector.messages import BehaviorAnnounced, WeightsRead
from ludus.collector.opponents import OpponentRunner
from ludus.collector.runner_factory import RunnerFactory
from ludus.collector.runners import LearningRunner
from ludus.collector.session import RunnerOf, Session
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import conflict, same_spec
from ludus.protocol.spec import BehaviorSpec


@dataclass(slots=True)
class TeamAssignment:
    """The learning team of a behavior in self-play, and the runner of its opponents."""

    opponent_runner: OpponentRunner
    known: bool = False
    """Whether the learner has sent the learning team, and the policies of the others."""
    learning: int | None = None


@dataclass(slots=True)
class Behavior:
    """A behavior that some session announced."""

    spec: BehaviorSpec
    runner: LearningRunner | None = None
    teams: TeamAssignment | None = None
    """In self-play, once the behavior is admitted."""
    evaluation: EvaluationRunner | None = None
    """In an evaluation, once the behavior is admitted; there is no other runner then."""
    refusal: tuple[str, str] | None = None
    """Code and reason."""
    sessions: set[Session] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """With teams, as they were reported to the learner."""

    def runners(self) -> RunnerOf | None:
        """Return the runner of each team as a function; None while the learner decides."""
        runner, teams, evaluation = self.runner, self.teams, self.evaluation
        if evaluation is not None:
            return lambda _: evaluation
        if runner is None or (teams is not None and not teams.known):
            return None
        return lambda team: runner if teams is None or team == teams.learning else teams.opponent_runner


class Behaviors:
    """The behaviors of one collector process."""

    def __init__(
        self,
        link: LearnerConnection,
        factory: RunnerFactory,
        opponents_of: dict[int, tuple[OpponentRunner, MatchRecorder]],
        restore: Callable[[LearningRunner], None],
    ) -> None:
        """`opponents_of` gets opponents and match recorder of runners in self-play; `restore` restores new runners."""
        self.runners: dict[int, LearningRunner] = {}
        """Of agents that learn, by number."""
        self._link = link
        self._factory = factory
        self._opponents_of = opponents_of
        self._restore = restore
        self._behaviors: dict[str, Behavior] = {}
        self._teams: dict[int, TeamAssignment] = {}
        """By the number of the runner, of behaviors in self-play."""
        self._evaluations: dict[int, EvaluationRunner] = {}
        """By number."""

    # Sessions ---------------------------------------------------------------------------------------------------

    def announced(self, session: Session, spec: BehaviorSpec) -> RunnerOf | None:
        """Return the runner of each team as a function; None while the learner decides. Raises ProtocolError."""
        behavior = self._behaviors.setdefault(spec.behavior, Behavior(spec))
        if behavior.refusal is not None:
            code, reason = behavior.refusal
            raise ProtocolError(CloseCode(code), reason)
        if not same_spec(behavior.spec, spec):
            raise ProtocolError(CloseCode.SPEC_CONFLICT, conflict(behavior.spec, spec))
        behavior.sessions.add(session)
        if spec.name not in behavior.names:
            behavior.names.add(spec.name)
            self._link.tell(BehaviorAnnounced(spec))
        return behavior.runners()

    def ended(self, session: Session) -> None:
        """Forget a session."""
        for behavior in list(self._behaviors.values()):
            behavior.sessions.discard(session)
            if (behavior.runner or behavior.evaluation or behavior.refusal) is None and not behavior.sessions:
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
                session.end_by(error)

    # The learner ------------------------------------------------------------------------------------------------

    def refuse(self, message: commands.Refuse) -> None:
        """End the sessions that have announced the behavior."""
        behavior = self._behaviors.get(message.behavior)
        if behavior is None:
            return  # the simulator that announced it has left; it will be announced again
        behavior.refusal = (message.code, message.reason)
        for session in list(behavior.sessions):
            session.end(message.code, message.reason, rejoin=False)

    def admit(self, message: commands.Admit, frame: Frame) -> None:
        """Make the runners of a behavior, and admit the sessions that wait for it. Raises PluginError."""
        message.policy.check_heads()
        memory = self._link.admitted(message, frame)
        arena = memory.arena
        spec = message.arena.spec
        behavior = self._behaviors.setdefault(spec.behavior, Behavior(spec))
        behavior.spec = spec
        if message.policy.evaluated:
            evaluation = self._factory.evaluation(message, arena, memory.evaluated)
            behavior.evaluation = self._evaluations[message.runner] = evaluation
        else:
            behavior.runner = self.runners[message.runner] = runner = self._factory.learning(message, arena)
            runner.peers = self.runners.values()
            runner.recorder.segments.blocks.extend(memory.blocks)
            if message.policy.self_play:
                runner.observer = match_recorder = MatchRecorder()
                opponents = self._factory.opponents(message, arena)
                self._opponents_of[runner.number] = opponents, match_recorder
                behavior.teams = self._teams[message.runner] = TeamAssignment(opponents)
            else:
                self._restore(runner)
        self._admit_sessions(behavior)

    def load(self, message: commands.Weights, frame: Frame) -> None:
        """Load newer weights."""
        runner = self.runners[message.runner]
        runner.policy.load(self._link.weights(message, frame))
        runner.version = message.version
        runner.schedule()  # agents that wait are answered before the learner hears of it
        self._link.tell(WeightsRead(message.runner, message.index), later=True)

    def take_opponent(self, message: commands.FrozenPolicy, frame: Frame) -> None:
        """Take the weights of a frozen policy."""
        self._teams[message.runner].opponent_runner.opponents.take(message.key, self._link.frozen_policy(frame))

    def assign_opponents(self, message: commands.Opponents) -> None:
        """Set the learning team, and the policies of the others from their next episodes on."""
        teams, behavior = self._teams[message.runner], self._behaviors[self.runners[message.runner].behavior]
        runner, assignment = teams.opponent_runner, message.assignment
        runner.opponents.assign(runner.recorder.agents, assignment.teams, assignment.others)
        runner.version = 0
        changed = teams.known and teams.learning != assignment.learning
        teams.known, teams.learning = True, assignment.learning
        runner_of = behavior.runners()
        assert runner_of is not None
        if changed:
            for session in behavior.sessions:
                session.change_sides(behavior.spec.behavior, runner_of)
        self._admit_sessions(behavior)

    def sit(self, session: Session, message: commands.BeginEvaluation) -> None:
        """Begin an evaluation batch on a simulator."""
        evaluation = self._evaluations[message.runner]
        agent_indexes = {
            agent_index.team: agent_index
            for runner, agent_index in session.agent_indexes.values()
            if runner is evaluation
        }
        if not agent_indexes or message.team not in {None, commands.CHAMPION_ALONE, *agent_indexes}:
            return  # another one has taken its place, and has not begun to play
        session.own_parameters = message.parameters
        session.reset()
        evaluation.sit(agent_indexes, message.session_id, message.episode_batch, message.team)
