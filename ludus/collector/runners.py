"""Policy runners: each answers the waiting agents of one behavior, of all sessions, by one forward pass per turn.

Sessions stage the messages that they receive; when the loop has handled every message that was ready,
`PolicyRunner.run` takes all of it at once. No agent waits for a slow simulator: those that are ready are answered, and
while the pass runs the next messages pile up for the one after it.

On the usual path (enough quota, nothing held) the answers are sent before any bookkeeping, so that simulators
compute while the steps are written.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ludus.collector.agent_waits import AgentWaits, WaitReason
from ludus.collector.agents import AgentIndex, Agents
from ludus.collector.batch import Batch, Part, SessionCallbacks, Staged
from ludus.collector.exploration import PinkNoise
from ludus.collector.policy import Acted, Policy
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.rows import join_decisions, join_masks, join_observations, join_terminals, join_ticks
from ludus.collector.snapshots.returning import ReturningSessions
from ludus.collector.step_quota import StepQuota
from ludus.protocol.batches import BehaviorBatch, Floats


class EpisodeObserver(Protocol):
    """Observes episode starts and ends before they are recorded."""

    def ending(self, agents: Agents, staged: Staged) -> None:
        """Agents are about to end their episodes: `staged.terminals`, those without one among them."""

    def beginning(self, agents: Agents, staged: Staged) -> None:
        """Agents decide: `staged.decisions`. Those that are idle are about to begin an episode."""

    def dropped(self, agent_index: AgentIndex) -> None:
        """The agents of a session are removed."""


@dataclass(slots=True)
class RunnerReport:
    """Messages to the learner that follow from a batch tick."""

    want_blocks: bool = False
    deliver: bool = False
    """Whether segments should be sent at once, because a round may be complete with them."""


@dataclass(slots=True, eq=False)
class PolicyRunner(ABC):
    """Agents of one admitted behavior in this collector that are answered together."""

    number: int
    behavior: str
    recorder: TrajectoryRecorder
    rng: np.random.Generator
    request_turn: "Callable[[PolicyRunner], None]"
    """Asks the loop to call `run` after the messages that are ready."""
    low_blocks: int = 0
    """Ask for blocks when fewer than this are free."""
    quota: StepQuota = field(init=False)
    observer: EpisodeObserver | None = None
    ticks: int = 0
    """Number of the next message; of collectors that serve the same simulators each counts in a range of its own."""
    version: int = -1
    """Version of the weights that act; -1 = none yet."""
    required_version: int = -1
    """Weights must be at least this new."""
    recorded: bool = True
    unrecorded_steps: int = 0
    """Decisions that were answered without being recorded, and are not reported yet."""
    last_rows: int = 0
    """Agents that asked in the newest turn in which any did."""
    wanted_blocks: bool = False
    staged: list[Staged] = field(default_factory=list)
    waiting: list[Batch] = field(default_factory=list)
    """Batches that were not answered in the turn of their arrival, oldest first."""
    held_for: WaitReason | None = None
    """Why no agent is answered: a checkpoint is taken, or the network lags."""
    waits: AgentWaits = field(default_factory=AgentWaits)
    returning: ReturningSessions = field(default_factory=ReturningSessions)
    """Sessions that go on from a checkpoint."""
    peers: "Collection[PolicyRunner]" = ()
    """The runners of all behaviors that learn in this collector."""
    notified_peers: frozenset[int] = frozenset()
    """The part of `waited_for` that the peers have been scheduled for."""

    def __post_init__(self) -> None:
        self.quota = self.recorder.quota

    def schedule(self) -> None:
        """Request a turn."""
        self.request_turn(self)

    # Differences of runners ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def memory_size(self) -> int:
        """Floats of the recurrent memory; 0 = none."""

    @property
    def absorbs_first(self) -> bool:
        """Whether answers depend on the notes of the recorder when agents ask: memory is zero where episodes begin."""
        return self.memory_size > 0

    @abstractmethod
    def _forward(self, batch: Batch, memory: Floats | None) -> Acted:
        """Draw actions."""

    # Common parts ----------------------------------------------------------------------------------------------

    def stage(self, member: SessionCallbacks, agent_index: AgentIndex, step_id: int, batch: BehaviorBatch) -> None:
        """Check a message's part against the state of its agents, for the next turn. Raises ProtocolError."""
        self.returning.check(agent_index)
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

    def run(self) -> RunnerReport:
        """Answer the agents that the quota allows; hold the others."""
        self.waiting += self.returning.restore(self.recorder, recorded=self.recorded)
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
        self._notify_peers()
        return self._report()

    def drop(self, agent_index: AgentIndex) -> None:
        """Forget a session."""
        self.staged = [item for item in self.staged if item.agent_index is not agent_index]
        self.returning.drop(agent_index)
        for batch in self.waiting:
            keep = np.repeat(
                [part.agent_index is not agent_index for part in batch.parts], [part.rows for part in batch.parts]
            )
            batch.keep_rows(keep)
        self.waiting = [batch for batch in self.waiting if batch.rows]
        self.recorder.drop(agent_index)
        if self.observer is not None:
            self.observer.dropped(agent_index)
        if self.waiting:
            self.schedule()  # its quota may serve others

    def release_late_agents(self, agent_indexes: Sequence[AgentIndex]) -> int:
        """Move outstanding steps of some sessions to later rounds; return how many there were."""
        number = self.quota.number
        if number is None or not self.recorded:
            return 0
        for agent_index in agent_indexes:
            agent_index.note_release(number)
        slots = self.recorder.agents.acting(agent_indexes, number)[: len(self.recorder.segments.blocks)]
        if len(slots):
            self.recorder.release(slots)
            self.schedule()
        return len(slots)

    def stop_recording(self) -> None:
        """Answer without limits and without recording from now on."""
        self.recorded = False
        self.recorder.stop_recording()
        self.schedule()

    # A turn -----------------------------------------------------------------------------------------------------

    @property
    def _is_ready(self) -> bool:
        """Whether agents may be answered: no checkpoint is taken, and the weights are new enough."""
        return self.held_for is None and self.version >= max(self.required_version, 0)

    def _may_answer(self, rows: int) -> bool:
        """Whether so many decisions fit into the quota and the free blocks."""
        if not self._is_ready:
            return False
        return not self.recorded or (rows <= self.quota.left and rows <= len(self.recorder.segments.blocks))

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
            self._absorb_terminals(ended)
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

    def _absorb_terminals(self, ended: list[Staged]) -> None:
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
            self.waiting = [batch for batch in self.waiting if batch.rows]

    def _act(self, batch: Batch) -> Acted:
        """Draw actions and send them."""
        memory = self.recorder.agents.memory[batch.slots] if self.memory_size else None
        acted = self._forward(batch, memory)
        continuous, discrete = acted.continuous_env, acted.discrete
        begin = 0
        for part in batch.parts:
            end = begin + part.rows
            agents = self.recorder.agents.agent[batch.slots[begin:end]] if part.partial else None
            part.member.answer(part.step_id, part.agent_index, agents, continuous[begin:end], discrete[begin:end])
            begin = end
        return acted

    def _record(self, batch: Batch, acted: Acted) -> None:
        if not self.recorded:
            self.unrecorded_steps += batch.rows
            self.recorder.answer_unrecorded(batch.slots, acted, self.version)
            return
        tags = self.quota.take(batch.rows)
        number = tags[0][0] if len(tags) == 1 else np.repeat(*np.array(tags, np.int32).T)
        self.recorder.answer(batch.slots, batch.observations, batch.masks, acted, self.version, number)

    def _answer_waiting(self) -> None:
        """Answer waiting agents that may be answered, oldest first, whole messages.

        If the quota of the round is used but steps of it are outstanding, sessions that owe one are answered in
        advance. Once all have returned, agents wait for the next round, to be answered with newer weights.
        """
        if not self.waiting or not self._is_ready or (self.recorded and self.quota.number is None):
            return
        quota_left, blocks = self.quota.left, len(self.recorder.segments.blocks)
        permitted = []
        for part in self._waiting_parts:
            permitted.append(not self.recorded or (quota_left > 0 and blocks >= part.rows))
            if permitted[-1]:
                quota_left -= part.rows
                blocks -= part.rows
        self._answer_parts(permitted)
        if self.waiting and self.recorded and not self.quota.complete:
            self._answer_in_advance()

    def _answer_in_advance(self) -> None:
        """Answer all waiting agents of the sessions that owe a step of a round whose quota is used.

        The rules of a game may demand that other agents act before that step can come back: agents of the same team, of
        another team or of another behavior. The collector does not know the rules.
        """
        blocks = len(self.recorder.segments.blocks)
        awaited: dict[PolicyRunner, frozenset[int]] = {}  # looked up once: it searches all agents of a runner
        answered = []
        for part in self._waiting_parts:
            owing = []
            for runner, agent_index in part.member.agent_indexes.values():
                if runner not in awaited:
                    awaited[runner] = runner.awaited
                if agent_index.number in awaited[runner]:
                    owing.append((runner, agent_index))
            answered.append(bool(owing) and blocks >= part.rows)
            if answered[-1]:
                blocks -= part.rows
                for runner, agent_index in owing:
                    assert runner.quota.number is not None, "a runner without a round waits for no agent"
                    agent_index.note_borrowing(runner.quota.number)
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
        batch = ready[0]
        if len(ready) > 1:
            batch = Batch(
                [part for each in ready for part in each.parts],
                np.concatenate([each.slots for each in ready]),
                join_observations([each.observations for each in ready]),
                join_masks([(each.masks, each.rows) for each in ready]),
            )
        self._record(batch, self._act(batch))

    @property
    def awaited(self) -> frozenset[int]:
        """Return the numbers of the agent indexes that owe steps of the round, once other agents wait for them."""
        quota, number = self.quota, self.quota.number
        if not self.recorded or number is None or quota.left > 0 or quota.complete:
            return frozenset()
        return self.recorder.agents.owing(number)

    def _notify_peers(self) -> None:
        """Schedule other behaviors that hold agents of sessions which this behavior's round waits for."""
        barrier = [runner for runner in self.peers if runner is not self and runner.waiting]
        if not barrier:
            return
        awaited = self.awaited
        if awaited - self.notified_peers:
            for runner in barrier:
                runner.schedule()
        self.notified_peers = awaited

    def _report(self) -> RunnerReport:
        report = RunnerReport()
        if not self.recorded:
            return report
        if self.quota.complete:
            for batch in self.waiting:
                self.recorder.segments.cut(batch.slots, batch.observations)
            report.deliver = True
        needed = max(self.low_blocks, self.returning.blocks(self.recorder))
        if self.waiting:
            needed = max(needed, *(part.rows for part in self._waiting_parts))
        if len(self.recorder.segments.blocks) < needed and not self.wanted_blocks:
            self.wanted_blocks = report.want_blocks = True
        return report


@dataclass(slots=True, eq=False)
class LearningRunner(PolicyRunner):
    """Agents that learn: one policy answers all of them."""

    policy: Policy = field(kw_only=True)
    noise: PinkNoise | None = None
    """Noise of the samples of continuous columns; None is white noise, which the policy draws itself."""

    @property
    def memory_size(self) -> int:
        """Floats of the recurrent memory; 0 = none."""
        return self.policy.memory_size

    def _forward(self, batch: Batch, memory: Floats | None) -> Acted:
        noise = None if self.noise is None else self.noise.draw(batch.slots, self.rng)
        return self.policy.act(batch.observations, batch.masks, memory, self.rng, noise)
