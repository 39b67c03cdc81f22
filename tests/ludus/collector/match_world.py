"""Scripted games of several teams around real runners: one that learns, and one of opponents for each behavior.

The policies are real networks whose action is their key, so that every answer says which of them it came from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ludus.collector.activations import FloatArray
from ludus.collector.agents import AgentIndex
from ludus.collector.arena import Arena
from ludus.collector.matches import EndedMatch, MatchRecorder
from ludus.collector.opponents import OpponentRunner, Opponents
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.runners import PolicyRunner
from ludus.collector.step_quota import StepQuota
from ludus.config.network import NetworkSettings
from ludus.protocol.batches import BehaviorBatch, DecisionBatch, Floats, Ints, Outcome, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.ludus.collector.world import learning_runner
from worker.collectors.acting import POLICIES

NETWORK = NetworkSettings(hidden_units=1, num_layers=1, deterministic=True)
LEARNER = 9
"""The key that the policy which learns answers with."""


def spec_of(behavior: str) -> BehaviorSpec:
    return BehaviorSpec(behavior, (ObservationSpec((1,)),), ActionSpec(1))


def weights_of(key: int) -> FloatArray:
    """Return a policy whose action is a tenth of its key."""
    flat = np.zeros(5, np.float32)
    flat[3] = 0.3 * key
    return flat


@dataclass
class End:
    """How an agent's episode ends."""

    agent: int
    reward: float = 0.0
    group: int = 0
    group_reward: float = 0.0
    truncated: bool = False
    outcome: Outcome = Outcome.UNSPECIFIED


class Pitch:
    """The runners of one behavior."""

    def __init__(self, behavior: str) -> None:
        spec = spec_of(behavior)
        self.arena = Arena.create(spec, 500)
        self.match_recorder = MatchRecorder()
        quota = StepQuota()
        quota.grant(0, 10_000, size=10_000)
        policy = POLICIES.policy(spec, NETWORK)
        policy.load(weights_of(LEARNER))
        self.learning = learning_runner(
            behavior, policy, self.arena, 500, quota, seed=1, version=0, observer=self.match_recorder
        )
        self.opponents = Opponents(POLICIES.stacked(spec, NETWORK))
        self.assignment = OpponentRunner(
            number=0,
            behavior=behavior,
            opponents=self.opponents,
            observer=self.opponents,
            recorder=TrajectoryRecorder(self.arena, 500, StepQuota()),
            rng=np.random.default_rng(1),
            low_blocks=0,
            recorded=False,
            request_turn=lambda _: None,
            version=0,
        )

    def assign(self, teams: Mapping[int, Sequence[int]], others: Sequence[int] = (0,)) -> None:
        for key in {key for keys in (*teams.values(), others) for key in keys}:
            self.opponents.take(key, weights_of(key))
        self.opponents.assign(self.assignment.recorder.agents, teams, others)


@dataclass
class Stadium:
    """Pitches by behavior, and who of them learns."""

    learning: dict[str, int]
    """Behavior -> the team that learns; of behaviors that are not among them none does."""
    pitches: dict[str, Pitch] = field(default_factory=dict)
    agent_indexes: int = 0

    def pitch(self, behavior: str) -> Pitch:
        if behavior not in self.pitches:
            self.pitches[behavior] = Pitch(behavior)
        return self.pitches[behavior]

    def game(self, number: int, *names: str) -> "Game":
        return Game(self, number, names)

    def matches(self, behavior: str) -> list[EndedMatch]:
        return self.pitches[behavior].match_recorder.take()

    def run(self) -> None:
        for pitch in self.pitches.values():
            pitch.assignment.run()
        for pitch in self.pitches.values():
            pitch.learning.run()

    def close(self) -> None:
        for pitch in self.pitches.values():
            pitch.arena.close()


class Game:
    """One simulator."""

    def __init__(self, stadium: Stadium, number: int, names: Sequence[str]) -> None:
        self.stadium = stadium
        self.agent_indexes: dict[str, tuple[PolicyRunner, AgentIndex]] = {}
        self.message = 0
        self.actions: dict[str, dict[int, int]] = {}
        """Name -> agent -> the key that answered it last."""
        self._asked: dict[tuple[int, str], Ints] = {}
        for name in names:
            stadium.agent_indexes += 1
            agent_index = AgentIndex(stadium.agent_indexes, number, name)
            behavior = name.partition("?")[0]
            pitch = stadium.pitch(behavior)
            learns = stadium.learning.get(behavior) == agent_index.team
            self.agent_indexes[name] = (pitch.learning if learns else pitch.assignment, agent_index)

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        asked = self._asked.pop((step_id, agent_index.behavior)) if agents is None else agents
        keys = np.rint(10 * continuous[:, 0]).astype(int).tolist()
        self.actions.setdefault(agent_index.behavior, {}).update(zip(asked.tolist(), keys, strict=True))

    def send(
        self,
        decide: Mapping[str, Sequence[int]],
        end: Mapping[str, Sequence[End]] | None = None,
        groups: Mapping[str, int] | None = None,
    ) -> None:
        """Stage a message: who asks for an action, whose episode ends; agents of a name may be of one group."""
        self.message += 1
        ending = end or {}
        for name in {**decide, **ending}:
            runner, agent_index = self.agent_indexes[name]
            agents = np.array(decide.get(name, ()), np.int32)
            batch = None
            if len(agents):
                group = (groups or {}).get(name, 0)
                seen = (np.zeros((len(agents), 1), np.float32),)
                ids = np.full(len(agents), group, np.int32) if group else None
                batch = DecisionBatch(agents, np.zeros(len(agents), np.float32), seen, None, ids)
                self._asked[self.message, name] = agents
            runner.stage(self, agent_index, self.message, BehaviorBatch(name, batch, _terminals(ending.get(name, ()))))

    def play(
        self,
        decide: Mapping[str, Sequence[int]],
        end: Mapping[str, Sequence[End]] | None = None,
        groups: Mapping[str, int] | None = None,
    ) -> None:
        """Send a message and let the runners have their turns."""
        self.send(decide, end, groups)
        self.stadium.run()


def _terminals(ends: Sequence[End]) -> TerminalBatch | None:
    if not ends:
        return None
    grouped = any(end.group for end in ends)
    told = any(end.outcome for end in ends)
    return TerminalBatch(
        np.array([end.agent for end in ends], np.int32),
        np.array([end.reward for end in ends], np.float32),
        (np.zeros((len(ends), 1), np.float32),),
        np.array([end.truncated for end in ends], np.bool_),
        np.array([end.group for end in ends], np.int32) if grouped else None,
        np.array([end.group_reward for end in ends], np.float32) if grouped else None,
        np.array([end.outcome for end in ends], np.uint8) if told else None,
    )
