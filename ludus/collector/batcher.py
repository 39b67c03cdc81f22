"""Batcher: one behavior's waiting agents of all sessions, answered by one forward pass per turn of the event loop.

Sessions stage what they receive; when the loop has handled every message that was ready, `Lane.run` takes all of it at
once. Nobody waits for a simulator that has not answered: whoever is ready goes first, and while the pass runs the next
messages pile up for the one after it.

On the usual path (permits for everybody, nothing held) the answers are sent before any bookkeeping, so that simulators
compute while the steps are written.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ludus.collector.agents import Agents, Roster, Slots
from ludus.collector.exploration import PinkNoise
from ludus.collector.keeping import blocks_of, take_over
from ludus.collector.policy import Acted
from ludus.collector.rounds import Rounds
from ludus.collector.rows import join_decisions, join_masks, join_observations, join_terminals, join_ticks
from ludus.collector.tracker import Tracker
from ludus.protocol.batches import Array, BehaviorBatch, Bytes, DecisionBatch, Floats, Ints
from ludus.protocol.codec import CloseCode, ProtocolError


class Policy(Protocol):
    """What answers observations (`worker.collectors.acting`), as far as it matters here."""

    def load(self, flat: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> None:
        """Take new weights."""

    @property
    def memory_size(self) -> int:
        """Floats of the recurrent memory; 0 = none."""

    def act(
        self,
        observations: Sequence[Array],
        masks: Array | None,
        memory: Floats | None,
        rng: np.random.Generator,
        noise: Floats | None,
    ) -> Acted:
        """Draw an action for each row. `memory` is that before the step; `Acted.memory` is that after it."""


class Member(Protocol):
    """What the batcher needs of a session."""

    @property
    def rosters(self) -> "Mapping[str, tuple[BaseLane, Roster]]":
        """Its agents by behavior, each with the lane that answers them."""

    def answer(self, step_id: int, roster: Roster, agents: Ints | None, continuous: Floats, discrete: Ints) -> None:
        """Send actions: of all agents that asked in the step, in their order, or of `agents` alone."""


class Part(NamedTuple):
    """The rows of a batch that answer one step of one session."""

    member: Member
    roster: Roster
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

    @property
    def rows(self) -> int:
        """Agents."""
        return len(self.slots)

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

    member: Member
    roster: Roster
    step_id: int
    batch: BehaviorBatch
    tick: int
    terminals: Slots | None
    decisions: Slots | None


class Returning(NamedTuple):
    """A session that goes on where it was in a checkpoint."""

    member: Member
    roster: Roster
    step_id: int
    decisions: DecisionBatch | None
    """Those who ask again; None where nobody waits."""
    kept: Mapping[str, Any]
    """`keeping.keep`."""


class Observer(Protocol):
    """What is told of the episodes of a lane, before the tracker is."""

    def ending(self, agents: Agents, staged: Staged) -> None:
        """Take note that agents are about to end their episodes: `staged.terminals`, those without one among them."""

    def beginning(self, agents: Agents, staged: Staged) -> None:
        """Take note of `staged.decisions`; those of them that are idle are about to begin an episode."""

    def dropped(self, roster: Roster) -> None:
        """Take note that a session's agents are forgotten."""


@dataclass(slots=True)
class LaneReport:
    """What a turn of a lane asks the process to tell the learner."""

    want: bool = False
    want_blocks: bool = False
    deliver: bool = False
    """Whether segments should be sent at once, because a round may be complete with them."""


