"""The queue of one behavior's agents: messages are staged, joined into batches, and wait until a runner answers them.

A session stages what it receives. `PolicyRunner` (`ludus.collector.runners`), which acts for the agents and records
their steps, takes all of it at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self

import numpy as np

from ludus.collector.agents import AgentIndex, Agents, Slots
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.rows import join_decisions, join_masks, join_observations, join_terminals, join_ticks
from ludus.collector.snapshots.state import State
from ludus.collector.step_quota import StepQuota
from ludus.protocol.batches import Array, BehaviorBatch, Bytes, DecisionBatch, Floats, Ints
from ludus.protocol.codes import CloseCode, ProtocolError


class SessionCallbacks(Protocol):
    """Callbacks from a runner to a session."""

    @property
    def agent_indexes(self) -> "Mapping[str, tuple[AgentQueue, AgentIndex]]":
        """Its agents by behavior, each with the queue that it waits in."""

    def answer(
        self, step_id: int, agent_index: AgentIndex, agents: Ints | None, continuous: Floats, discrete: Ints
    ) -> None:
        """Send actions: of all agents that asked in the step, in their order, or of `agents` alone."""


class Part(NamedTuple):
    """The rows of a batch that answer one step of one session."""

    member: SessionCallbacks
    agent_index: AgentIndex
    step_id: int
    rows: int
    tick: int
    """Number of the message."""
    partial: bool = False
    """Whether some agents of the step ended while they waited, so that the answer must name the others."""


@dataclass(slots=True, eq=False)
class Batch:
    """Agents that wait for an action, rows part by part."""

    parts: list[Part]
    slots: Slots
    observations: tuple[Array, ...]
    masks: Bytes | None

    def keep_rows(self, keep: Array) -> None:
        """Remove the other rows; parts that lose some but not all of theirs become partial."""
        if keep.all():
            return
        parts, begin = [], 0
        for part in self.parts:
            left = int(keep[begin : begin + part.rows].sum())
            begin += part.rows
            if left:
                parts.append(part if left == part.rows else part._replace(rows=left, partial=True))
        self.parts = parts
        self.slots = self.slots[keep]
        self.observations = tuple([values[keep] for values in self.observations])
        self.masks = None if self.masks is None else self.masks[keep]

    def take_parts(self, taken: list[bool]) -> "Batch":
        """Move whole parts into a batch of their own."""
        if all(taken):
            whole = replace(self)
            self.parts, self.slots = [], self.slots[:0]
            return whole
        rows = np.repeat(taken, [part.rows for part in self.parts])
        moved = replace(
            self,
            parts=[part for part, take in zip(self.parts, taken, strict=True) if take],
            slots=self.slots[rows],
            observations=tuple([values[rows] for values in self.observations]),
            masks=None if self.masks is None else self.masks[rows],
        )
        self.keep_rows(~rows)
        return moved


class Staged(NamedTuple):
    """One behavior's part of a received step, checked."""

    member: SessionCallbacks
    agent_index: AgentIndex
    step_id: int
    batch: BehaviorBatch
    tick: int
    terminals: Slots | None
    decisions: Slots | None


class Returning(NamedTuple):
    """The agents of a session that go on where they were in a checkpoint (`ludus.collector.snapshots.agents`)."""

    member: SessionCallbacks
    agent_index: AgentIndex
    step_id: int
    decisions: DecisionBatch | None
    """The agents that ask again; None where none waits."""
    saved: State
    """Their snapshot."""


class EpisodeObserver(Protocol):
    """Observes episode starts and ends before they are recorded."""

    def ending(self, agents: Agents, staged: Staged) -> None:
        """Agents are about to end their episodes: `staged.terminals`, those without one among them."""

    def beginning(self, agents: Agents, staged: Staged) -> None:
        """Agents decide: `staged.decisions`. Those that are idle are about to begin an episode."""

    def dropped(self, agent_index: AgentIndex) -> None:
        """The agents of a session are removed."""


