"""A table of all agents of one behavior in one collector, with the running episode and segment of each.

Agents live in *slots*: indices into columns of state, so that a message of many agents is a few numpy operations
whatever their number. Sessions find theirs by an *agent index*.

The life of an agent: idle -> waiting (asked for an action) -> acting (answered) -> waiting -> ... -> idle (episode
ended). A recurrent actor's memory is kept here per agent: zero when an episode begins, and then that which the policy
returned.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ludus.collector.arena import ArenaLayout
from ludus.collector.segments import RECORD_WORDS, SEGMENT_DTYPE
from ludus.protocol.batches import Array, Ints
from ludus.protocol.contract import MAX_AGENTS, decision_pending, too_many_agents
from ludus.protocol.spec import team_of

Slots = npt.NDArray[np.intp]

FREE, IDLE, WAITING, ACTING = range(4)
"""States of a slot: bytes, because a column of bytes is searched and counted in a fraction of numpy's time."""
UNRECORDED = -1
"""The round of steps that are not recorded."""
CACHED_AGENTS = 4_096
"""Agents of all id columns that an agent index remembers."""


class AgentIndex:
    """The agents of one session in one behavior: agent id -> slot."""

    def __init__(self, number: int, simulator: int, behavior: str) -> None:
        self.behavior = behavior
        """As the session announced it."""
        self.team = team_of(behavior)
        self.number = number
        """Unique among the agent indexes of this collector."""
        self.simulator = simulator
        self.staged = False
        """Whether a message of this agent index waits to be absorbed (the batcher's flag)."""
        self.round = -1
        """The round that `releases` and `borrows` are about."""
        self.releases = 0
        """How often outstanding steps of it have been released."""
        self.borrows = False
        """Whether its session was answered in advance because steps of these agents are outstanding, and none was
        released since.
        """
        self.borrows_since: float | None = None
        """When that was first noticed (the process' clock)."""
        self.table: dict[int, int] = {}
        self.cache: dict[bytes, Slots] = {}
        """Slots of whole id columns: most messages name the same agents as one before them."""
        self.former_steps = 0
        """Steps of agents that are forgotten."""
        self.limit = 64
        """Size of the table at which idle agents are forgotten."""
        self.parameter_set = 0
        """Number of the environment parameters that the simulator received last."""

    def enter(self, round_number: int) -> None:
        """Reset the counts of former rounds."""
        if self.round != round_number:
            self.round, self.releases = round_number, 0
            self.borrows, self.borrows_since = False, None

    def note_borrowing(self, round_number: int) -> None:
        """Record that the session is answered in advance because of steps of these agents."""
        self.enter(round_number)
        self.borrows = True

    def note_release(self, round_number: int) -> None:
        """Record that its outstanding steps of the round are released."""
        self.enter(round_number)
        self.releases += 1
        self.borrows, self.borrows_since = False, None

    @property
    def slots(self) -> Slots:
        """The slots of its agents, in the order in which they joined."""
        return np.fromiter(self.table.values(), np.intp, len(self.table))


