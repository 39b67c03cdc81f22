"""A world of scripted simulators around real runners, with a plain-list account of what every agent lived through.

One team learns. Its policy numbers its decisions: the continuous sample of an answer is unique, so that every recorded
step can be traced back to the agent, the observation and the reward that belong to it. Other teams play frozen
policies: real networks whose action is their key, so that every answer says which of them it came from.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ludus.collector.acted import Acted
from ludus.collector.activations import FloatArray
from ludus.collector.agents import AgentIndex
from ludus.collector.arena import Arena
from ludus.collector.commands import Admit, NetworkSpec, PolicySpec, Settings
from ludus.collector.matches import MatchRecorder
from ludus.collector.opponents import OpponentRunner
from ludus.collector.runner_factory import RunnerFactory
from ludus.collector.runners import LearningRunner, PolicyRunner, RunnerReport
from ludus.collector.segments import SegmentEnd
from ludus.collector.settings import CollectorSettings
from ludus.config.network import NetworkSettings
from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, Floats, Ints, Outcome, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.segments import Segment, columns_of, rows_of
from worker.collectors.acting import WorkerPolicyFactory
from worker.experience.rollout import gather

SPEC = BehaviorSpec("Scripted", (ObservationSpec((2,)),), ActionSpec(1, (2,)))
NETWORK = NetworkSettings(hidden_units=1, num_layers=1, deterministic=True)
"""Of frozen policies."""
GENERATION = 3
FIRST_TICK = GENERATION << 32


def spec_of(behavior: str) -> BehaviorSpec:
    """Return a spec that `weights_of` fit."""
    return BehaviorSpec(behavior, (ObservationSpec((1,)),), ActionSpec(1))


def weights_of(key: int) -> FloatArray:
    """Return a policy whose action is a tenth of its key."""
    flat = np.zeros(5, np.float32)
    flat[3] = 0.3 * key
    return flat


class CountingPolicy:
    """Answers with numbers that count up, and remembers them if it has memory."""

    def __init__(self, branches: int, memory_size: int) -> None:
        self.branches = branches
        self.memory_size = memory_size
        self.decisions = 0
        self.passes: list[int] = []
        """Rows of each forward pass."""
        self.remembered: list[npt.NDArray[np.float32]] = []
        """Memory before each forward pass."""
        self.driven_by: list[npt.NDArray[np.float32] | None] = []
        """Noise of each forward pass."""

    def load(self, flat: npt.NDArray[np.float32]) -> None:
        """Have no weights."""

    def act(
        self,
        observations: Sequence[Array],
        masks: Array | None,
        memory: npt.NDArray[np.float32] | None,
        rng: np.random.Generator,
        noise: npt.NDArray[np.float32] | None,
    ) -> Acted:
        self.driven_by.append(noise)
        rows = len(observations[0])
        numbers = np.arange(self.decisions, self.decisions + rows, dtype=np.float32)[:, None]
        self.decisions += rows
        self.passes.append(rows)
        discrete = np.zeros((rows, self.branches), np.int32)
        log_probs = np.repeat(-numbers, 1 + self.branches, 1)
        return Acted(numbers, numbers, discrete, log_probs, self._remember(memory, numbers))

    def _remember(
        self, memory: npt.NDArray[np.float32] | None, numbers: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32] | None:
        """Return how many steps there were before, then the number of this one and that of the one before."""
        if not self.memory_size:
            return None
        assert memory is not None
        self.remembered.append(memory.copy())
        return np.stack([memory[:, 0] + 1, numbers[:, 0], memory[:, 1]], 1)


@dataclass(frozen=True)
class CountingPolicies(WorkerPolicyFactory):
    """Makes the policy that learns count; opponents are real."""

    memory_size: int

    def policy(self, spec: BehaviorSpec, *_: Any) -> Any:
        return CountingPolicy(len(spec.actions.discrete_branches), self.memory_size)


def factory_of(policies: WorkerPolicyFactory) -> RunnerFactory:
    """Return the factory of a world's runners."""
    settings = CollectorSettings("run-1", 1, 7)
    start = Settings(index=0, generation=GENERATION, first_number=0, number_step=1, settings="")
    return RunnerFactory(settings, start, policies, request_turn=lambda _: None)


def admission(arena: Arena, horizon: int, evaluated: Sequence[NetworkSettings] = ()) -> Admit:
    """Return a learner's answer to a behavior whose frozen policies are of `NETWORK`, or evaluated."""
    networks = tuple(NetworkSpec(network, "gaussian", None) for network in evaluated)
    return Admit(0, arena.layout, PolicySpec(NETWORK, 5, horizon, evaluated=networks), weight_buffers=0, low_blocks=0)