@dataclass(slots=True, eq=False)
class AgentQueue:
    """The agents of one admitted behavior in this collector that are answered together."""

    number: int
    behavior: str
    recorder: TrajectoryRecorder
    request_turn: "Callable[[Self], None]"
    """Asks the loop to call `run` after the messages that are ready."""
    quota: StepQuota = field(init=False)
    memory_size: int = field(init=False)
    """Floats of an agent's recurrent memory; 0 = none."""
    observer: EpisodeObserver | None = None
    ticks: int = 0
    """Number of the next message; of collectors that serve the same simulators each counts in a range of its own."""
    recorded: bool = True
    staged: list[Staged] = field(default_factory=list)
    waiting: list[Batch] = field(default_factory=list)
    """Batches that were not answered in the turn of their arrival, oldest first."""
    returning: list[Returning] = field(default_factory=list)
    """Agents that wait for a round in which they can go on from a checkpoint."""

    def __post_init__(self) -> None:
        self.quota = self.recorder.quota
        self.memory_size = self.recorder.arena.layout.memory_size

    def schedule(self) -> None:
        """Request a turn."""
        self.request_turn(self)

    def stage(self, member: SessionCallbacks, agent_index: AgentIndex, step_id: int, batch: BehaviorBatch) -> None:
        """Check a message's part against the state of its agents, for the next turn. Raises ProtocolError."""
        if self.returning and self.returns(agent_index):
            message = "a simulator that goes on from a checkpoint sends nothing more before it is answered"
            raise ProtocolError(CloseCode.DECISION_PENDING, message)
        if agent_index.staged:
            self._absorb(self._join())  # this message builds on one that is staged
        agents = self.recorder.agents
        decided, ended = batch.decisions, batch.terminals
        terminals = agents.slots(agent_index, ended.agent_ids) if ended is not None else None
        decisions = agents.slots(agent_index, decided.agent_ids) if decided is not None else None
        if decisions is not None:
            agents.check_decisions(decisions, terminals)
        agent_index.staged = True
        self.staged.append(Staged(member, agent_index, step_id, batch, self.ticks, terminals, decisions))
        self.ticks += 1
        if len(self.staged) == 1:
            self.schedule()

    def restore_later(self, returning: Returning) -> None:
        """Restore the agents of a session in a later turn."""
        self.returning.append(returning)
        self.schedule()

    def returns(self, agent_index: AgentIndex) -> bool:
        """Whether a session waits to be restored."""
        return any(returning.agent_index is agent_index for returning in self.returning)

    def drop(self, agent_index: AgentIndex) -> None:
        """Forget a session."""
        self.returning = [returning for returning in self.returning if returning.agent_index is not agent_index]
        self.staged = [item for item in self.staged if item.agent_index is not agent_index]
        for batch in self.waiting:
            keep = np.repeat(
                [part.agent_index is not agent_index for part in batch.parts], [part.rows for part in batch.parts]
            )
            batch.keep_rows(keep)
        self.waiting = [batch for batch in self.waiting if len(batch.slots)]
        self.recorder.drop(agent_index)
        if self.observer is not None:
            self.observer.dropped(agent_index)
        if self.waiting or self.quota.ahead is not None:
            self.schedule()  # its quota may serve others, or the learner waits for the last step of a round

    def stop_recording(self) -> None:
        """Answer without limits and without recording from now on."""
        self.recorded = False
        self.recorder.stop_recording()
        self.schedule()

    @property
    def awaited(self) -> frozenset[int]:
        """Return the numbers of the agent indexes that owe steps of the round, once other agents wait for them."""
        quota, number = self.quota, self.quota.number
        if not self.recorded or number is None or quota.left > 0 or quota.complete:
            return frozenset()
        return self.recorder.agents.owing(number)

    def _join(self) -> Batch | None:
        """Put the staged decisions side by side."""
        parts, slots, decisions = [], [], []
        for member, agent_index, step_id, batch, tick, _, decided in self.staged:
            if decided is not None and batch.decisions is not None:
                parts.append(Part(member, agent_index, step_id, len(decided), tick))
                slots.append(decided)
                decisions.append(batch.decisions)
        if not parts:
            return None
        if len(parts) == 1:
            return Batch(parts, slots[0], decisions[0].observations, decisions[0].action_masks)
        return Batch(
            parts,
            np.concatenate(slots),
            join_observations([item.observations for item in decisions]),
            join_masks([(item.action_masks, len(item.agent_ids)) for item in decisions]),
        )

    def _absorb(self, fresh: Batch | None, *, answered: bool = False) -> None:
        """Update the agents' state by the staged messages; `fresh` is the batch that `_join` made of them."""
        if not self.staged:
            return
        staged, self.staged = self.staged, []
        ended = [item for item in staged if item.terminals is not None]
        if ended:
            if self.observer is not None:
                for item in ended:
                    self.observer.ending(self.recorder.agents, item)
            batches = [item.batch.terminals for item in ended if item.batch.terminals is not None]
            slots = [item.terminals for item in ended if item.terminals is not None]
            ticks = join_ticks([(item.tick, len(those)) for item, those in zip(ended, slots, strict=True)])
            if len(ended) == 1:
                void = self.recorder.end(slots[0], batches[0], ticks)
            else:
                void = self.recorder.end(np.concatenate(slots), join_terminals(batches), ticks)
            if len(void):
                for batch in self.waiting:
                    batch.keep_rows(~np.isin(batch.slots, void))
                self.waiting = [batch for batch in self.waiting if len(batch.slots)]
        decided = [item.batch.decisions for item in staged if item.batch.decisions is not None]
        if fresh is not None:
            joined = decided[0] if len(decided) == 1 else join_decisions(decided, fresh.observations, fresh.masks)
            if self.observer is not None:
                for item in staged:
                    self.observer.beginning(self.recorder.agents, item)
            self.recorder.wait(fresh.slots, joined, join_ticks([(part.tick, part.rows) for part in fresh.parts]))
            if not answered:
                self.waiting.append(fresh)
        for item in staged:
            item.agent_index.staged = False

    @property
    def _waiting_parts(self) -> list[Part]:
        return [part for batch in self.waiting for part in batch.parts]

    def _take_parts(self, taken: Sequence[bool]) -> Batch | None:
        """Take some of the parts that wait out of the queue, as one batch; `taken` says which, in their order."""
        ready, begin = [], 0
        for batch in self.waiting:
            taken_of_batch = list(taken[begin : begin + len(batch.parts)])
            begin += len(taken_of_batch)
            if any(taken_of_batch):
                ready.append(batch.take_parts(taken_of_batch))
        self.waiting = [batch for batch in self.waiting if len(batch.slots)]
        if len(ready) < 2:
            return ready[0] if ready else None
        return Batch(
            [part for batch in ready for part in batch.parts],
            np.concatenate([batch.slots for batch in ready]),
            join_observations([batch.observations for batch in ready]),
            join_masks([(batch.masks, len(batch.slots)) for batch in ready]),
        )