class Agents:
    """Table of the agents of one behavior. All `slots` arguments hold each slot once."""

    def __init__(self, layout: ArenaLayout, longest: int) -> None:
        """`longest` is how many blocks an open segment can have."""
        self._scratch = layout.scratch_row
        self.free: list[int] = []
        """Free slots; the last one is given away first."""
        self.state = np.zeros(0, np.uint8)
        self.owner = np.zeros(0, np.int64)
        """Number of the agent index."""
        self.memory = np.zeros((0, layout.memory_size), np.float32)
        """The actor's memory before the agent's next step."""
        self.records = np.zeros((0, RECORD_WORDS), np.int32)
        """The open segments, as they will be delivered: `SEGMENT_DTYPE`. Some of its columns are attributes, too."""
        self.row = np.zeros(0, np.int64)
        """Arena row of the newest step of the open segment."""
        self.blocks = np.zeros((0, longest), np.int32)
        """Arena blocks of the open segment, in order."""
        self.returns = np.zeros(0, np.float64)
        self.group_returns = np.zeros(0, np.float64)
        self.decisions = np.zeros(0, np.int32)
        """Steps of the running episode that came back."""
        self.steps = np.zeros(0, np.int64)
        """Steps of the agent's former episodes."""
        self.began = np.zeros(0, np.int64)
        """Policy version that answered the running episode's first decision; -1 = none has yet."""
        self.told = np.zeros(0, np.int32)
        """Number of the environment parameters that the agent's simulator received last."""
        self.parameter_set = np.zeros(0, np.int32)
        """The same when the running episode began."""
        self.new_episodes = 0
        """Episodes that have begun and wait for their first answer, or never got one."""
        self.grouped = False
        """Whether there have been groups."""
        self.grow(64)

    # Slots ------------------------------------------------------------------------------------------------------

    def slots(self, agent_index: AgentIndex, agent_ids: Ints) -> Slots:
        """Return the slots of some agents, making room for those that are new."""
        key = agent_ids.tobytes()
        known = agent_index.cache.get(key)
        if known is not None:
            return known
        ids = agent_ids.tolist()
        table = agent_index.table
        if len(table) + len(ids) > agent_index.limit:
            self._forget_idle(agent_index, set(ids))
        try:
            found = [table[agent] for agent in ids]
        except KeyError:
            found = [table[agent] if agent in table else self._join(agent_index, agent) for agent in ids]
        slots = np.array(found, np.intp)
        if (len(agent_index.cache) + 1) * len(ids) > CACHED_AGENTS:
            agent_index.cache.clear()
        agent_index.cache[key] = slots
        return slots

    def drop(self, agent_index: AgentIndex) -> None:
        """Forget a session's agents."""
        slots = agent_index.slots
        agent_index.former_steps += self.steps_of(slots)
        self.state[slots] = FREE
        self.free.extend(slots.tolist())
        agent_index.table.clear()
        agent_index.cache.clear()

    def _join(self, agent_index: AgentIndex, agent: int) -> int:
        if len(agent_index.table) >= MAX_AGENTS:
            raise too_many_agents()
        if not self.free:
            self.grow(2 * len(self.state))
        slot = self.free.pop()
        agent_index.table[agent] = slot
        self.state[slot] = IDLE
        self.owner[slot] = agent_index.number
        self.simulator[slot] = agent_index.simulator
        self.agent[slot] = agent
        self.episode[slot] = -1
        self.decisions[slot] = 0
        self.length[slot] = 0
        self.row[slot] = self._scratch
        self.round[slot] = UNRECORDED
        self.group[slot] = 0
        self.steps[slot] = 0
        self.told[slot] = agent_index.parameter_set
        return slot

    def _forget_idle(self, agent_index: AgentIndex, keep: set[int]) -> None:
        """Give the slots of idle agents back: some games never use an id twice."""
        idle = [agent for agent, slot in agent_index.table.items() if self.state[slot] == IDLE and agent not in keep]
        for agent in idle:
            slot = agent_index.table.pop(agent)
            agent_index.former_steps += int(self.steps[slot])  # its decisions are in there
            self.state[slot] = FREE
            self.free.append(slot)
        agent_index.cache.clear()
        agent_index.limit = max(64, 2 * (len(agent_index.table) + len(keep)))

    def grow(self, size: int) -> None:
        """Make room for `size` agents."""
        added = size - len(self.state)
        self.free.extend(range(size - 1, size - added - 1, -1))
        for name in (
            *("state", "owner", "records", "row", "blocks"),
            *("returns", "group_returns", "decisions", "steps", "began", "memory"),
            *("told", "parameter_set"),
        ):
            column: Array = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros((added, *column.shape[1:]), column.dtype)]))
        self.simulator, self.agent, self.group = self.records.T[:3]
        self.episode, self.sequence = self.records.T[3:5]
        self.length, self.round = self.records.T[5:7]
        """Steps of the open segment (0 = none is open); its round, which is also that of the step that is out."""
        self.tick = self.records.view(SEGMENT_DTYPE)["successor_tick"][:, 0]
        """Number of the newest message that named the agent: the successor's, whenever a segment ends."""

    # Queries -----------------------------------------------------------------------------------------------------

    def check_decisions(self, slots: Slots, ended: Slots | None) -> None:
        """Raise ProtocolError(decision_pending) if one of them waits already, and does not end in the same message."""
        if WAITING not in self.state[slots].tobytes():
            return
        waiting = slots[self.state[slots] == WAITING]
        pending = waiting if ended is None else np.setdiff1d(waiting, ended)
        if len(pending):
            raise decision_pending(int(self.agent[pending[0]]))

    def steps_of(self, slots: Slots) -> int:
        """Count the steps that came back from some agents since they joined."""
        return int(self.steps[slots].sum() + self.decisions[slots].sum())

    def running(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return which of some agents are in an episode."""
        states = self.state[slots]
        in_episode: npt.NDArray[np.bool_] = (states == WAITING) | (states == ACTING)
        return in_episode

    def acted(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return which of some agents are in an episode in which they have been answered."""
        answered: npt.NDArray[np.bool_] = (self.state[slots] == ACTING) | (self.decisions[slots] > 0)
        return self.running(slots) & answered

    def acting(self, agent_indexes: Sequence[AgentIndex], round_number: int | None = None) -> Slots:
        """Return the agents of some sessions that are answered and not back: all, or those of one round."""
        out = self.state == ACTING
        if round_number is not None:
            out &= self.round == round_number
        return np.flatnonzero(out & np.isin(self.owner, [agent_index.number for agent_index in agent_indexes]))

    def owing(self, round_number: int) -> frozenset[int]:
        """Return the numbers of the agent indexes whose steps of this round are out."""
        return frozenset(self.owner[(self.state == ACTING) & (self.round == round_number)].tolist())

    def is_at_rest(self, agent_index: AgentIndex) -> bool:
        """Whether no agent of a session is out, and some wait."""
        states = self.state[agent_index.slots]
        return ACTING not in states and WAITING in states

    # Episodes ---------------------------------------------------------------------------------------------------

    def begin(self, slots: Slots) -> None:
        """Begin an episode for each."""
        self.episode[slots] += 1
        self.sequence[slots] = 0
        self.memory[slots] = 0.0
        self.returns[slots] = 0.0
        self.group_returns[slots] = 0.0
        self.decisions[slots] = 0
        self.began[slots] = -1
        self.parameter_set[slots] = self.told[slots]
        self.new_episodes += len(slots)

    def note_starts(self, slots: Slots, version: int) -> None:
        """Record the policy version of agents that are answered for the first time in their episode."""
        new_episodes = slots[self.began[slots] < 0]
        self.began[new_episodes] = version
        self.new_episodes -= len(new_episodes)

    def tell(self, agent_index: AgentIndex, parameter_set: int) -> None:
        """Record that a simulator has received other parameters: its later episodes begin with them."""
        agent_index.parameter_set = parameter_set
        self.told[agent_index.slots] = parameter_set

    def began_under(self, agent_index: AgentIndex, agent_ids: Ints) -> int | None:
        """Return the oldest parameters under which one of some agents' running episodes began; None if none runs."""
        slots = [agent_index.table[agent] for agent in agent_ids.tolist() if agent in agent_index.table]
        running = [slot for slot in slots if self.state[slot] in {WAITING, ACTING}]
        return min(self.parameter_set[running].tolist(), default=None)

    # Groups -----------------------------------------------------------------------------------------------------

    def note_groups(self, slots: Slots, group_ids: Ints | None) -> None:
        """Record the groups of some agents; None: they are in none."""
        if group_ids is not None:
            self.grouped = True
            self.group[slots] = group_ids
        elif self.grouped:
            self.group[slots] = 0

    def have_mates(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether another agent of the same group and session is in an episode. Those that end are idle by now."""
        team = self.owner << 32 | self.group  # one number for each group of each session
        alive = (self.state == WAITING) | (self.state == ACTING)
        teams = np.sort(team[alive])
        own = team[slots]
        # In the sorted teams all members of one team are neighbors: the difference of both ends counts them.
        members = np.searchsorted(teams, own, "right") - np.searchsorted(teams, own)
        # An agent that is alive is one of the members itself; group 0 stands for no group.
        living: npt.NDArray[np.bool_] = (members > alive[slots]) & (self.group[slots] != 0)
        return living

    def plays_on(self, agent_index: AgentIndex, group: int, ending: Slots) -> bool:
        """Whether others of a session's group than those that end are in an episode."""
        mates = np.setdiff1d(agent_index.slots, ending)
        return bool((self.running(mates) & (self.group[mates] == group)).any())
