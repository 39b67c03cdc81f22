"""Tracker: every agent of one behavior in one collector, and the segments that are open.

Agents live in *slots*: indices into arrays of state, so that a message of many agents is a few numpy operations
whatever their number. Observations, actions and rewards go straight into the arena's columns; a segment that ends is a
record and its block ids, nothing is copied.

The life of an agent: idle -> waiting (asked for an action) -> acting (answered) -> waiting -> ... -> idle (episode
ended). A step is written when it is answered, and complete when the agent comes back with its reward.

Messages are numbered by *ticks*, across all simulators of the lane. A recurrent actor's memory is kept here per agent:
zero when an episode begins, written with each step as it was before it, and then that which the policy returned,
whether the step is recorded or not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ludus.spec import team_of
from ludus.wire.batches import Array, Bytes, DecisionBatch, Floats, Ints, TerminalBatch
from ludus.wire.codec import CloseCode, ProtocolError
from worker.collector.answers import name_field
from worker.collector.messages import EPISODE_DTYPE
from worker.collector.rounds import Rounds
from worker.experience.arena import Arena
from worker.experience.segments import RECORD_WORDS, SEGMENT_DTYPE, Ending, pack_segments
from worker.networks.policy import Acted

Slots = npt.NDArray[np.intp]
Ticks = int | npt.NDArray[np.int64]

FREE, IDLE, WAITING, ACTING = range(4)
"""States of a slot: bytes, because a column of bytes is searched and counted in a fraction of numpy's time."""
UNRECORDED = -1
"""The round of steps that are not recorded."""
MAX_AGENTS = 10_000
"""Agents of one behavior in one session."""
CACHED_AGENTS = 4_096
"""Agents of all id columns that a roster remembers."""
LENGTH, ENDING, BLOCKS, MATES_ALIVE = (
    (SEGMENT_DTYPE.names or ()).index(name) for name in ("length", "ending", "blocks", "mates_alive")
)
"""Words of a record; all that lies before the tick takes one each."""
KEPT = ("state", "memory", "returns", "group_returns", "decisions", "steps", "began", "told", "parameter_set")
"""What is handed over of an agent beside its record and the steps of its open segment."""


class Roster:
    """The agents of one session in one behavior: agent id -> slot."""

    def __init__(self, number: int, simulator: int, behavior: str) -> None:
        self.behavior = behavior
        """As the session announced it."""
        self.team = team_of(behavior)
        self.name = name_field(behavior)
        """The same as it stands in native answers."""
        self.number = number
        """Unique among the rosters of this collector."""
        self.simulator = simulator
        self.staged = False
        """Whether a message of this roster waits to be absorbed (the batcher's flag)."""
        self.released = -1
        """The round in which its outstanding steps were last released."""
        self.borrowing = -1
        """The round in which it was last answered only because it owed steps."""
        self.borrowing_since: tuple[int, float] = (-1, 0.0)
        """A round, and when it was first seen to borrow in it (the process' clock)."""
        self.table: dict[int, int] = {}
        self.cache: dict[bytes, Slots] = {}
        """Slots of whole id columns: most messages name the same agents as one before them."""
        self.former_steps = 0
        """Steps of agents that are forgotten."""
        self.limit = 64
        """Size of the table at which idle agents are forgotten."""
        self.parameter_set = 0
        """Number of the environment parameters that the simulator was last told."""


