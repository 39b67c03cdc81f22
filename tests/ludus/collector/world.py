"""A world of scripted simulators around one runner, with a plain-list account of what every agent lived through.

The policy numbers its decisions: the continuous sample of an answer is unique, so that every recorded step can be
traced back to the agent, the observation and the reward that belong to it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ludus.collector.acted import Acted
from ludus.collector.agents import AgentIndex
from ludus.collector.arena import Arena
from ludus.collector.policy import Policy
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.runners import LearningRunner, RunnerReport
from ludus.collector.segments import SegmentEnd
from ludus.collector.step_quota import StepQuota
from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, Floats, Ints, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.segments import Segment, columns_of, rows_of
from worker.experience.rollout import gather

SPEC = BehaviorSpec("Scripted", (ObservationSpec((2,)),), ActionSpec(1, (2,)))
FIRST_TICK = 3 << 32


def learning_runner(
    behavior: str, policy: Policy, arena: Arena, horizon: int, quota: StepQuota, *, seed: int = 0, **fields: Any
) -> LearningRunner:
    """Return a runner that has all blocks of the arena. Its world calls `run`, and `fields` are the runner's own."""
    recorder = TrajectoryRecorder(arena, horizon, quota)
    recorder.segments.blocks = list(range(arena.layout.blocks))
    return LearningRunner(
        number=0,
        behavior=behavior,
        policy=policy,
        recorder=recorder,
        rng=np.random.default_rng(seed),
        low_blocks=0,
        request_turn=lambda _: None,
        **fields,
    )


class CountingPolicy:
    """Answers with numbers that count up, and remembers them if it has memory."""

    def __init__(self, memory_size: int = 0) -> None:
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
        discrete = np.zeros((rows, 1), np.int32)
        log_probs = np.concatenate([-numbers, -numbers], 1)
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


class Member:
    """A session, as the runner sees it."""

    def __init__(self, world: "World", simulator: int) -> None:
        self.world = world
        self.simulator = simulator
        self.agent_index = AgentIndex(simulator + 1, simulator, SPEC.name)
        self.lives: defaultdict[int, Life] = defaultdict(Life)
        self.asked: dict[int, list[int]] = {}
        """Agents of each unanswered step, in their order."""
        self.step_id = 0

    @property
    def agent_indexes(self) -> dict[str, tuple[LearningRunner, AgentIndex]]:
        return {SPEC.name: (self.world.runner, self.agent_index)}

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        assert agent_index is self.agent_index
        answered = self.asked.pop(step_id) if agents is None else agents.tolist()
        assert len(answered) == len(continuous) == len(discrete)
        for agent, number in zip(answered, continuous[:, 0].tolist(), strict=True):
            life = self.lives[agent]
            assert life.state == "waiting", "answered exactly once"
            life.state = "acting"
            life.last = int(number)
            self.world.steps[int(number)] = Step(
                self.simulator, agent, life.episode, life.observation, tick=life.asked, memory=life.memory
            )
            life.memory = [life.memory[0] + 1, number, life.memory[1]]

    def has_mates(self, agent: int) -> bool:
        """Whether another one of the agent's group is in an episode."""
        return any(
            group_of(other) == group_of(agent) != 0 and other != agent and life.state != "idle"
            for other, life in self.lives.items()
        )

    def states(self, state: str) -> list[int]:
        return sorted(agent for agent, life in self.lives.items() if life.state == state)


def group_of(agent: int) -> int:
    """The group of an agent, in worlds with groups."""
    return agent % 3


