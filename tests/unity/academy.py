"""The game: which agents there are at which step, when they ask, when their episodes end. Knows nothing of gRPC.

A step is one FixedUpdate: agents whose turn it is ask, the queue of infos goes out, agents act, episodes end. Infos of
episodes that end while agents act wait for the next message, which usually begins the next episode of the same id.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ludus.protocol.mlagents import agent_pb2, unity_pb2
from tests.unity.agents import Agent, episode_length, is_over
from tests.unity.descriptions import CAPABILITIES, Behavior, Package


@dataclass
class Slot:
    """The place of one agent; now and then nobody is there."""

    behavior: Behavior
    place: int
    group_id: int
    due: int
    """The step at which somebody comes, if nobody is there."""
    agent: Agent | None = None


@dataclass
class Group:
    """Agents that begin and end together (SimpleMultiAgentGroup)."""

    slots: list[Slot]
    length: int
    steps: int = 0
    episodes: int = 0

    @property
    def members(self) -> list[Agent]:
        """Those who are alive."""
        return [slot.agent for slot in self.slots if slot.agent is not None]


class Academy:
    """Agents of several behaviors, deterministic from a seed and the trainer's actions."""

    def __init__(self, behaviors: Iterable[Behavior], package: Package, seed: int) -> None:
        self.package = package
        self.trainer: set[str] = set(CAPABILITIES)
        """What the trainer is able to do."""
        self.behaviors = {behavior.name: behavior for behavior in behaviors}
        self.steps = 0
        self.episodes = dict.fromkeys(self.behaviors, 0)
        self.scores: dict[str, list[float]] = {name: [] for name in self.behaviors}
        """The share of right actions, averaged over the agents, at every step that a behavior has been there."""
        self.forbidden_choices = 0
        self._rng = np.random.default_rng(seed)
        self._next_id = 0
        self._groups: list[Group] = []
        """Their ids are their numbers, from 1."""
        self._slots = [slot for behavior in self.behaviors.values() for slot in self._places(behavior)]
        self._queues: dict[str, list[agent_pb2.AgentInfoProto]] = {}
        self._waiting: dict[str, list[Agent]] = {}
        """Agents that asked, in the order in which they did."""

    def __len__(self) -> int:
        """How many agents are enabled."""
        return sum(slot.agent is not None for slot in self._slots)

    def advance(self) -> None:
        """Begin a step: enable agents whose time has come; those whose turn it is ask."""
        for slot in self._slots:
            if slot.agent is None and self.steps >= slot.due:
                self._enable(slot)
        for agent in self._agents():
            agent.steps += 1
            if agent.is_its_turn(self.steps):
                self._queues[agent.behavior.name].append(agent.decide(self.package, self.trainer))
                self._waiting[agent.behavior.name].append(agent)
        for group in self._groups:
            group.steps += bool(group.members)
        self.steps += 1

    def flush(self) -> dict[str, list[agent_pb2.AgentInfoProto]]:
        """Return the queued infos of every behavior that has ever had agents; empty if nothing is queued at all."""
        if not any(self._queues.values()):
            return {}
        queued, self._queues = self._queues, {name: [] for name in self._queues}
        return queued

    def take(self, actions: unity_pb2.UnityRLInputProto) -> None:
        """Hand the trainer's actions to those who asked: the i-th to the i-th. Without any they are zeros."""
        for name, agents in self._waiting.items():
            values = actions.agent_actions[name].value if name in actions.agent_actions else ()
            if values and len(values) < len(agents):
                raise IndexError(f"{name}: {len(agents)} agents asked, {len(values)} actions came; C# throws here")
            for index, agent in enumerate(agents):
                self._act(agent, values[index] if values else agent_pb2.AgentActionProto())
        self._waiting = {name: [] for name in self._waiting}

    def finish(self) -> None:
        """End a step: everybody acts and earns, episodes end and begin."""
        right: dict[str, list[float]] = {}
        for slot in self._slots:
            if slot.agent is not None:
                score = slot.agent.act()
                right.setdefault(slot.behavior.name, []).append(score)
                if not slot.group_id:
                    slot.agent.reward += score / slot.behavior.decision_period
                    self._end_if_over(slot, slot.agent)
        for name, scores in right.items():
            self.scores[name].append(float(np.mean(scores)))
        for group in self._groups:
            self._finish_group(group)

    def reset(self) -> None:
        """Begin all episodes again, without a word of the old ones. Ids stay, and what was earned."""
        self._queues = {name: [] for name in self._queues}
        self._waiting = {name: [] for name in self._waiting}
        for agent in self._agents():
            agent.begin()
        for group in self._groups:
            self._begin_group(group)

    def _places(self, behavior: Behavior) -> Iterator[Slot]:
        for place in range(behavior.agents):
            if behavior.group_size and place % behavior.group_size == 0:
                self._groups.append(Group([], episode_length(behavior, self._rng)))
            slot = Slot(behavior, place, len(self._groups) if behavior.group_size else 0, behavior.appears_at)
            if slot.group_id:
                self._groups[-1].slots.append(slot)
            yield slot

    def _agents(self) -> Iterator[Agent]:
        return (slot.agent for slot in self._slots if slot.agent is not None)

    def _enable(self, slot: Slot) -> None:
        name = slot.behavior.name
        self._queues.setdefault(name, [])
        self._waiting.setdefault(name, [])
        slot.agent = Agent(self._next_id, slot.place, slot.behavior, slot.group_id, self._rng)
        self._next_id += 1

    def _act(self, agent: Agent, action: agent_pb2.AgentActionProto) -> None:
        behavior = agent.behavior
        if self.package.has("hybridActions"):
            continuous, discrete = list(action.continuous_actions), list(action.discrete_actions)
        else:
            numbers = list(action.vector_actions_deprecated)
            continuous, discrete = (numbers, []) if behavior.continuous else ([], [int(number) for number in numbers])
        continuous = continuous or [0.0] * behavior.continuous
        discrete = discrete or [0] * len(behavior.branches)
        if (len(continuous), len(discrete)) != (behavior.continuous, len(behavior.branches)):
            raise IndexError(f"{behavior.name}: an action of {len(continuous)} and {len(discrete)} numbers")
        choices = np.array(discrete, np.int64)
        self.forbidden_choices += agent.is_forbidden(choices)
        agent.take(np.array(continuous, np.float32), choices)

    def _end_if_over(self, slot: Slot, agent: Agent) -> None:
        ended, cut = is_over(agent.steps, agent.length), is_over(agent.steps, slot.behavior.max_step)
        if ended or cut:
            self._end(agent, interrupted=not ended)
            if agent.episodes == slot.behavior.episodes_per_life:
                slot.agent, slot.due = None, self.steps + slot.behavior.absence
            else:
                agent.begin()

    def _end(self, agent: Agent, *, interrupted: bool) -> None:
        self.episodes[agent.behavior.name] += 1
        self._queues[agent.behavior.name].append(agent.end(self.package, self.trainer, interrupted))

    def _finish_group(self, group: Group) -> None:
        behavior, members = group.slots[0].behavior, group.members
        reward = float(np.mean([member.act() for member in members])) if members else 0.0
        for member in members:
            member.group_reward += reward / behavior.decision_period
        ended, cut = is_over(group.steps, group.length), is_over(group.steps, behavior.max_step)
        if ended or cut:
            for member in members:
                self._end(member, interrupted=not ended)
                member.begin()
            self._begin_group(group)
        elif behavior.casualties and group.steps == min(filter(None, (group.length, behavior.max_step))) // 2:
            self._lose_one(group)

    def _lose_one(self, group: Group) -> None:
        slot = group.slots[group.episodes % len(group.slots)]
        if slot.agent is not None:
            self._end(slot.agent, interrupted=False)
            slot.agent, slot.due = None, sys.maxsize  # until the group's next episode

    def _begin_group(self, group: Group) -> None:
        behavior = group.slots[0].behavior
        group.episodes += 1
        group.steps, group.length = 0, episode_length(behavior, self._rng)
        for slot in group.slots:
            slot.due = max(behavior.appears_at, self.steps)