class Tracker:
    """See the module's text. All `slots` arguments hold each slot once."""

    def __init__(self, arena: Arena, time_horizon: int, rounds: Rounds) -> None:
        layout = arena.layout
        self.arena = arena
        self.rounds = rounds
        self.blocks: list[int] = []
        """Free arena blocks; the last one is used first."""
        self._rows = layout.rows
        self._stride = layout.stride
        self._scratch = layout.scratch_row
        self._longest = 0
        """No open segment is longer than this."""
        self._open_round: int | None = None
        """The round of all open segments; None when they may differ."""
        self._horizon = time_horizon
        self._columns = arena.observations
        self._free: list[int] = []
        self._size = 0
        self._segments: list[tuple[Ints, Ints]] = []
        self._episodes: list[tuple[Array, ...]] = []
        self.segments_waiting = 0
        """Segments that `take_segments` would return."""
        self._grouped = False
        self._block_index = np.arange(-(-time_horizon // layout.rows))
        self.state = np.zeros(0, np.uint8)
        self.owner = np.zeros(0, np.int64)
        """Number of the roster."""
        self.memory = np.zeros((0, layout.memory_size), np.float32)
        """The actor's memory before the agent's next step."""
        self._records = np.zeros((0, RECORD_WORDS), np.int32)
        """The open segments, as they will be delivered: `SEGMENT_DTYPE`. The next columns are views of it."""
        self.row = np.zeros(0, np.int64)
        """Arena row of the newest step of the open segment."""
        self.returns = np.zeros(0, np.float64)
        self.group_returns = np.zeros(0, np.float64)
        self.decisions = np.zeros(0, np.int32)
        """Steps of the running episode that came back."""
        self.steps = np.zeros(0, np.int64)
        """Steps of the agent's former episodes."""
        self.began = np.zeros(0, np.int64)
        """Policy version that answered the running episode's first decision; -1 = none has yet."""
        self.told = np.zeros(0, np.int32)
        """Number of the environment parameters that the agent's simulator was last told."""
        self.parameter_set = np.zeros(0, np.int32)
        """The same when the running episode began."""
        self._newborn = 0
        """Episodes that have begun and wait for their first answer, or never got one."""
        self.segment_blocks = np.zeros((0, len(self._block_index)), np.int32)
        self._grow(64)

    # Slots ------------------------------------------------------------------------------------------------------

    def slots(self, roster: Roster, agent_ids: Ints) -> Slots:
        """Return the slots of some agents, making room for those that are new."""
        key = agent_ids.tobytes()
        known = roster.cache.get(key)
        if known is not None:
            return known
        ids = agent_ids.tolist()
        table = roster.table
        if len(table) + len(ids) > roster.limit:
            self._forget_idle(roster, set(ids))
        try:
            found = [table[agent] for agent in ids]
        except KeyError:
            found = [table[agent] if agent in table else self._join(roster, agent) for agent in ids]
        slots = np.array(found, np.intp)
        if (len(roster.cache) + 1) * len(ids) > CACHED_AGENTS:
            roster.cache.clear()
        roster.cache[key] = slots
        return slots

    def _join(self, roster: Roster, agent: int) -> int:
        if len(roster.table) >= MAX_AGENTS:
            raise ProtocolError(CloseCode.TOO_MANY_AGENTS, f"more than {MAX_AGENTS} agents of one behavior")
        if not self._free:
            self._grow(2 * self._size)
        slot = self._free.pop()
        roster.table[agent] = slot
        self.state[slot] = IDLE
        self.owner[slot] = roster.number
        self.simulator[slot] = roster.simulator
        self.agent[slot] = agent
        self.episode[slot] = -1
        self.decisions[slot] = 0
        self.length[slot] = 0
        self.row[slot] = self._scratch
        self.round[slot] = UNRECORDED
        self.group[slot] = 0
        self.steps[slot] = 0
        self.told[slot] = roster.parameter_set
        return slot

    def _forget_idle(self, roster: Roster, keep: set[int]) -> None:
        """Give the slots of idle agents back: some games never use an id twice."""
        idle = [agent for agent, slot in roster.table.items() if self.state[slot] == IDLE and agent not in keep]
        for agent in idle:
            slot = roster.table.pop(agent)
            roster.former_steps += int(self.steps[slot])  # its decisions are in there
            self.state[slot] = FREE
            self._free.append(slot)
        roster.cache.clear()
        roster.limit = max(64, 2 * (len(roster.table) + len(keep)))

    def _grow(self, size: int) -> None:
        def wider(column: Array) -> Array:
            added = np.zeros((size - self._size, *column.shape[1:]), column.dtype)
            return np.concatenate([column, added])

        self._free.extend(range(size - 1, self._size - 1, -1))
        for name in (
            *("state", "owner", "row", "_records"),
            *("returns", "group_returns", "decisions", "steps", "began", "segment_blocks", "memory"),
            *("told", "parameter_set"),
        ):
            setattr(self, name, wider(getattr(self, name)))
        self.simulator, self.agent, self.group = self._records.T[:3]
        self.episode, self.sequence = self._records.T[3:5]
        self.length, self.round = self._records.T[5:7]
        """Steps of the open segment (0 = none is open); its round, which is also that of the step that is out."""
        self.tick = self._records.view(SEGMENT_DTYPE)["successor_tick"][:, 0]
        """Number of the newest message that named the agent: the successor's, whenever a segment ends."""
        self._size = size

    # Environment parameters -------------------------------------------------------------------------------------

    def tell(self, roster: Roster, parameter_set: int) -> None:
        """Take note that a simulator was told other parameters: its episodes that begin from now on begin with them."""
        roster.parameter_set = parameter_set
        self.told[np.fromiter(roster.table.values(), np.intp, len(roster.table))] = parameter_set

    def began_under(self, roster: Roster, agent_ids: Ints) -> int | None:
        """Return the oldest parameters under which one of some agents' running episodes began; None if none runs."""
        slots = [roster.table[agent] for agent in agent_ids.tolist() if agent in roster.table]
        running = [slot for slot in slots if self.state[slot] in {WAITING, ACTING}]
        return min(self.parameter_set[running].tolist(), default=None)

    # Messages ---------------------------------------------------------------------------------------------------

    def check_decisions(self, slots: Slots, ended: Slots | None) -> None:
        """Raise ProtocolError(decision_pending) if one of them waits already, and does not end in the same message."""
        if WAITING not in self.state[slots].tobytes():
            return
        waiting = slots[self.state[slots] == WAITING]
        pending = waiting if ended is None else np.setdiff1d(waiting, ended)
        if len(pending):
            agent = self.agent[pending[0]]
            raise ProtocolError(
                CloseCode.DECISION_PENDING, f"agent {agent} asks for a decision while its last one is unanswered"
            )

    def wait(self, slots: Slots, batch: DecisionBatch, ticks: Ticks) -> None:
        """Take decision steps in: complete the steps that were out, begin episodes, and cut full segments.

        `ticks` are the numbers of the messages that the rows came with, or that of the one message.
        """
        back, rewards, group_rewards, observations = slots, batch.rewards, batch.group_rewards, batch.observations
        if self.state[slots].tobytes().count(ACTING) < len(slots):
            returning = self.state[slots] == ACTING
            self._begin(slots[~returning])
            back, rewards = slots[returning], rewards[returning]
            observations = tuple([values[returning] for values in observations])
            group_rewards = group_rewards[returning] if group_rewards is not None else None
        self.state[slots] = WAITING
        self.tick[slots] = ticks
        self._note_groups(slots, batch.group_ids)
        if len(back):
            self._complete(back, rewards, group_rewards)
            if self._longest >= self._horizon:
                self._cut_full(back, observations)

    def end(self, slots: Slots, batch: TerminalBatch, ticks: Ticks) -> Slots:
        """Take terminal steps in. Returns the slots whose pending decision is void now."""
        self.tick[slots] = ticks
        states = self.state[slots].tobytes()
        void: Slots = slots[:0]
        if states.count(ACTING) == len(slots):
            self._note_groups(slots, batch.group_ids)
            self._complete(slots, batch.rewards, batch.group_rewards)
        else:
            acting, waiting = self.state[slots] == ACTING, self.state[slots] == WAITING
            running = acting | waiting  # the end of an agent without an episode is ignored
            self._complete(slots[acting], batch.rewards[acting], _select(batch.group_rewards, acting))
            void = np.asarray(slots[waiting], np.intp)
            self._reward_more(void, _select_terminals(batch, waiting))
            slots, batch = slots[running], _select_terminals(batch, running)
            if not len(slots):
                return void
            self._note_groups(slots, batch.group_ids)
        self.state[slots] = IDLE
        recorded = self.length[slots] > 0
        endings = batch.truncated + np.int32(Ending.TERMINATED)  # TRUNCATED is the number after it
        if recorded.all():
            self._close(slots, batch.observations, endings)
        elif recorded.any():
            self._close(slots[recorded], [values[recorded] for values in batch.observations], endings[recorded])
        self._note_episodes(slots, batch)
        return void

    def answer(
        self,
        slots: Slots,
        observations: Sequence[Array],
        masks: Bytes | None,
        acted: Acted,
        version: int,
        round_number: int | Ints,
    ) -> None:
        """Write the steps that waiting agents were just answered with. There must be a free block for each slot."""
        if isinstance(round_number, np.ndarray) or round_number != self._open_round:
            self._cut_stale(slots, observations, round_number)
        length = self.length[slots]
        within = length % self._rows
        if np.count_nonzero(within) < len(slots):
            fresh = within == 0
            self._open_blocks(slots[fresh], length[fresh])
        rows = self.row[slots] + 1
        arena = self.arena
        for column, values in zip(self._columns, observations, strict=True):
            column[rows] = values
        if acted.continuous_sample.shape[1]:
            arena.continuous[rows] = acted.continuous_sample
        if acted.discrete.shape[1]:
            arena.discrete[rows] = acted.discrete
            arena.action_masks[rows] = 1 if masks is None else masks
        arena.log_probs[rows] = acted.log_probs
        arena.versions[rows] = version
        arena.ticks[rows] = self.tick[slots]
        if acted.memory is not None:
            arena.memories[rows] = self.memory[slots]
            self.memory[slots] = acted.memory
        if self._newborn:
            self._note_births(slots, version)
        self.row[slots] = rows
        self.length[slots] = length + 1
        self.round[slots] = round_number
        self.state[slots] = ACTING
        self._longest += 1

    def answer_unrecorded(self, slots: Slots, acted: Acted, version: int) -> None:
        """Note agents that were answered without recording."""
        if acted.memory is not None:
            self.memory[slots] = acted.memory
        if self._newborn:
            self._note_births(slots, version)
        self.row[slots] = self._scratch
        self.length[slots] = 0
        self.round[slots] = UNRECORDED
        self.state[slots] = ACTING

    def cut(self, slots: Slots, observations: Sequence[Array]) -> None:
        """Cut the open segments of waiting agents; `observations` are those that they wait with."""
        opened = self.length[slots] > 0
        if opened.all():
            self._close(slots, observations, Ending.CUT)
        elif opened.any():
            self._close(slots[opened], [values[opened] for values in observations], Ending.CUT)

    def drop(self, roster: Roster) -> None:
        """Forget a session's agents, with their open segments; what was answered in those is refunded to its round."""
        slots = np.fromiter(roster.table.values(), np.intp, len(roster.table))
        for number in np.unique(self.round[slots]).tolist():
            if number != UNRECORDED:
                those = slots[self.round[slots] == number]
                self.rounds.returned(number, int((self.state[those] == ACTING).sum()))
                self.rounds.refund(number, int(self.length[those].sum()))
        self._discard(slots)
        roster.former_steps += self.steps_of(slots)
        self.state[slots] = FREE
        self._free.extend(slots.tolist())
        roster.table.clear()
        roster.cache.clear()

    def stop_recording(self) -> None:
        """Discard every open segment."""
        slots = np.flatnonzero(self.state != FREE)
        self._discard(slots)
        self.round[slots] = UNRECORDED

    def steps_of(self, slots: Slots) -> int:
        """Count the steps that came back from some agents since they joined."""
        return int(self.steps[slots].sum() + self.decisions[slots].sum())

    def running(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return which of some agents are in an episode."""
        states = self.state[slots]
        in_episode: npt.NDArray[np.bool_] = (states == WAITING) | (states == ACTING)
        return in_episode

    # Rounds -----------------------------------------------------------------------------------------------------

    def acting(self, rosters: Sequence[Roster], round_number: int | None = None) -> Slots:
        """Return the agents of some sessions that are answered and not back: all, or those of one round."""
        out = self.state == ACTING
        if round_number is not None:
            out &= self.round == round_number
        return np.flatnonzero(out & np.isin(self.owner, [roster.number for roster in rosters]))

    def owing(self, round_number: int) -> frozenset[int]:
        """Return the numbers of the rosters whose steps of this round are out."""
        return frozenset(self.owner[(self.state == ACTING) & (self.round == round_number)].tolist())

    def release(self, slots: Slots) -> None:
        """Move the steps that are out from the current round to later ones (see `Rounds.release`)."""
        numbers = [number for number, count in self.rounds.release(len(slots)) for _ in range(count)]
        for slot, later in zip(slots.tolist(), numbers, strict=True):
            if self.length[slot] > 1:
                self._split(slot)
            self.round[slot] = later
        self._open_round = None

    def _split(self, slot: int) -> None:
        """Cut a segment before its newest step, which becomes the first one of a segment of its own."""
        one = np.array([slot], np.intp)
        row, length = int(self.row[slot]), int(self.length[slot])
        last_block, within = divmod(length - 1, self._rows)
        own_block = within == 0
        block = int(self.segment_blocks[slot, last_block]) if own_block else self.blocks.pop()
        new_row = block * self._stride
        if not own_block:
            for column in self.arena.columns:
                column[new_row] = column[row]
            previous = row - 1
        else:
            previous = int(self.segment_blocks[slot, last_block - 1]) * self._stride + self._rows - 1
        self.length[slot] = length - 1
        self.row[slot] = previous
        # The observation of the step that is out is what followed the steps before it.
        self._close(one, [column[new_row : new_row + 1].copy() for column in self._columns], Ending.CUT)
        self.segment_blocks[slot, 0] = block
        self.row[slot] = new_row
        self.length[slot] = 1

    # What leaves ------------------------------------------------------------------------------------------------

    def take_segments(self) -> bytes | None:
        """Return the closed segments, packed, and forget them."""
        if not self._segments:
            return None
        records = np.concatenate([records for records, _ in self._segments]).view(SEGMENT_DTYPE)[:, 0]
        blocks = np.concatenate([blocks for _, blocks in self._segments])
        self._segments.clear()
        self.segments_waiting = 0
        return pack_segments(records, blocks)

    def take_episodes(self) -> bytes | None:
        """Return the episodes that ended, packed, and forget them."""
        if not self._episodes:
            return None
        columns = [np.concatenate(parts) for parts in zip(*self._episodes, strict=True)]
        self._episodes.clear()
        records = np.empty(len(columns[0]), EPISODE_DTYPE)
        for name, column in zip(EPISODE_DTYPE.names or (), columns, strict=True):
            records[name] = column
        return records.tobytes()

    # Handing over -----------------------------------------------------------------------------------------------

    def is_at_rest(self, roster: Roster) -> bool:
        """Whether no agent of a session is out, and some wait."""
        states = self.state[np.fromiter(roster.table.values(), np.intp, len(roster.table))]
        return ACTING not in states and WAITING in states

    @property
    def places(self) -> list[int]:
        """The slots in the order in which agents get them, last one first; those of present agents are the first."""
        taken = np.flatnonzero(self.state != FREE).tolist()
        return [*taken, *self._free]

    def restore_places(self, places: Sequence[int]) -> None:
        """Give slots away in this order from now on. Only before anybody has one."""
        if len(places) > self._size:
            self._grow(len(places))
        self._free = list(places)

    def keep(self, roster: Roster) -> dict[str, Any]:
        """Return a session's agents, none of which is out, and the steps of their open segments, as copies."""
        slots = np.fromiter(roster.table.values(), np.intp, len(roster.table))
        return {
            "limit": roster.limit,
            "former_steps": roster.former_steps,
            "slots": slots.astype(np.int64),
            "records": self._records[slots],
            **{name: getattr(self, name)[slots] for name in KEPT},
            "steps_of_segments": [column[self._rows_of_open(slots)] for column in self.arena.columns],
        }

    @staticmethod
    def waiting_of(kept: Mapping[str, Any]) -> set[int]:
        """Return which agents waited when they were kept."""
        ids: set[int] = set(kept["records"][kept["state"] == WAITING, 1].tolist())
        return ids

    def blocks_of(self, kept: Mapping[str, Any]) -> int:
        """Return how many blocks `take_over` needs."""
        return int((-(-kept["records"][:, LENGTH] // self._rows)).sum())

    def take_over(self, roster: Roster, kept: Mapping[str, Any]) -> None:
        """Let a session's agents go on that `keep` returned in a former attempt.

        Open segments whose round is over or has no room for them any more, and those that are longer than a segment
        may be now, are dropped; their episodes go on.
        """
        slots = self._own_places(kept["slots"].tolist())
        roster.limit, roster.former_steps = kept["limit"], kept["former_steps"]
        self._records[slots] = kept["records"]
        for name in KEPT:
            getattr(self, name)[slots] = kept[name]
        self.owner[slots], self.simulator[slots] = roster.number, roster.simulator
        self.row[slots] = self._scratch
        roster.table = dict(zip(self.agent[slots].tolist(), slots.tolist(), strict=True))
        self._newborn += int(((self.began[slots] < 0) & (self.state[slots] == WAITING)).sum())
        self._grouped |= bool(self.group[slots].any())
        self._open_round = None
        begin = 0
        for slot, length, number in zip(slots.tolist(), *kept["records"][:, 5:7].T.tolist(), strict=True):
            if 0 < length <= self._horizon and self.rounds.take_over(number, length):
                self._write_open(slot, length, [column[begin:] for column in kept["steps_of_segments"]])
            else:
                self.length[slot] = 0
            begin += length
        self._longest = max(self._longest, int(self.length.max()))

    def _own_places(self, wanted: Sequence[int]) -> Slots:
        """Take the slots that agents had, as far as they are free; else others."""
        free = set(self._free)
        if free.issuperset(wanted):
            mine = set(wanted)
            self._free = [slot for slot in self._free if slot not in mine]
            return np.array(wanted, np.intp)
        while len(self._free) < len(wanted):
            self._grow(2 * self._size)
        return np.array([self._free.pop() for _ in wanted], np.intp)

    def _rows_of_open(self, slots: Slots) -> npt.NDArray[np.int64]:
        """Return the arena rows of the open segments of some agents, segment by segment."""
        rows = [np.zeros(0, np.int64)]
        for slot in slots.tolist():
            steps = np.arange(int(self.length[slot]))
            rows.append(self.segment_blocks[slot, steps // self._rows] * self._stride + steps % self._rows)
        return np.concatenate(rows)

    def _write_open(self, slot: int, length: int, columns: Sequence[Array]) -> None:
        """Open a segment that consists of the first rows of some columns."""
        used = -(-length // self._rows)
        self.segment_blocks[slot, :used] = [self.blocks.pop() for _ in range(used)]
        rows = self._rows_of_open(np.array([slot], np.intp))
        for column, values in zip(self.arena.columns, columns, strict=True):
            column[rows] = values[:length]
        self.row[slot] = rows[-1]

    # Parts ------------------------------------------------------------------------------------------------------

    def _begin(self, slots: Slots) -> None:
        self.episode[slots] += 1
        self.sequence[slots] = 0
        self.memory[slots] = 0.0
        self.returns[slots] = 0.0
        self.group_returns[slots] = 0.0
        self.decisions[slots] = 0
        self.began[slots] = -1
        self.parameter_set[slots] = self.told[slots]
        self._newborn += len(slots)

    def _note_births(self, slots: Slots, version: int) -> None:
        newborn = slots[self.began[slots] < 0]
        self.began[newborn] = version
        self._newborn -= len(newborn)

    def _complete(self, slots: Slots, rewards: Floats, group_rewards: Floats | None) -> None:
        """Note the rewards of steps that came back."""
        rows = self.row[slots]
        self.arena.rewards[rows] = rewards
        self.returns[slots] += rewards
        if group_rewards is None:
            self.arena.group_rewards[rows] = 0.0
        else:
            self.arena.group_rewards[rows] = group_rewards
            self.group_returns[slots] += group_rewards
        self.decisions[slots] += 1
        rounds = self.round[slots].tolist()
        for number in set(rounds):
            if number != UNRECORDED:
                self.rounds.returned(number, rounds.count(number))

    def _reward_more(self, slots: Slots, batch: TerminalBatch) -> None:
        """Add rewards to the last complete steps of agents that ended while they waited.

        Where that step's segment was cut and delivered already, the reward only counts in the episode's return.
        """
        self.returns[slots] += batch.rewards
        opened = self.length[slots] > 0
        rows = self.row[slots[opened]]
        np.add.at(self.arena.rewards, rows, batch.rewards[opened])
        if batch.group_rewards is not None:
            self.group_returns[slots] += batch.group_rewards
            np.add.at(self.arena.group_rewards, rows, batch.group_rewards[opened])

    def _cut_full(self, slots: Slots, observations: Sequence[Array]) -> None:
        """Cut the segments that have reached the horizon; `slots` wait with these observations."""
        full = self.length[slots] >= self._horizon
        if full.any():
            self._close(slots[full], [values[full] for values in observations], Ending.CUT)
        self._longest = int(self.length.max())

    def _cut_stale(self, slots: Slots, observations: Sequence[Array], round_number: int | Ints) -> None:
        """Cut the segments of another round than the one that the next step belongs to."""
        stale = (self.round[slots] != round_number) & (self.length[slots] > 0)
        if stale.any():
            self._close(slots[stale], [values[stale] for values in observations], Ending.CUT)
        if isinstance(round_number, int):
            others = (self.round != round_number) & (self.length > 0)
            self._open_round = None if others.any() else round_number
        else:
            self._open_round = None

    def _note_groups(self, slots: Slots, group_ids: Ints | None) -> None:
        if group_ids is not None:
            self._grouped = True
            self.group[slots] = group_ids
        elif self._grouped:
            self.group[slots] = 0

    def _note_episodes(self, slots: Slots, batch: TerminalBatch) -> None:
        decisions = self.decisions[slots]
        if np.count_nonzero(decisions) < len(slots):  # ended before the first step was complete: not an episode
            lived = decisions > 0
            slots, decisions, batch = slots[lived], decisions[lived], _select_terminals(batch, lived)
        outcomes = np.zeros(len(slots), np.uint8) if batch.outcomes is None else batch.outcomes
        identity = self._records[slots, :2].T
        self._episodes.append(
            (
                *(self.returns[slots], self.group_returns[slots], decisions),
                *(*identity, self.began[slots], batch.truncated, outcomes, self.parameter_set[slots]),
                np.full(len(slots), self.segments_waiting, np.int32),
            )
        )
        self.steps[slots] += decisions
        self.decisions[slots] = 0

    def _open_blocks(self, slots: Slots, lengths: Ints) -> None:
        count = len(slots)
        blocks = np.array(self.blocks[-count:], np.int64)
        assert len(blocks) == count, "the batcher answers no more than there are blocks"
        del self.blocks[-count:]
        self.segment_blocks[slots, lengths // self._rows] = blocks
        self.row[slots] = blocks * self._stride - 1

    def _close(self, slots: Slots, successors: Sequence[Array], ending: Ending | npt.NDArray[np.integer]) -> None:
        """End open segments, given the observations that followed them."""
        rows = self.row[slots] + 1
        for column, values in zip(self._columns, successors, strict=True):
            column[rows] = values
        records = self._records[slots]
        records[:, ENDING] = ending
        if self._grouped:
            records[:, MATES_ALIVE] = self._mates_alive(slots)
        if len(self._block_index) == 1:
            records[:, BLOCKS] = 1
            blocks = self.segment_blocks[slots, 0]
        else:
            used = -(-records[:, LENGTH] // self._rows)
            records[:, BLOCKS] = used
            blocks = self.segment_blocks[slots][self._block_index < used[:, None]]
        self._segments.append((records, blocks))
        self.segments_waiting += len(slots)
        self.sequence[slots] += 1
        self.length[slots] = 0
        self.row[slots] = self._scratch

    def _mates_alive(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether another agent of the same group and session is in an episode. Those that end are idle by now."""
        team = self.owner << 32 | self.group
        alive = (self.state == WAITING) | (self.state == ACTING)
        teams = np.sort(team[alive])
        own = team[slots]
        members = np.searchsorted(teams, own, "right") - np.searchsorted(teams, own)
        living: npt.NDArray[np.bool_] = (members > alive[slots]) & (self.group[slots] != 0)
        return living

    def _discard(self, slots: Slots) -> None:
        used = -(-self.length[slots] // self._rows)
        self.blocks.extend(self.segment_blocks[slots][self._block_index < used[:, None]].tolist())
        self.length[slots] = 0
        self.row[slots] = self._scratch


def _select(values: Array | None, rows: npt.NDArray[np.bool_]) -> Array | None:
    """Take rows of a column that may be absent."""
    return None if values is None else values[rows]


def _select_terminals(batch: TerminalBatch, rows: npt.NDArray[np.bool_]) -> TerminalBatch:
    return TerminalBatch(
        batch.agent_ids[rows],
        batch.rewards[rows],
        tuple([values[rows] for values in batch.observations]),
        batch.truncated[rows],
        _select(batch.group_ids, rows),
        _select(batch.group_rewards, rows),
        _select(batch.outcomes, rows),
    )