class World:
    """A runner, its simulators, and what should come of it."""

    def __init__(
        self,
        *,
        horizon: int = 5,
        rows: int = 3,
        size: int = 20,
        recurrent: bool = False,
        grouped: bool = False,
    ) -> None:
        self.grouped = grouped
        self.tick = FIRST_TICK - 1
        """Number of the newest message."""
        self.arena = Arena.create(SPEC, 2_000, rows=rows, memory_size=3 * recurrent)
        self.quota = StepQuota()
        self.policy = CountingPolicy(self.arena.layout.memory_size)
        self.size = size
        self.runner = learning_runner(
            SPEC.behavior, self.policy, self.arena, horizon, self.quota, version=7, ticks=FIRST_TICK
        )
        self.recorder = self.runner.recorder
        self.members: dict[int, Member] = {}
        self.steps: dict[int, Step] = {}
        self.segments: list[Segment] = []
        self.recorded: dict[int, int] = {}
        """Decision -> round that it was delivered in."""
        self.delivered: defaultdict[int, int] = defaultdict(int)
        """Round -> steps."""
        self._clock = 0

    def join(self, simulator: int) -> Member:
        self.members[simulator] = Member(self, simulator)
        return self.members[simulator]

    def leave(self, simulator: int) -> None:
        self.runner.drop(self.members.pop(simulator).agent_index)
        self.run()

    def grant(self, number: int, steps: int | None = None) -> RunnerReport:
        self.quota.grant(number, steps or self.size, size=self.size)
        return self.run()

    def step(
        self, simulator: int, *, decide: Sequence[int] = (), end: Sequence[int] = (), truncate: bool = False
    ) -> None:
        """Stage a step: some agents ask for an action, others (or the same, before) end their episode."""
        member = self.members[simulator]
        member.step_id += 1
        self.tick += 1
        terminals = self._end(member, end, truncate) if end else None
        decisions = self._decide(member, decide) if decide else None
        self.runner.stage(member, member.agent_index, member.step_id, BehaviorBatch(SPEC.name, decisions, terminals))

    def _draw(self) -> tuple[list[float], float]:
        """Return an observation and a reward that were never seen before."""
        self._clock += 1
        return [float(self._clock), -float(self._clock)], float(self._clock) / 2

    def _groups(self, agents: Sequence[int]) -> npt.NDArray[np.int32] | None:
        return np.array([group_of(agent) for agent in agents], np.int32) if self.grouped else None

    def _end(self, member: Member, agents: Sequence[int], truncate: bool) -> TerminalBatch:
        observations, rewards = [], []
        ended: list[tuple[int, Step]] = []
        for agent in agents:
            observation, reward = self._draw()
            observations.append(observation)
            rewards.append(reward)
            life = member.lives[agent]
            if life.last is not None and life.state != "idle":
                lived = self.steps[life.last]
                if life.state == "waiting":
                    lived.before = (lived.reward, lived.following, lived.following_tick)
                lived.reward = reward if life.state == "acting" else (lived.reward or 0.0) + reward
                lived.ending = SegmentEnd.TRUNCATED if truncate else SegmentEnd.TERMINATED
                lived.following, lived.following_tick = observation, self.tick
                ended.append((agent, lived))
            life.state, life.last = "idle", None
        for agent, lived in ended:
            lived.mates_alive = self.grouped and member.has_mates(agent)
        return TerminalBatch(
            np.array(agents, np.int32),
            np.array(rewards, np.float32),
            (np.array(observations, np.float32),),
            np.full(len(agents), truncate),
            self._groups(agents),
        )

    def _decide(self, member: Member, agents: Sequence[int]) -> DecisionBatch:
        observations, rewards = [], []
        for agent in agents:
            observation, reward = self._draw()
            observations.append(observation)
            rewards.append(reward)
            life = member.lives[agent]
            if life.state == "acting":
                assert life.last is not None
                self.steps[life.last].reward = reward
                self.steps[life.last].following = observation
                self.steps[life.last].following_tick = self.tick
            else:
                life.episode += 1
                life.memory = [0.0, 0.0, 0.0]
            life.state, life.observation, life.asked = "waiting", observation, self.tick
        member.asked[member.step_id] = list(agents)
        return DecisionBatch(
            np.array(agents, np.int32),
            np.array(rewards, np.float32),
            (np.array(observations, np.float32),),
            group_ids=self._groups(agents),
        )

    def run(self) -> RunnerReport:
        """Let the runner have its turn, and check every segment that leaves it against what was lived."""
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
        assert segment.group == (group_of(segment.agent) if self.grouped else 0)
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
        self.runner.recorder.segments.blocks.extend(segment.blocks)
