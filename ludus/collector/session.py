"""A simulator's session in a collector, independent of its protocol; and the collector as its sessions see it.

The state machines of the protocols are in `native` and `unity.session`; neither knows its transport. Whatever happens
in a session, the others don't notice.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ludus.collector import messages
from ludus.collector.agent_queue import AgentQueue
from ludus.collector.agents import AgentIndex
from ludus.collector.messages import Message, SimulatorTimes
from ludus.collector.settings import CollectorSettings
from ludus.collector.snapshots.state import SessionSnapshot
from ludus.collector.stats import MAX_KEYS, StatSums
from ludus.collector.unity.diagnostics import Connections
from ludus.play.recordings.tape import FlightRecorder
from ludus.protocol.batches import BehaviorBatch, Floats, Ints, StatValue
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.contract import (
    MAX_UNADMITTED_STEPS,
    check_introduction,
    conflict,
    same_spec,
    too_many_unadmitted,
)
from ludus.protocol.environment_parameters import ParameterValue
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.tickets import TicketChecker, TicketExpired, TicketInvalid

LEFT = "left"
"""Code of a session that the client ended in good order."""
DISCONNECTED = "disconnected"
"""Code of a session whose connection broke."""
CONNECTION_LOST = "the connection to the simulator was lost"
THIS_MACHINE = "this machine"
"""Peer of a game whose calls come from this process, which runs beside it."""
LONGEST_STEP = 86_400.0
"""Seconds in a game that are believed."""
MISTAKE = ProtocolError(CloseCode.INTERNAL_ERROR, "the collector made a mistake; its log has the details")
"""The end of a session that failed by an error of the collector."""

RunnerOf: TypeAlias = Callable[[int], AgentQueue]
"""Returns the runner that answers a team."""


@dataclass(frozen=True, slots=True)
class SessionListener:
    """Functions that a session calls when something has happened that concerns more than itself."""

    opened: "Callable[[Session], None]"
    announced: "Callable[[Session, BehaviorSpec], RunnerOf | None]"
    """A behavior came. Returns the runner of each team; None while the learner decides. Raises ProtocolError."""
    welcomed: "Callable[[Session, list[str], str], None]"
    """The simulator has said hello: the names of its behaviors, and its client."""
    position_came: Callable[[], None]
    """The simulator has sent its position for a checkpoint."""
    ended: "Callable[[Session], None]"


@dataclass(slots=True)
class Host:
    """One collector, as its sessions see it: settings, clock, numbers of simulators, and reports to the learner."""

    settings: CollectorSettings
    """Its newest settings; the environment parameters in them change."""
    now: Callable[[], float]
    """The event loop's time in seconds."""
    wall_clock: Callable[[], float]
    """Seconds since 1970."""
    tickets: TicketChecker | None
    """None where no tickets are needed."""
    numbers: Iterator[int]
    """Numbers for simulators that come without a ticket, unique among the collectors."""
    index_numbers: Iterator[int]
    """Numbers for agent indexes."""
    tell: Callable[[Message], None]
    """Sends the learner a message."""
    listener: SessionListener
    snapshots: dict[str, SessionSnapshot]
    """Snapshots of an earlier attempt by session id, each until its simulator has come back."""
    stats: StatSums
    """Numbers that simulators have reported since the last report to the learner."""
    observe: Callable[[Sequence[BehaviorBatch], Mapping[str, BehaviorSpec], str], bool] | None = None
    """Looks at the steps of games: the specs of all behaviors, and the session's id, too. Returns whether to go on."""
    connections: Connections = field(default_factory=Connections)
    recorder: FlightRecorder = field(default_factory=FlightRecorder)
    ports: Collection[int] = ()
    """Ports on which the collector listens, once it does."""