@dataclass(slots=True, eq=False)
class BaseLane(ABC):
    """Agents of one admitted behavior in this collector that are answered together."""

    number: int
    behavior: str
    tracker: Tracker
    rounds: Rounds
    rng: np.random.Generator
    low_blocks: int
    """Ask for blocks when fewer than this are free."""
    schedule: Callable[[], None]
    """Asks the loop to call `run` after the messages that are ready."""
    observer: Observer | None = None
    ticks: int = 0
    """Number of the next message; of collectors that serve the same simulators each counts in a range of its own."""
    version: int = -1
    """Version of the weights that act; -1 = none yet."""
    required_version: int = -1
    """Weights must be at least this new."""
    recorded: bool = True
    last_rows: int = 0
    """Agents that asked in the newest turn in which any did."""
    wanted: bool = False
    """Whether permits were asked for and have not come."""
    wanted_blocks: bool = False
    staged: list[Staged] = field(default_factory=list)
    waiting: list[Batch] = field(default_factory=list)
    """Batches that were not answered in the turn of their arrival, oldest first."""
    held: bool = False
    """Whether nobody is answered, because a checkpoint is taken."""
    returning: list[Returning] = field(default_factory=list)
    """Sessions that go on where they were, once a round has been granted in which they can."""
    peers: "Collection[BaseLane]" = ()
    """The lanes of all behaviors that learn in this collector."""
    told_peers: frozenset[int] = frozenset()
    """The part of `waited_for` that the peers have been scheduled for."""

    # What lanes differ in ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def memory_size(self) -> int:
        """Floats of the recurrent memory; 0 = none."""

    @property
    @abstractmethod
    def absorbs_first(self) -> bool:
        """Whether answers depend on what the tracker notes when agents ask."""

    @abstractmethod
    def _forward(self, batch: Batch, memory: Floats | None) -> Acted:
        """Draw actions."""

    # What they share --------------------------------------------------------------------------------------------

    def stage(self, member: Member, roster: Roster, step_id: int, batch: BehaviorBatch) -> None:
        """Check a message's part against the state of its agents, for the next turn. Raises ProtocolError."""
        if any(item.roster is roster for item in self.returning):
            message = "a simulator that goes on from a checkpoint sends nothing more before it is answered"
            raise ProtocolError(CloseCode.DECISION_PENDING, message)
        if roster.staged:
            self._absorb(self._join())  # this message builds on one that is staged
        agents = self.tracker.agents
        decided, ended = batch.decisions, batch.terminals
        terminals = agents.slots(roster, ended.agent_ids) if ended is not None else None
        decisions = agents.slots(roster, decided.agent_ids) if decided is not None else None
        if decisions is not None:
            agents.check_decisions(decisions, terminals)
        roster.staged = True
        self.staged.append(Staged(member, roster, step_id, batch, self.ticks, terminals, decisions))
        self.ticks += 1
        if len(self.staged) == 1:
            self.schedule()

    def go_on(self, member: Member, roster: Roster, step_id: int, batch: BehaviorBatch | None, kept: Any) -> None:
        """Take over a session's agents as they were in a checkpoint; those of `batch` ask again. In the next turn."""
        decisions = None if batch is None else batch.decisions
        self.returning.append(Returning(member, roster, step_id, decisions, kept))
        self.schedule()

    def run(self) -> LaneReport:
        """Answer whom the permits allow; hold the others."""
        self._take_over()
        fresh = self._join()
        if fresh is not None:
            self.last_rows = fresh.rows
        if fresh is not None and not self.waiting and self._may_answer(fresh.rows):
            if self.absorbs_first:
                self._absorb(fresh, answered=True)
                self._record(fresh, self._act(fresh))
            else:
                acted = self._act(fresh)
                self._absorb(fresh, answered=True)
                self._record(fresh, acted)
        else:
            self._absorb(fresh)
            self._answer_waiting()
        self._tell_peers()
        return self._report()

    def drop(self, roster: Roster) -> None:
        """Forget a session."""
        self.staged = [item for item in self.staged if item.roster is not roster]
        self.returning = [item for item in self.returning if item.roster is not roster]
        for batch in self.waiting:
            keep = np.repeat([part.roster is not roster for part in batch.parts], [part.rows for part in batch.parts])
            batch.keep_rows(keep)
        self.waiting = [batch for batch in self.waiting if batch.rows]
        self.tracker.drop(roster)
        if self.observer is not None:
            self.observer.dropped(roster)
        if self.waiting:
            self.schedule()  # its permits may serve others

    def release_stragglers(self, rosters: Sequence[Roster]) -> int:
        """Free the permits that some sessions hold in this round, and return how many there were."""
        number = self.rounds.number
        if number is None or not self.recorded:
            return 0
        for roster in rosters:
            roster.note_release(number)
        slots = self.tracker.agents.acting(rosters, number)[: len(self.tracker.segments.blocks)]
        if len(slots):
            self.tracker.release(slots)
            self.schedule()
        return len(slots)

    def stop_recording(self) -> None:
        """Answer without limits and without recording from now on."""
        self.recorded = False
        self.tracker.stop_recording()
        self.schedule()

    # A turn -----------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        """Let sessions go on that come back, as soon as there is a round and room for what they bring."""
        if not self.returning or (self.recorded and self.rounds.number is None) or self._lacks_blocks:
            return
        returning, self.returning = self.returning, []
        for member, roster, step_id, decisions, kept in returning:
            take_over(self.tracker, roster, kept)
            if decisions is not None:
                slots = self.tracker.agents.slots(roster, decisions.agent_ids)
                part = Part(member, roster, step_id, len(slots), int(self.tracker.agents.tick[slots[0]]))
                self.waiting.append(Batch([part], slots, decisions.observations, decisions.action_masks))
        if not self.recorded:
            self.tracker.stop_recording()

    @property
    def _lacks_blocks(self) -> bool:
        """Whether those who come back need more blocks than there are."""
        needed = sum(blocks_of(item.kept, self.tracker.arena.layout) for item in self.returning)
        return self.recorded and needed > len(self.tracker.segments.blocks)

    def _may_answer(self, rows: int) -> bool:
        if self.held or self.version < max(self.required_version, 0):
            return False
        return not self.recorded or (rows <= self.rounds.left and rows <= len(self.tracker.segments.blocks))

    def _join(self) -> Batch | None:
        """Put the staged decisions side by side."""
        parts, slots, decisions = [], [], []
        for member, roster, step_id, batch, tick, _, decided in self.staged:
            if decided is not None and batch.decisions is not None:
                parts.append(Part(member, roster, step_id, len(decided), tick))
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
        """Bring the agents' state up to what is staged; `fresh` is what `_join` made of it."""
        if not self.staged:
            return
        staged, self.staged = self.staged, []
        ended = [item for item in staged if item.terminals is not None]
        if ended:
            self._absorb_terminals(ended)
        decided = [item.batch.decisions for item in staged if item.batch.decisions is not None]
        if fresh is not None:
            joined = decided[0] if len(decided) == 1 else join_decisions(decided, fresh.observations, fresh.masks)
            if self.observer is not None:
                for item in staged:
                    self.observer.beginning(self.tracker.agents, item)
            self.tracker.wait(fresh.slots, joined, join_ticks([(part.tick, part.rows) for part in fresh.parts]))
            if not answered:
                self.waiting.append(fresh)
        for item in staged:
            item.roster.staged = False

    def _absorb_terminals(self, ended: list[Staged]) -> None:
        if self.observer is not None:
            for item in ended:
                self.observer.ending(self.tracker.agents, item)
        batches = [item.batch.terminals for item in ended if item.batch.terminals is not None]
        slots = [item.terminals for item in ended if item.terminals is not None]
        ticks = join_ticks([(item.tick, len(those)) for item, those in zip(ended, slots, strict=True)])
        if len(ended) == 1:
            void = self.tracker.end(slots[0], batches[0], ticks)
        else:
            void = self.tracker.end(np.concatenate(slots), join_terminals(batches), ticks)
        if len(void):
            for batch in self.waiting:
                batch.keep_rows(~np.isin(batch.slots, void))
            self.waiting = [batch for batch in self.waiting if batch.rows]

    def _act(self, batch: Batch) -> Acted:
        """Draw actions and send them."""
        memory = self.tracker.agents.memory[batch.slots] if self.memory_size else None
        acted = self._forward(batch, memory)
        continuous, discrete = acted.continuous_env, acted.discrete
        begin = 0
        for part in batch.parts:
            end = begin + part.rows
            agents = self.tracker.agents.agent[batch.slots[begin:end]] if part.partial else None
            part.member.answer(part.step_id, part.roster, agents, continuous[begin:end], discrete[begin:end])
            begin = end
        return acted

    def _record(self, batch: Batch, acted: Acted) -> None:
        if not self.recorded:
            self.tracker.answer_unrecorded(batch.slots, acted, self.version)
            return
        tags = self.rounds.take(batch.rows)
        number = tags[0][0] if len(tags) == 1 else np.repeat(*np.array(tags, np.int32).T)
        self.tracker.answer(batch.slots, batch.observations, batch.masks, acted, self.version, number)

    def _answer_waiting(self) -> None:
        """Answer what may be answered of what waits, oldest first, whole messages."""
        if not self.waiting or not self._may_answer(0) or (self.recorded and self.rounds.number is None):
            return
        permits, blocks = self.rounds.left, len(self.tracker.segments.blocks)
        permitted = []
        for part in self._waiting_parts:
            enough = permits >= part.rows or (self.rounds.closed and permits > 0)
            permitted.append(not self.recorded or (enough and blocks >= part.rows))
            if permitted[-1]:
                permits -= part.rows
                blocks -= part.rows
        self._answer_parts(permitted)
        if self.waiting and self._may_borrow:
            self._answer_in_advance()

    def _answer_in_advance(self) -> None:
        """Answer the sessions that owe a step to a round without permits, whichever of their agents wait.

        The rules of a game may demand that other agents act before that step can come back: agents of the same team, of
        another team or of another behavior. The collector does not know the rules.
        """
        blocks = len(self.tracker.segments.blocks)
        waited_for: dict[BaseLane, frozenset[int]] = {}  # looked up once: it searches all agents of a lane
        answered = []
        for part in self._waiting_parts:
            owing = []
            for lane, roster in part.member.rosters.values():
                if lane not in waited_for:
                    waited_for[lane] = lane.waited_for
                if roster.number in waited_for[lane]:
                    owing.append((lane, roster))
            answered.append(bool(owing) and blocks >= part.rows)
            if answered[-1]:
                blocks -= part.rows
                for lane, roster in owing:
                    assert lane.rounds.number is not None, "a lane without a round waits for nobody"
                    roster.note_borrowing(lane.rounds.number)
        self._answer_parts(answered)

    @property
    def _waiting_parts(self) -> list[Part]:
        return [part for batch in self.waiting for part in batch.parts]

    def _answer_parts(self, taken: Sequence[bool]) -> None:
        """Answer some of the parts that wait; `taken` says which, in their order."""
        if not any(taken):
            return
        ready, begin = [], 0
        for batch in self.waiting:
            own = taken[begin : begin + len(batch.parts)]
            begin += len(own)
            if any(own):
                ready.append(batch.take_parts(list(own)))
        self.waiting = [batch for batch in self.waiting if batch.rows]
        batch = ready[0] if len(ready) == 1 else self._merge(ready)
        self._record(batch, self._act(batch))

    @property
    def _may_borrow(self) -> bool:
        """Whether agents may be answered in advance: no more of the round will be granted, and it is not complete yet.

        Once it is complete, the learner grants the next round, to be played with newer weights. A collector among
        several cannot tell: the others may still have steps out.
        """
        rounds = self.rounds
        return self.recorded and rounds.closed and not (rounds.alone and rounds.drained)

    @property
    def waited_for(self) -> frozenset[int]:
        """Return the rosters (numbers) with steps of the round out, once agents may be held until these come back."""
        rounds = self.rounds
        number = rounds.number
        if not self.recorded or number is None or not rounds.outstanding[number]:
            return frozenset()
        used_up = rounds.closed and rounds.left <= 0
        return self.tracker.agents.owing(number) if used_up or rounds.lacked_elsewhere else frozenset()

    def _tell_peers(self) -> None:
        """Let other behaviors answer what they hold of the sessions that this one's round has begun to wait for."""
        holding = [lane for lane in self.peers if lane is not self and lane.waiting]
        if not holding:
            return
        waited_for = self.waited_for
        if waited_for - self.told_peers:
            for lane in holding:
                lane.schedule()
        self.told_peers = waited_for

    def _merge(self, batches: list[Batch]) -> Batch:
        return Batch(
            [part for batch in batches for part in batch.parts],
            np.concatenate([batch.slots for batch in batches]),
            join_observations([batch.observations for batch in batches]),
            join_masks([(batch.masks, batch.rows) for batch in batches]),
        )

    def _report(self) -> LaneReport:
        report = LaneReport()
        if not self.recorded:
            return report
        if self.rounds.drained:
            for batch in self.waiting:
                self.tracker.segments.cut(batch.slots, batch.observations)
            report.deliver = True
        if not self.rounds.closed and not self.wanted and self.rounds.number is not None:
            # In time: the learner's answer should be here before the permits of the next two turns are used up. Once
            # others lack permits, want only those that agents wait for: two collectors would pass the last ones back
            # and forth, each for agents that may not ask before those of a third collector have acted.
            asking = sum(part.rows for part in self._waiting_parts) if self.rounds.recalled else 2 * self.last_rows
            self.wanted = report.want = self.rounds.left < asking
        needed = self.low_blocks
        needed = max(needed, sum(blocks_of(item.kept, self.tracker.arena.layout) for item in self.returning))
        if self.waiting:
            needed = max(needed, *(part.rows for batch in self.waiting for part in batch.parts))
        if len(self.tracker.segments.blocks) < needed and not self.wanted_blocks:
            self.wanted_blocks = report.want_blocks = True
        return report


@dataclass(slots=True, eq=False)
class Lane(BaseLane):
    """Agents that learn: one policy answers all of them."""

    policy: Policy = field(kw_only=True)
    noise: PinkNoise | None = None
    """What drives the samples of continuous columns; None is white noise, which the policy draws itself."""

    @property
    def memory_size(self) -> int:
        """Floats of the recurrent memory; 0 = none."""
        return self.policy.memory_size

    @property
    def absorbs_first(self) -> bool:
        """Whether answers depend on what the tracker notes: memory is zero where an episode begins."""
        return self.policy.memory_size > 0

    def _forward(self, batch: Batch, memory: Floats | None) -> Acted:
        noise = None if self.noise is None else self.noise.draw(batch.slots, self.rng)
        return self.policy.act(batch.observations, batch.masks, memory, self.rng, noise)