@dataclass
class Step:
    """One answered decision, as the agent lived it."""

    simulator: int
    agent: int
    episode: int
    observation: list[float]
    reward: float | None = None
    """None until the agent came back."""
    following: list[float] | None = None
    """The observation that came back."""
    tick: int = 0
    """Of the message that asked."""
    following_tick: int = 0
    """Of the message that came back."""
    memory: list[float] = field(default_factory=list)
    """What the policy remembered before it."""
    group: int = 0
    mates_alive: bool = False
    """When the episode ended with it: whether others of its group went on."""
    ending: SegmentEnd = SegmentEnd.CUT
    before: tuple[float | None, list[float] | None, int] | None = None
    """Reward, following observation and its tick before the agent ended while it waited: what a segment has that was
    cut then."""


@dataclass
class Life:
    """One agent of one simulator."""

    episode: int = -1
    state: str = "idle"
    observation: list[float] = field(default_factory=list)
    asked: int = 0
    """Tick of the message that it waits since."""
    memory: list[float] = field(default_factory=list)
    last: int | None = None
    """Number of its newest answered decision in this episode."""


@dataclass
class End:
    """How an agent's episode ends."""

    agent: int
    reward: float | None = None
    """None: one that was never seen before, or 0 in teams that do not learn."""
    group_reward: float = 0.0
    truncated: bool = False
    outcome: Outcome = Outcome.UNSPECIFIED


class Member:
    """A session, as the runners see it: a simulator that announced some names."""

    def __init__(self, world: "World", simulator: int, names: Sequence[str]) -> None:
        self.world = world
        self.simulator = simulator
        self.agent_indexes: dict[str, tuple[PolicyRunner, AgentIndex]] = {}
        for name in names:
            world.agent_indexes += 1
            agent_index = AgentIndex(world.agent_indexes, simulator, name)
            self.agent_indexes[name] = world.runner_of(agent_index), agent_index
        self.groups: dict[str, int] = {}
        """Name -> the group of its agents, in worlds without groups of their own."""
        self.lives: defaultdict[int, Life] = defaultdict(Life)
        """Agents of the team that learns."""
        self.actions: dict[str, dict[int, int]] = {}
        """Name -> agent -> the key that answered it last; teams that do not learn."""
        self.asked: dict[tuple[int, str], list[int]] = {}
        """Agents of each unanswered step, in their order."""
        self.step_id = 0

    @property
    def agent_index(self) -> AgentIndex:
        """The one of the only name."""
        ((_, agent_index),) = self.agent_indexes.values()
        return agent_index

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        runner, known = self.agent_indexes[agent_index.behavior]
        assert agent_index is known
        answered = self.asked.pop((step_id, agent_index.behavior)) if agents is None else agents.tolist()
        assert len(answered) == len(continuous) == len(discrete)
        if runner is not self.world.runner:
            keys = np.rint(10 * continuous[:, 0]).astype(int).tolist()
            self.actions.setdefault(agent_index.behavior, {}).update(zip(answered, keys, strict=True))
            return
        for agent, number in zip(answered, continuous[:, 0].tolist(), strict=True):
            life = self.lives[agent]
            assert life.state == "waiting", "answered exactly once"
            life.state = "acting"
            life.last = int(number)
            self.world.steps[int(number)] = Step(
                *(self.simulator, agent, life.episode, life.observation),
                tick=life.asked,
                memory=life.memory,
                group=self.group_of(agent_index.behavior, agent),
            )
            life.memory = [life.memory[0] + 1, number, life.memory[1]]

    def send(self, decide: Mapping[str, Sequence[int]], end: Mapping[str, Sequence[End]] | None = None) -> None:
        """Stage a message: some agents ask for an action, others (or the same, before) end their episode."""
        self.step_id += 1
        ending = end or {}
        for name in {**decide, **ending}:
            runner, agent_index = self.agent_indexes[name]
            self.world.tick += runner is self.world.runner
            terminals = self._end(name, ending[name]) if ending.get(name) else None
            decisions = self._decide(name, decide[name]) if decide.get(name) else None
            runner.stage(self, agent_index, self.step_id, BehaviorBatch(name, decisions, terminals))

    def play(self, decide: Mapping[str, Sequence[int]], end: Mapping[str, Sequence[End]] | None = None) -> None:
        """Send a message and let the runners have their turns."""
        self.send(decide, end)
        self.world.run()

    def drop(self) -> None:
        """Forget all agents, as when the session ends or begins anew."""
        for runner, agent_index in self.agent_indexes.values():
            runner.drop(agent_index)
        self.lives.clear()

    def _end(self, name: str, ends: Sequence[End]) -> TerminalBatch:
        observations, rewards = [], []
        ended: list[tuple[int, Step]] = []
        for end in ends:
            observation, drawn = self.world.draw()
            reward = drawn if self._learns(name) else 0.0
            if end.reward is not None:
                reward = float(np.float32(end.reward))
            observations.append(observation)
            rewards.append(reward)
            if not self._learns(name):
                continue
            life = self.lives[end.agent]
            if life.last is not None and life.state != "idle":
                lived = self.world.steps[life.last]
                if life.state == "waiting":
                    lived.before = (lived.reward, lived.following, lived.following_tick)
                lived.reward = reward if life.state == "acting" else (lived.reward or 0.0) + reward
                lived.ending = SegmentEnd.TRUNCATED if end.truncated else SegmentEnd.TERMINATED
                lived.following, lived.following_tick = observation, self.world.tick
                ended.append((end.agent, lived))
            life.state, life.last = "idle", None
        for agent, lived in ended:
            lived.mates_alive = self._has_mates(name, agent)
        return TerminalBatch(
            np.array([end.agent for end in ends], np.int32),
            np.array(rewards, np.float32),
            (np.array(observations, np.float32),),
            np.array([end.truncated for end in ends], np.bool_),
            self._group_ids(name, [end.agent for end in ends]),
            np.array([end.group_reward for end in ends], np.float32) if any(end.group_reward for end in ends) else None,
            np.array([end.outcome for end in ends], np.uint8) if any(end.outcome for end in ends) else None,
        )

    def _decide(self, name: str, agents: Sequence[int]) -> DecisionBatch:
        observations, rewards = [], []
        for agent in agents:
            observation, reward = self.world.draw()
            observations.append(observation)
            rewards.append(reward if self._learns(name) else 0.0)
            if not self._learns(name):
                continue
            life = self.lives[agent]
            if life.state == "acting":
                assert life.last is not None
                self.world.steps[life.last].reward = reward
                self.world.steps[life.last].following = observation
                self.world.steps[life.last].following_tick = self.world.tick
            else:
                life.episode += 1
                life.memory = [0.0, 0.0, 0.0]
            life.state, life.observation, life.asked = "waiting", observation, self.world.tick
        self.asked[self.step_id, name] = list(agents)
        return DecisionBatch(
            np.array(agents, np.int32),
            np.array(rewards, np.float32),
            (np.array(observations, np.float32),),
            group_ids=self._group_ids(name, agents),
        )

    def _learns(self, name: str) -> bool:
        return self.agent_indexes[name][0] is self.world.runner

    def group_of(self, name: str, agent: int) -> int:
        return agent % 3 if self.world.grouped else self.groups.get(name, 0)

    def _group_ids(self, name: str, agents: Sequence[int]) -> npt.NDArray[np.int32] | None:
        grouped = self.world.grouped or name in self.groups
        return np.array([self.group_of(name, agent) for agent in agents], np.int32) if grouped else None

    def _has_mates(self, name: str, agent: int) -> bool:
        """Whether another one of the agent's group is in an episode."""
        group = self.group_of(name, agent)
        return group != 0 and any(
            self.group_of(name, other) == group and other != agent and life.state != "idle"
            for other, life in self.lives.items()
        )

    def states(self, state: str) -> list[int]:
        return sorted(agent for agent, life in self.lives.items() if life.state == state)