class Session(ABC):
    """One simulator."""

    carrier: str
    """The protocol that its recordings name."""

    def __init__(self, host: Host, peer: str) -> None:
        self._host = host
        self.peer = peer
        self.session_id = ""
        self.number = -1
        self.started = False
        """Whether a step arrived."""
        self._agents = 0
        """That asked for an action in the first step."""
        self.closed: tuple[str, str] | None = None
        """Code and reason, once the session has ended."""
        self.on_end: Callable[[], object] = lambda: None
        """Called once when the session ends."""
        self.last_activity = host.now()
        """When something was last received or sent."""
        self.specs: dict[str, BehaviorSpec] = {}
        """By announced name."""
        self.agent_indexes: dict[str, tuple[AgentQueue, AgentIndex]] = {}
        """By announced name, once the behavior is admitted."""
        self.own_parameters: Mapping[str, ParameterValue] = {}
        """Environment parameters of this simulator alone, on top of the run's; sent with the next reset."""
        self.parameter_set = 0
        """Number of the environment parameters that the simulator received last."""
        self.unadmitted: defaultdict[str, list[tuple[int, BehaviorBatch]]] = defaultdict(list)
        """Steps of behaviors that are not admitted yet."""
        self._has_surplus = False
        """Whether stats were left out, which is told once."""
        self._past_steps = 0
        self._away_since: float | None = None
        """When the newest answer left, or `take_times` was called after that, until the next step comes."""
        self._answered_at = 0.0
        """When the newest answer left."""
        self._times = [0, 0.0, 0.0]
        """Since the last `take_times`: steps, seconds away, and seconds that the game says it took."""
        self._quickest_way = math.inf
        """Since the last `take_times`, in seconds."""
        self.tape = host.recorder.open(self)
        """Takes every message, as it is on the wire."""
        host.listener.opened(self)

    # Differences of the protocols -------------------------------------------------------------------------------

    @abstractmethod
    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        """Send actions (called by the runner): of all agents of the step's decisions, or of `agents` alone."""

    @abstractmethod
    def reset(self) -> None:
        """Make the simulator begin new episodes, with the newest parameters; everything pending is void."""

    @abstractmethod
    def overdue(self, now: float) -> ProtocolError | None:
        """Return why the session has to end if it has been silent for too long."""

    def is_gone(self) -> bool:
        """Whether the connection is gone, although gRPC did not report it."""
        return False

    def _admitted(self, name: str) -> None:  # noqa: B027  native sessions have something to do then
        """Called when a behavior is admitted, before its first steps are staged."""

    @abstractmethod
    def say_wait(self, reason: str) -> None:
        """Send the simulator the reason why no answer comes yet."""

    @abstractmethod
    def _say_close(self, code: str, reason: str, *, rejoin: bool) -> None:
        """Send the simulator the end of the session."""

    # Common parts ----------------------------------------------------------------------------------------------

    def take_times(self, now: float, delayed: float) -> SimulatorTimes:
        """Return the times since the last call; `delayed`: see `SimulatorTimes`."""
        if self._away_since is not None:
            self._times[1] += now - self._away_since
            self._away_since = now
        (steps, away, game), self._times = self._times, [0, 0.0, 0.0]
        quickest_way, self._quickest_way = self._quickest_way, math.inf
        if self.peer == THIS_MACHINE:  # there is no way to the game: it takes all of the time
            game, quickest_way = away, 0.0
        return SimulatorTimes(
            self.number, int(steps), away, game, quickest_way if math.isfinite(quickest_way) else 0.0, delayed
        )

    def _note_answer(self) -> None:
        """Record that an answer leaves."""
        self.last_activity = self._away_since = self._answered_at = self._host.now()

    def _note_step(self, game_seconds: float = 0.0) -> None:
        """Record that a step has come, at `last_activity`; the game says that it took so long (0: nothing)."""
        if self._away_since is not None:
            self._times[0] += 1
            self._times[1] += self.last_activity - self._away_since
            self._away_since = None
            if 0 < game_seconds < LONGEST_STEP:  # not for NaN
                self._times[2] += game_seconds
                way = max(self.last_activity - self._answered_at - game_seconds, 0.0)
                self._quickest_way = min(self._quickest_way, way)

    @property
    def steps(self) -> int:
        """Steps that came back from this simulator."""
        return self._past_steps + sum(
            agent_index.former_steps + runner.recorder.agents.steps_of(agent_index.slots)
            for runner, agent_index in self.agent_indexes.values()
        )

    def admit(self, spec: BehaviorSpec, runner_of: RunnerOf) -> None:
        """Admit the agents of a behavior, and stage the steps that came before. Raises ProtocolError."""
        for name, own in self.specs.items():
            if own.behavior == spec.behavior and name not in self.agent_indexes:
                if not same_spec(own, spec):
                    raise ProtocolError(CloseCode.SPEC_CONFLICT, conflict(spec, own))
                agent_index = AgentIndex(next(self._host.index_numbers), self.number, name)
                agent_index.parameter_set = self.parameter_set
                runner = runner_of(own.team)
                self.agent_indexes[name] = (runner, agent_index)
                self._admitted(name)
                for step_id, batch in self.unadmitted.pop(name, []):
                    runner.stage(self, agent_index, step_id, batch)

    def change_sides(self, behavior: str, runner_of: RunnerOf) -> None:
        """Change the runners of a behavior's teams. The agents that move are forgotten: a reset follows."""
        for name, (runner, agent_index) in list(self.agent_indexes.items()):
            if self.specs[name].behavior == behavior and runner_of(agent_index.team) is not runner:
                runner.drop(agent_index)
                self.agent_indexes[name] = (runner_of(agent_index.team), agent_index)

    def end(self, code: str, reason: str, *, rejoin: bool, tell: bool = True) -> None:
        """End the session: its partial segments are dropped, the simulator is informed if `tell`."""
        if self.closed is not None:
            return
        self.closed = (code, reason)
        self._forget_agents()
        self.agent_indexes.clear()
        if tell:
            self._say_close(code, reason, rejoin=rejoin)
        self.on_end()

    def end_by(self, error: ProtocolError) -> None:
        """End the session with an error's code and message."""
        self.end(error.code.value, error.message, rejoin=error.code.rejoin)

    def abandon(self, reason: str) -> None:
        """End the session of a collector that has failed. The simulator is informed; the runners are not, since their
        state is unknown and they will not run again."""
        if self.closed is None:
            code = CloseCode.INTERNAL_ERROR
            self.closed = (code.value, reason)
            self._say_close(code.value, reason, rejoin=code.rejoin)
            self.on_end()

    def _take_number(self, ticket: str, session_id: str, former: int | None = None) -> int:
        """Return the number that the ticket gives; where none is needed its former one, or one of our own.

        Raises ProtocolError.
        """
        tickets, now = self._host.tickets, self._host.wall_clock()
        if tickets is None:
            return next(self._host.numbers) if former is None else former
        try:
            claims = tickets.read(ticket, self._host.ports, now)
            tickets.spend(ticket, claims, session_id, now)
        except TicketExpired as error:
            raise ProtocolError(CloseCode.TICKET_EXPIRED, str(error)) from None
        except TicketInvalid as error:
            raise ProtocolError(CloseCode.BAD_TICKET, str(error)) from None
        return claims.number

    @property
    def _seed(self) -> int:
        """The simulator's seed: below 2**31."""
        return (self._host.settings.seed + self.number) % 2**31

    @property
    def _environment_parameters(self) -> Mapping[str, ParameterValue]:
        """The newest environment parameters for this simulator."""
        return {**self._host.settings.environment_parameters, **self.own_parameters}

    def _report(self, stats: list[StatValue], batches: list[BehaviorBatch]) -> None:
        """Hand on the numbers of a step before its agents. They belong to the episodes that end in it, if any do."""
        began = [
            runner.recorder.agents.began_under(agent_index, batch.terminals.agent_ids)
            for batch in batches
            if batch.terminals is not None and batch.behavior in self.agent_indexes
            for runner, agent_index in [self.agent_indexes[batch.behavior]]
        ]
        oldest = min((number for number in began if number is not None), default=self.parameter_set)
        if not self._host.stats.add(stats, oldest) and not self._has_surplus:
            self._has_surplus = True
            sentence = f"more than {MAX_KEYS} different stats come within one report; those beyond are left out"
            self._tell_problem(CloseCode.BAD_STAT.value, sentence)

    def _tell_problem(self, code: str, sentence: str) -> None:
        """Report a probable mistake of the simulator to the learner; the session goes on."""
        self._host.tell(messages.SimulatorProblem(self.session_id, self.number, code, sentence))

    def _introduce(self, spec: BehaviorSpec) -> None:
        """Take an announced behavior. Raises ProtocolError."""
        check_introduction(spec, self.specs)
        if spec.name not in self.specs:
            self.specs[spec.name] = spec
            runner_of = self._host.listener.announced(self, spec)
            if runner_of is not None:
                self.admit(spec, runner_of)
            if self.started:
                self._host.tell(messages.SimulatorStarted(self.session_id, tuple(self.specs), self._agents))

    def _note_start(self, batches: list[BehaviorBatch]) -> None:
        """Record the first step."""
        self.started = True
        self._agents = sum(len(batch.decisions.agent_ids) for batch in batches if batch.decisions is not None)
        self._host.tell(messages.SimulatorStarted(self.session_id, tuple(self.specs), self._agents))

    def _stage(self, step_id: int, batches: list[BehaviorBatch]) -> None:
        """Hand a step to the behaviors' runners. Raises ProtocolError."""
        host = self._host
        if host.observe is not None and not host.observe(batches, self.specs, self.session_id):
            host.observe = None
        for batch in batches:
            pair = self.agent_indexes.get(batch.behavior)
            if pair is None:
                self._store(step_id, batch)
            else:
                runner, agent_index = pair
                if agent_index.parameter_set != self.parameter_set:
                    # They went out with the answer to the step before, so this one is the first that follows from them.
                    runner.recorder.agents.tell(agent_index, self.parameter_set)
                runner.stage(self, agent_index, step_id, batch)

    def _store(self, step_id: int, batch: BehaviorBatch) -> None:
        """Store a step whose behavior is not admitted yet."""
        stored = self.unadmitted[batch.behavior]
        if len(stored) >= MAX_UNADMITTED_STEPS:
            raise too_many_unadmitted()
        if not stored:
            self.say_wait(f"the run is preparing the behavior {batch.behavior}")
        stored.append((step_id, batch))

    def _forget_agents(self) -> None:
        for runner, agent_index in self.agent_indexes.values():
            runner.drop(agent_index)
        self._past_steps = self.steps
        for _, agent_index in self.agent_indexes.values():
            agent_index.former_steps = 0
        self.unadmitted.clear()
