"""Opponents: the frozen policies of a behavior in this collector, and which of them each agent plays.

In self-play the teams that do not learn are answered by a runner of their own, which records nothing. The learner draws
the policies of each team, as many at a time as there are simulators (eight at most), and simulator `n` plays draw
`n mod k`. An agent adopts the policy that is drawn for its team when an episode of it begins, never in the middle.

A frozen policy is named by a *key*: the number of a snapshot, or `-1 - step` for a copy of the policy that learns, as
it was when it had learned for so many steps. The policy of a key never changes.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ludus.collector.acted import Acted
from ludus.collector.activations import FloatArray
from ludus.collector.agent_queue import Batch, Staged
from ludus.collector.agents import AgentIndex, Agents, Slots
from ludus.collector.policy import StackedPolicies
from ludus.collector.runners import PolicyRunner
from ludus.protocol.batches import Array, Bytes, Floats, Outcome

NO_POLICY, MIXED = -(1 << 62), 1 << 62
"""In place of a key: no agent is in an episode; agents play different policies."""
REMEMBERED = 16
"""Changes of an agent index's policy that are remembered."""


class History:
    """Which policy the agents of one agent index played, by their session's messages."""

    def __init__(self) -> None:
        self._states: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        """(message, key): the policy that was played from that message on."""

    def note(self, message: int, key: int) -> None:
        """Record the policy from a message on; a pause between two episodes of one policy is none."""
        states = self._states
        if states and states[-1][0] == message:
            states.pop()
        if len(states) > 1 and states[-1][1] == NO_POLICY and states[-2][1] == key:
            states.pop()
        if key != (states[-1][1] if states else NO_POLICY):
            states.append((message, key))

    def during(self, begin: int, end: int) -> int | None:
        """Return the one policy that was played from message `begin` until before message `end`.

        None where it changed, where several were played, or where the record is too old. `NO_POLICY` if none was
        played.
        """
        states = self._states
        before = [key for message, key in states if message <= begin]
        if not before and len(states) == REMEMBERED:
            return None
        keys = {*before[-1:], *(key for message, key in states if begin < message < end)} - {NO_POLICY}
        if not keys:
            return NO_POLICY
        return keys.pop() if len(keys) == 1 and MIXED not in keys else None

    @property
    def newest_policy(self) -> int:
        """The newest policy that all acting agents played; `NO_POLICY` if there was none."""
        return next((key for _, key in reversed(self._states) if key not in {NO_POLICY, MIXED}), NO_POLICY)


