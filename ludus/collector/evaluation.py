"""Assessments in a collector: frozen policies that play, and the games that count (`worker.evaluation.evaluation`).

One runner answers all agents of the behavior; it records nothing. In a match the candidate answers the team that
the simulator's episode batch names, the champion the other one. Games before the first batch and between two do not
count. Policies may have any networks, as long as they fit the behavior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ludus.collector.acted import Acted
from ludus.collector.agent_queue import Batch, Staged
from ludus.collector.agents import ACTING, AgentIndex, Agents, Slots
from ludus.collector.messages import EndedGame
from ludus.collector.policy import Policy
from ludus.collector.rows import outcome_by_reward, reported_outcome
from ludus.collector.runners import PolicyRunner
from ludus.protocol.batches import Floats, Outcome, TerminalBatch

Key = tuple[bool, int]
"""A game: a group's (true) or an agent's, with its number."""


@dataclass(slots=True)
class _Life:
    """Returns and length of the agents of one game that have ended."""

    returns: list[float] = field(default_factory=list)
    length: int = 0


@dataclass(slots=True)
class _Watch:
    """An episode batch, on the side that is watched."""

    session_id: str
    episode_batch: int
    expected: set[Key] | None = None
    """Those whose games count; None before the first agent asked."""
    lives: dict[Key, _Life] = field(default_factory=dict)
    ended: dict[Key, EndedGame] = field(default_factory=dict)


class EvaluationEpisodes:
    """The episode batches that are under way. The observer of an assessment's runner."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watch] = {}
        """By the number of the agent index."""
        self._complete: list[tuple[str, int, list[EndedGame]]] = []

    def begin(self, agent_index: AgentIndex, session_id: str, episode_batch: int) -> None:
        """Count the games of an agent index whose agents begin again."""
        self._watched[agent_index.number] = _Watch(session_id, episode_batch)

    def take(self) -> list[tuple[str, int, list[EndedGame]]]:
        """Remove and return the complete episode batches, each with its games in the order of their agents."""
        complete, self._complete = self._complete, []
        return complete

    # The observer -----------------------------------------------------------------------------------------------

    def beginning(self, agents: Agents, staged: Staged) -> None:
        """Record which games count: those of the agents that ask first."""
        watch, batch = self._watched.get(staged.agent_index.number), staged.batch.decisions
        if watch is None or watch.expected is not None or staged.decisions is None or batch is None:
            return
        fresh = ~agents.running(staged.decisions)
        if fresh.any():
            watch.expected = set(_keys(batch.agent_ids[fresh], batch.group_ids, fresh))

    def ending(self, agents: Agents, staged: Staged) -> None:
        """Record how games end."""
        watch, slots, batch = self._watched.get(staged.agent_index.number), staged.terminals, staged.batch.terminals
        if watch is None or watch.expected is None or slots is None or batch is None:
            return
        running = agents.running(slots)
        lived = agents.acted(slots)
        keys = _keys(batch.agent_ids, batch.group_ids)
        for key in dict.fromkeys(keys):
            rows = np.flatnonzero([each == key for each in keys] & running)
            if key not in watch.expected or key in watch.ended or not len(rows):
                continue
            self._note(watch, key, agents, slots, batch, rows[lived[rows]])
            if key[0] and agents.plays_on(staged.agent_index, key[1], slots):
                continue
            if key not in watch.lives:
                watch.expected.discard(key)  # it was over before an agent could act
                continue
            life, truncated = watch.lives[key], bool(batch.truncated[rows].all())
            outcome = reported_outcome(batch, rows)
            if outcome is None:  # a game that a time limit interrupted is a draw, unless the simulator says otherwise
                outcome = Outcome.DRAW if truncated else outcome_by_reward(batch, rows)
            mean = sum(life.returns) / len(life.returns)
            watch.ended[key] = EndedGame(outcome, mean, life.length, truncated)
        if not watch.expected:
            watch.expected = None
        elif watch.expected <= watch.ended.keys():
            games = [watch.ended[key] for key in sorted(watch.expected)]
            self._complete.append((watch.session_id, watch.episode_batch, games))
            del self._watched[staged.agent_index.number]

    def dropped(self, agent_index: AgentIndex) -> None:
        """Forget an episode batch that was broken off."""
        self._watched.pop(agent_index.number, None)

    def _note(
        self,
        watch: _Watch,
        key: Key,
        agents: Agents,
        slots: Slots,
        batch: TerminalBatch,
        rows: npt.NDArray[np.intp],
    ) -> None:
        """Add the returns and lengths of agents that end in some rows to their game."""
        for row in rows.tolist():
            slot = slots[row]
            last = float(batch.rewards[row])
            if batch.group_rewards is not None:
                last += float(batch.group_rewards[row])
            life = watch.lives.setdefault(key, _Life())
            life.returns.append(float(agents.returns[slot] + agents.group_returns[slot]) + last)
            completes = agents.state[slot] == ACTING
            life.length = max(life.length, int(agents.decisions[slot]) + bool(completes))


