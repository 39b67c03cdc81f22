"""Matches: how the games of a team that learns end, and against which opponents.

A match is the time of one group in the game, from the first of its members' episodes to the end of the last one; for
agents without a group it is one episode. Its outcome is the one that the simulator reports, or else, as in ML-Agents,
the sign of the last reward plus the last group reward (of several members that end in the last message: of their mean).

Whether the opponents were the same all along is decided by the numbers of the session's messages, since runners take
their turns apart: a change in the message that ends a match belongs to the next one.
"""

import numpy as np
import numpy.typing as npt

from ludus.collector.agent_queue import Staged
from ludus.collector.agents import AgentIndex, Agents
from ludus.collector.messages import EndedMatch
from ludus.collector.opponents import NO_POLICY, OpponentRunner
from ludus.collector.rows import outcome_by_reward, reported_outcome


class MatchRecorder:
    """Records the matches of one runner, as its observer."""

    def __init__(self) -> None:
        self._began = np.zeros(0, np.int64)
        """By slot: the message in which the running episode began."""
        self._groups: dict[tuple[int, int], int] = {}
        """(agent index, group) -> the message in which its match began."""
        self._matches: list[EndedMatch] = []

    def take(self) -> list[EndedMatch]:
        """Return the matches that ended since the last call, in order."""
        matches, self._matches = self._matches, []
        return matches

    # The observer -----------------------------------------------------------------------------------------------

    def beginning(self, agents: Agents, staged: Staged) -> None:
        """Record when episodes begin."""
        slots, batch = staged.decisions, staged.batch.decisions
        if slots is None or batch is None:
            return
        fresh = ~agents.running(slots)
        if not fresh.any():
            return
        if len(self._began) < len(agents.state):
            self._began = np.concatenate([self._began, np.zeros(len(agents.state) - len(self._began), np.int64)])
        self._began[slots[fresh]] = staged.step_id
        if batch.group_ids is not None:
            for group in np.unique(batch.group_ids[fresh]).tolist():
                self._groups.setdefault((staged.agent_index.number, group), staged.step_id)

    def ending(self, agents: Agents, staged: Staged) -> None:
        """Judge the matches that end with these episodes."""
        slots, batch = staged.terminals, staged.batch.terminals
        if slots is None or batch is None:
            return
        lived = agents.acted(slots)
        groups = np.zeros(len(slots), np.int32) if batch.group_ids is None else batch.group_ids
        for row in np.flatnonzero(lived & (groups == 0)).tolist():
            self._record_match(staged, int(self._began[slots[row]]), np.array([row]))
        for group in np.unique(groups[lived & (groups != 0)]).tolist():
            if not agents.plays_on(staged.agent_index, group, slots):
                began = self._groups.pop(
                    (staged.agent_index.number, group), int(self._began[slots[groups == group]].min())
                )
                self._record_match(staged, began, np.flatnonzero(lived & (groups == group)))

    def dropped(self, agent_index: AgentIndex) -> None:
        """Forget the matches of a session's agents."""
        self._groups = {key: began for key, began in self._groups.items() if key[0] != agent_index.number}

    def _record_match(self, staged: Staged, began: int, rows: npt.NDArray[np.intp]) -> None:
        """Record a match that ends with some rows of a message."""
        batch = staged.batch.terminals
        assert batch is not None
        opponents: list[tuple[str, int, int]] = []
        settled = True
        for runner, agent_index in staged.member.agent_indexes.values():
            if not isinstance(runner, OpponentRunner):
                continue
            history = runner.opponents.history(agent_index)
            key = history.during(began, staged.step_id)
            settled = settled and key is not None
            if key is None:
                key = history.newest_policy
            if key != NO_POLICY:
                opponents.append((runner.behavior, agent_index.team, key))
        outcome = reported_outcome(batch, rows) or outcome_by_reward(batch, rows)
        self._matches.append(
            EndedMatch(
                simulator=staged.agent_index.simulator,
                team=staged.agent_index.team,
                outcome=outcome,
                truncated=bool(batch.truncated[rows].all()),
                settled=settled and bool(opponents),
                opponents=tuple(opponents),
            )
        )