class Opponents:
    """The frozen policies of one behavior, and the policy of each agent. The observer of its runner."""

    def __init__(self, policies: StackedPolicies) -> None:
        self._policies = policies
        self._weights: dict[int, FloatArray] = {}
        self._keys = np.zeros(0, np.int64)
        """Those of the stacked policies, in order."""
        self._teams: Mapping[int, Sequence[int]] = {}
        self._others: Sequence[int] = ()
        self._plays = np.zeros(0, np.int64)
        """By slot."""
        self.episodes, self.won = 0, 0
        """Episodes that ended since the last report to the learner, and how many of them were won."""
        self._histories: dict[int, History] = {}
        """By the number of the agent index."""

    @property
    def keys(self) -> tuple[int, ...]:
        """The policies that are held, in order."""
        return tuple(self._keys.tolist())

    def take(self, key: int, weights: FloatArray) -> None:
        """Take a policy that the next draws name."""
        self._weights[key] = weights

    def assign(self, agents: Agents, teams: Mapping[int, Sequence[int]], others: Sequence[int]) -> None:
        """Play these draws from each agent's next episode on; `others` are for teams that are not among `teams`.

        Policies that are neither drawn nor played by one of `agents` are given up.
        """
        self._teams, self._others = teams, others
        drawn = {key for keys in (*teams.values(), others) for key in keys}
        slots = np.arange(len(self._plays))
        played = set(self._plays[slots[agents.running(slots)]].tolist())
        kept = sorted((drawn | played) & self._weights.keys())
        self._weights = {key: self._weights[key] for key in kept}
        self._keys = np.array(kept, np.int64)
        self._policies.load([self._weights[key] for key in kept])

    def drawn_for(self, agent_index: AgentIndex) -> int:
        """Return the policy that agents of an agent index adopt."""
        draws = self._teams.get(agent_index.team, self._others)
        return draws[agent_index.simulator % len(draws)]

    def history(self, agent_index: AgentIndex) -> History:
        """Return the policies that the agents of an agent index played."""
        return self._histories.setdefault(agent_index.number, History())

    def act(
        self,
        slots: Slots,
        observations: Sequence[Array],
        masks: Bytes | None,
        memory: Floats | None,
        rng: np.random.Generator,
    ) -> Acted:
        """Draw an action for each agent from the policy that it plays."""
        which = np.searchsorted(self._keys, self._plays[slots])
        return self._policies.act(which, observations, masks, memory, rng)

    # The observer -----------------------------------------------------------------------------------------------

    def ending(self, agents: Agents, staged: Staged) -> None:
        """Record that agents leave their policies."""
        batch = staged.batch.terminals
        if staged.terminals is None or batch is None:
            return
        running = agents.running(staged.terminals)
        rewards = batch.rewards if batch.group_rewards is None else batch.rewards + batch.group_rewards
        won = rewards > 0 if batch.outcomes is None else batch.outcomes == Outcome.WIN
        self.episodes += int(running.sum())
        self.won += int((running & won).sum())
        self._note(agents, staged, staged.terminals, leave=True)

    def beginning(self, agents: Agents, staged: Staged) -> None:
        """Assign a policy to agents whose episode begins."""
        if staged.decisions is None:
            return
        new_episodes = staged.decisions[~agents.running(staged.decisions)]
        if not len(new_episodes):
            return
        if len(self._plays) < len(agents.state):
            added = np.zeros(len(agents.state) - len(self._plays), np.int64)
            self._plays = np.concatenate([self._plays, added])
        self._plays[new_episodes] = self.drawn_for(staged.agent_index)
        self._note(agents, staged, new_episodes, leave=False)

    def dropped(self, agent_index: AgentIndex) -> None:
        """Forget the policies that a session's agents played."""
        self._histories.pop(agent_index.number, None)

    def _note(self, agents: Agents, staged: Staged, slots: Slots, *, leave: bool) -> None:
        """Record the policies of an agent index after some of its agents have left or joined."""
        all_slots = staged.agent_index.slots
        playing = all_slots[agents.running(all_slots)]
        playing = np.setdiff1d(playing, slots) if leave else np.union1d(playing, slots)
        keys = np.unique(self._plays[playing])
        key = NO_POLICY if not len(keys) else int(keys[0]) if len(keys) == 1 else MIXED
        self.history(staged.agent_index).note(staged.step_id, key)


@dataclass(slots=True, eq=False)
class OpponentRunner(PolicyRunner):
    """Agents that do not learn, each answered by the frozen policy that it plays."""

    opponents: Opponents = field(kw_only=True)
    steps: int = 0
    """Decisions that were answered since the last report to the learner."""

    absorbs_first: ClassVar[bool] = True
    """Agents adopt policies when their episodes begin."""

    def _forward(self, batch: Batch, memory: Floats | None) -> Acted:
        self.steps += len(batch.slots)
        return self.opponents.act(batch.slots, batch.observations, batch.masks, memory, self.rng)

    def take_counts(self) -> tuple[int, int, int]:
        """Return decisions, ended episodes and won ones since the last call. Forget them."""
        self.recorder.take_episodes()
        counts = self.steps, self.opponents.episodes, self.opponents.won
        self.steps = self.opponents.episodes = self.opponents.won = 0
        return counts