def _keys(
    agents: npt.NDArray[np.integer],
    groups: npt.NDArray[np.integer] | None,
    rows: npt.NDArray[np.bool_] | slice = slice(None),
) -> list[Key]:
    """Return the game of each agent; `rows` selects their rows of `groups`."""
    if groups is None:
        return [(False, agent) for agent in agents.tolist()]
    pairs = zip(agents.tolist(), groups[rows].tolist(), strict=True)
    return [(True, group) if group else (False, agent) for agent, group in pairs]


@dataclass(slots=True, eq=False)
class EvaluationRunner(PolicyRunner):
    """Agents that are answered by frozen policies."""

    policies: Sequence[Policy] = field(kw_only=True)
    """The candidate, then the champion where there is one."""
    episode_batches: EvaluationEpisodes = field(kw_only=True)
    candidates: dict[int, bool] = field(default_factory=dict)
    """Number of an agent index -> whether the candidate plays it."""

    def sit(
        self, agent_indexes: Mapping[int, AgentIndex], session_id: str, episode_batch: int, team: int | None
    ) -> None:
        """Begin an episode batch of a simulator that was just reset; `team` is the team of the candidate.

        Without a team the candidate plays all of them, with one that no side has the champion does; then the one with
        the lowest number is watched.
        """
        for number, agent_index in agent_indexes.items():
            self.candidates[agent_index.number] = team is None or number == team
        watched = agent_indexes[team if team is not None and team in agent_indexes else min(agent_indexes)]
        self.episode_batches.begin(watched, session_id, episode_batch)

    def _forward(self, batch: Batch, memory: Floats | None) -> Acted:
        which = np.repeat(
            [0 if self.candidates.get(part.agent_index.number, True) else 1 for part in batch.parts],
            [part.rows for part in batch.parts],
        )
        used = np.unique(which)
        if len(used) == 1:
            return self._act_as(int(used[0]), batch, slice(None), memory)
        rows = [np.flatnonzero(which == policy) for policy in used]
        acted = [self._act_as(int(policy), batch, those, memory) for policy, those in zip(used, rows, strict=True)]
        order = np.argsort(np.concatenate(rows))
        columns: list[list[Any]] = [[getattr(each, column.name) for each in acted] for column in fields(Acted)]
        joined: list[Any] = [None if parts[0] is None else np.concatenate(parts)[order] for parts in columns]
        return Acted(*joined)

    def _act_as(self, key: int, batch: Batch, rows: npt.NDArray[np.intp] | slice, memory: Floats | None) -> Acted:
        """Answer some rows by one policy; its memory lies in the first columns of the runner's."""
        policy = self.policies[key]
        before = None if memory is None or not policy.memory_size else memory[rows][:, : policy.memory_size]
        masks = None if batch.masks is None else batch.masks[rows]
        acted = policy.act([part[rows] for part in batch.observations], masks, before, self.rng, None)
        if memory is None:
            return acted
        after = np.zeros_like(memory[rows])
        if acted.memory is not None:
            after[:, : policy.memory_size] = acted.memory
        return replace(acted, memory=after)