class World:
    """A runner that learns, runners of frozen policies, their simulators, and what should come of it."""

    def __init__(
        self,
        spec: BehaviorSpec = SPEC,
        *,
        learning: int | None = 0,
        horizon: int = 5,
        rows: int = 3,
        size: int = 20,
        recurrent: bool = False,
        grouped: bool = False,
    ) -> None:
        """`learning` is the team that learns; all other names play frozen policies."""
        self.spec = spec
        self.learning = learning
        self.grouped = grouped
        self.tick = FIRST_TICK - 1
        """Number of the newest message."""
        self.agent_indexes = 0
        self.arena = Arena.create(spec, 2_000, rows=rows, memory_size=3 * recurrent)
        self.size = size
        self.factory = factory_of(CountingPolicies(3 * recurrent))
        self.admission = admission(self.arena, horizon)
        self.runner: LearningRunner = self.factory.learning(self.admission, self.arena)
        self.policy: Any = self.runner.policy
        self.runner.version = 7
        self.matches = self.runner.observer = MatchRecorder()
        self.recorder = self.runner.recorder
        self.recorder.segments.blocks = list(range(self.arena.layout.blocks))
        self.quota = self.recorder.quota
        self.frozen: dict[str, PolicyRunner] = {}
        """By behavior."""
        self.members: dict[int, Member] = {}
        self.steps: dict[int, Step] = {}
        self.segments: list[Segment] = []
        self.recorded: dict[int, int] = {}
        """Decision -> round that it was delivered in."""
        self.delivered: defaultdict[int, int] = defaultdict(int)
        """Round -> steps."""
        self._clock = 0

    def runner_of(self, agent_index: AgentIndex) -> PolicyRunner:
        """Return the runner of a name."""
        behavior = agent_index.behavior.partition("?")[0]
        learns = behavior == self.spec.behavior and agent_index.team == self.learning
        return self.runner if learns else self.frozen.get(behavior) or self.opponents(behavior)

    def opponents(self, behavior: str) -> OpponentRunner:
        """Return the runner of a behavior's teams that do not learn."""
        if behavior not in self.frozen:
            self.frozen[behavior] = self.factory.opponents(self.admission, self.arena)
            self.frozen[behavior].behavior = behavior
            self.frozen[behavior].version = 0
        runner = self.frozen[behavior]
        assert isinstance(runner, OpponentRunner)
        return runner

    def assign(
        self, teams: Mapping[int, Sequence[int]], others: Sequence[int] = (0,), behavior: str | None = None
    ) -> None:
        """Let teams of a behavior, the one that learns if it is not named, play these draws of policies."""
        runner = self.opponents(behavior or self.spec.behavior)
        for key in {key for keys in (*teams.values(), others) for key in keys}:
            runner.opponents.take(key, weights_of(key))
        runner.opponents.assign(runner.recorder.agents, teams, others)

    def join(self, simulator: int, *names: str) -> Member:
        self.members[simulator] = Member(self, simulator, names or (self.spec.name,))
        return self.members[simulator]

    def leave(self, simulator: int) -> None:
        self.members.pop(simulator).drop()
        self.run()

    def grant(self, number: int, steps: int | None = None) -> RunnerReport:
        self.quota.grant(number, steps or self.size, size=self.size)
        return self.run()

    def step(
        self, simulator: int, *, decide: Sequence[int] = (), end: Sequence[int] = (), truncate: bool = False
    ) -> None:
        """Stage a message of the only name."""
        ends = [End(agent, truncated=truncate) for agent in end]
        self.members[simulator].send({self.spec.name: decide}, {self.spec.name: ends})

    def play(self, simulator: int, **options: Any) -> RunnerReport:
        """Stage a message of the only name and let the runners have their turns."""
        self.step(simulator, **options)
        return self.run()

    def draw(self) -> tuple[list[float], float]:
        """Return an observation and a reward that were never seen before."""
        self._clock += 1
        (size,) = self.spec.observations[0].shape
        return [float(self._clock), -float(self._clock)][:size], float(self._clock) / 2

    def run(self) -> RunnerReport:
        """Let the runners have their turns, and check every segment that leaves against what was lived."""
        for runner in self.frozen.values():
            runner.run()
        report = self.runner.run()
        segments = self.recorder.segments.take()
        if segments is not None:
            for segment in rows_of(segments):
                self._check(segment)
        return report

    def _check(self, segment: Segment) -> None:
        rollout = gather(self.arena, columns_of([segment]))
        numbers = [int(number) for number in rollout.continuous[:, 0].tolist()]
        lived = [self.steps[number] for number in numbers]
        self.segments.append(segment)
        self.delivered[segment.round] += segment.length
        assert {(step.simulator, step.agent, step.episode) for step in lived} == {
            (segment.simulator, segment.agent, segment.episode)
        }
        assert rollout.observations[0].tolist() == [step.observation for step in lived]
        *rewards, last_reward = rollout.rewards.tolist()
        assert rewards == [step.reward for step in lived[:-1]]
        for step, after in pairwise(lived):
            assert step.following == after.observation, "steps of a segment are consecutive"
        last, following = lived[-1], rollout.next_observations[0][0].tolist()
        tick = int(rollout.successor_ticks)
        if segment.ending is SegmentEnd.CUT and last.ending is not SegmentEnd.CUT:
            assert (last_reward, following, tick) == last.before
        else:
            assert (last_reward, following, tick) == (last.reward, last.following, last.following_tick)
            assert segment.ending == last.ending
        if segment.ending is not SegmentEnd.CUT:
            assert bool(rollout.mates_alive) == last.mates_alive
        assert segment.group == lived[0].group
        assert rollout.ticks.tolist() == [step.tick for step in lived]
        if self.policy.memory_size:
            assert rollout.memories is not None
            assert rollout.memories.tolist() == [step.memory for step in lived]
        assert rollout.log_probs[:, 0].tolist() == [-number for number in numbers]
        assert set(rollout.versions.tolist()) == {7}
        assert all(step.ending is SegmentEnd.CUT for step in lived[:-1])
        for number in numbers:
            assert number not in self.recorded, "no step is delivered twice"
            self.recorded[number] = segment.round
        self.recorder.segments.blocks.extend(segment.blocks)


def playing(simulators: int = 1, **options: Any) -> World:
    """Return a world that some simulators have joined, and whose first round is granted."""
    world = World(**options)
    for simulator in range(simulators):
        world.join(simulator)
    world.grant(0)
    return world
