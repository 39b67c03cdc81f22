"""Policy runners: each answers the waiting agents of one behavior, of all sessions, by one forward pass per turn.

Sessions stage the messages that they receive (`ludus.collector.agent_queue`); when the loop has handled every message
that was ready, `PolicyRunner.run` takes all of it at once. No agent waits for a slow simulator: those that are ready
are answered, and while the pass runs the next messages pile up for the one after it.

On the usual path (enough quota, nothing held) the answers are sent before any bookkeeping, so that simulators
compute while the steps are written.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ludus.collector.acted import Acted
from ludus.collector.agent_queue import AgentQueue, Batch
from ludus.collector.agent_waits import LEARNER, STRAGGLERS, AgentWaits, WaitReason
from ludus.collector.agents import AgentIndex
from ludus.collector.exploration import PinkNoise
from ludus.collector.policy import Policy
from ludus.protocol.batches import Floats


@dataclass(slots=True)
class RunnerReport:
    """Messages to the learner that follow from a batch tick."""

    want_blocks: bool = False
    deliver: bool = False
    """Whether segments should be sent at once, because a round may be complete with them."""


@dataclass(slots=True, eq=False)
class PolicyRunner(AgentQueue, ABC):
    """Acts for the agents of a queue, and records their steps."""

    rng: np.random.Generator = field(kw_only=True)
    low_blocks: int = 0
    """Ask for blocks when fewer than this are free."""
    version: int = -1
    """Version of the weights that act; -1 = none yet."""
    required_version: int = -1
    """Weights must be at least this new."""
    unrecorded_steps: int = 0
    """Decisions that were answered without being recorded, and are not reported yet."""
    last_rows: int = 0
    """Agents that asked in the newest turn in which any did."""
    wanted_blocks: bool = False
    held_for: WaitReason | None = None
    """Why no agent is answered: a checkpoint is taken, or the network lags."""
    waits: AgentWaits = field(default_factory=AgentWaits)
    peers: "Collection[PolicyRunner]" = ()
    """The runners of all behaviors that learn in this collector."""
    notified_peers: frozenset[int] = frozenset()
    """The part of `awaited` that the peers have been scheduled for."""

    # Differences of runners ---------------------------------------------------------------------------------------

    absorbs_first: ClassVar[bool] = False
    """Whether answers depend on what the observer notes when agents ask."""

    @abstractmethod
    def _forward(self, batch: Batch, memory: Floats | None) -> Acted:
        """Draw actions."""

    # Common parts ----------------------------------------------------------------------------------------------

    def run(self) -> RunnerReport:
        """Answer the agents that the quota allows; hold the others."""
        fresh = self._join()
        if fresh is not None:
            self.last_rows = len(fresh.slots)
        if fresh is None or self.waiting or not self._may_answer(len(fresh.slots)):
            self._absorb(fresh)
            self._answer_waiting()
        elif self.absorbs_first or self.memory_size:  # the memory is zero where an episode begins
            self._absorb(fresh, answered=True)
            self._record(fresh, self._act(fresh))
        else:
            acted = self._act(fresh)
            self._absorb(fresh, answered=True)
            self._record(fresh, acted)
        self._notify_peers()
        return self._report()

    def release_late_agents(self, agent_indexes: Sequence[AgentIndex], left_behind: Sequence[bool] = ()) -> int:
        """Move outstanding steps of some sessions to later rounds; return how many there were.

        Where the age of steps is limited, older ones than this round's are moved only of sessions that went on without
        their agents (`left_behind`): those steps may never return.
        """
        number = self.quota.number
        if number is None or not self.recorded:
            return 0
        for agent_index in agent_indexes:
            agent_index.note_release(number)
        agents = self.recorder.agents
        slots = agents.acting(agent_indexes, number)
        if self.quota.ahead is not None:
            lost = [index.number for index, behind in zip(agent_indexes, left_behind, strict=True) if behind]
            versions: npt.NDArray[np.int64] = self.recorder.arena.versions[agents.row[slots]].astype(
                np.int64, copy=False
            )
            new = versions >= self.required_version
            slots = slots[new | np.isin(agents.owner[slots], lost)]
        slots = slots[: len(self.recorder.segments.blocks)]
        if len(slots):
            self.recorder.release(slots)
            self.schedule()
        return len(slots)

    def observe_waits(self, now: float, last: int | None) -> None:
        """Record what agents wait for after a turn; `last` is the simulator of the newest step, if any."""
        reason, share, quota = None, 0.0, self.quota
        if self.waiting and self.version >= 0 and quota.number is not None:
            waiting = sum(len(batch.slots) for batch in self.waiting)
            share = waiting / (waiting + sum(quota.outstanding.values()))
            has_weights = self.version >= self.required_version
            straggling = has_weights and quota.left <= 0 and not quota.complete
            reason = self.held_for or (STRAGGLERS if straggling else LEARNER)
        self.waits.observe(reason, share, now, last)

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
            self.unrecorded_steps += len(batch.slots)
            self.recorder.answer_unrecorded(batch.slots, acted, self.version)
            return
        tags = self.quota.take(len(batch.slots))
        number = tags[0][0] if len(tags) == 1 else np.repeat(*np.array(tags, np.int32).T)
        self.recorder.answer(batch.slots, batch.observations, batch.masks, acted, self.version, number)

    def _answer(self, batch: Batch | None) -> None:
        if batch is not None:
            self._record(batch, self._act(batch))

    def _answer_waiting(self) -> None:
        """Answer waiting agents that may be answered, oldest first, whole messages.

        If the quota of the round is used but steps of it are outstanding, sessions that owe one are answered in
        advance. Once all have returned, agents wait for the next round, to be answered with newer weights. Where rounds
        wait for all collectors, that may not come before steps of other behaviors have returned: sessions that owe one
        of these are answered then, too.
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
        self._answer(self._take_parts(permitted))
        if self.waiting and self.recorded and not (self.quota.complete and self.quota.ahead is None):
            self._answer_in_advance()

    def _answer_in_advance(self) -> None:
        """Answer all waiting agents of the sessions that owe a step of a round whose quota is used.

        The rules of a game may demand that other agents act before that step can come back: agents of the same team, of
        another team or of another behavior. The collector does not know the rules.
        """
        blocks = len(self.recorder.segments.blocks)
        awaited: dict[AgentQueue, frozenset[int]] = {}  # looked up once: it searches all agents of a runner
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
        self._answer(self._take_parts(answered))

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
        needed = max(self.low_blocks, *(part.rows for part in self._waiting_parts), 0)
        if len(self.recorder.segments.blocks) < needed and not self.wanted_blocks:
            self.wanted_blocks = report.want_blocks = True
        return report


@dataclass(slots=True, eq=False)
class LearningRunner(PolicyRunner):
    """Agents that learn: one policy answers all of them."""

    policy: Policy = field(kw_only=True)
    noise: PinkNoise | None = None
    """Noise of the samples of continuous columns; None is white noise, which the policy draws itself."""

    def _forward(self, batch: Batch, memory: Floats | None) -> Acted:
        noise = None if self.noise is None else self.noise.draw(batch.slots, self.rng)
        return self.policy.act(batch.observations, batch.masks, memory, self.rng, noise)
