"""A registered behavior, the pool's side: settings of its collectors, and the blocks that they hold.

Collectors get weights, quotas, blocks and frozen policies; none of it is lost with one that dies. All methods are
called under the pool's lock, and none waits.
"""

import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ludus.collector import commands, messages
from ludus.collector.arena import Arena, ArenaLayout, freeze
from ludus.collector.commands import OpponentAssignment, PolicySpec
from ludus.collector.messages import Kind, pack_numbered
from ludus.collector.segments import Segments
from ludus.collector.weights import WeightBuffers
from ludus.protocol.environment_parameters import ParameterValue
from ludus.protocol.spec import BehaviorSpec
from worker.collectors.processes import Collector, CollectorProcesses
from worker.collectors.step_quota import Grant, StepQuota
from worker.experience.blocks import BlockLedger

BLOCK_CHUNK = 512
"""Blocks that are lent at a time, at most. Few, because those that were used last are lent first and are still in the
cache."""
FEWEST_BLOCKS = 64
CHUNK_BYTES = 32 << 20
"""Blocks of pictures are lent in smaller numbers: what a collector holds becomes memory as it writes all of it in turn.
One that needs more, because more agents than that act at once, asks again."""


def rank_of(collector: int, ranks: int) -> int:
    """Return which of the trainer's ranks learns from a collector's steps."""
    return collector % ranks


def block_chunk(layout: ArenaLayout) -> int:
    """Return how many blocks are lent at a time."""
    return max(FEWEST_BLOCKS, min(BLOCK_CHUNK, CHUNK_BYTES // layout.block_bytes))


class RegisteredBehavior:
    """A registered behavior: weights, quotas, blocks and frozen policies of its collectors."""

    def __init__(
        self,
        runner: int,
        spec: BehaviorSpec,
        policy: PolicySpec,
        arena: Arena,
        children: CollectorProcesses,
        evaluated: Sequence[npt.NDArray[np.float32]] = (),
        ranks: int = 1,
    ) -> None:
        """Each of `ranks` collects an equal part of a round, with the collectors that are its own."""
        self.name = spec.behavior
        self.ledger = BlockLedger(arena.layout.blocks)
        self._runner = runner
        self._policy = policy
        self._arena = arena
        self._children = children
        self.quotas = [StepQuota() for _ in range(ranks)]
        """Of each rank."""
        self._collected: list[tuple[int, int]] = []
        """Round and steps of the ranks whose parts of the round are complete."""
        self._weights = WeightBuffers.create(policy.weights_size, len(children))
        self._version = -1
        """Newest published version; -1 = none."""
        self._index = -1
        """Buffer that holds it."""
        self._reading: dict[int, int] = {}
        """Collector -> buffer that was offered to it and that it has not acknowledged."""
        self._offered: dict[int, int] = {}
        """Collector -> newest version that was offered to it."""
        self._chunk = block_chunk(arena.layout)
        self._starving: set[int] = set()
        """Collectors that asked for blocks when none was free."""
        self._recorded = not policy.evaluated
        self._assignment: OpponentAssignment | None = None
        self._frozen = {key: freeze(weights) for key, weights in enumerate(evaluated)}
        """Key -> descriptor of the weights, of all policies that the assignment names, or that an assessment is about.
        """

    def introduce(self, child: Collector) -> None:
        """Make the behavior known to a collector."""
        message = commands.Admit(
            runner=self._runner,
            arena=self._arena.layout,
            policy=self._policy,
            weight_buffers=self._weights.layout.buffers,
            low_blocks=self._chunk // 2,
        )
        if self._policy.evaluated:
            self._children.send_message(child, message, (self._arena.fd, *self._frozen.values()))
            return
        self._children.send_message(child, message, (self._arena.fd, self._weights.fd))
        self.lend_blocks(child)
        if self._version >= 0:
            self._offer_weights(child)
        if not self._recorded:
            self._children.send_message(child, commands.Unrecorded(self._runner))
        if self._assignment is not None:
            self._send_assignment(child, self._assignment, self._frozen)
        self._send_grants(self._quota(child).add(child.index))

    def forget(self, child: Collector) -> int:
        """Take back the blocks and quota of a dead collector; return how many steps of the round are lost."""
        self.ledger.reclaim_from(child.index)
        self._starving.discard(child.index)
        self._offered.pop(child.index, None)
        if child.index in self._reading:
            self._weights.release(self._reading.pop(child.index))
        return self._quota(child).remove(child.index)

    def close(self) -> None:
        """Give the weights up. The collectors have ended."""
        self._weights.close()
        for fd in self._frozen.values():
            os.close(fd)

    def publish(self, version: int, weights: npt.NDArray[np.float32]) -> None:
        """Make newer weights act."""
        self._index = self._weights.write(version, weights)
        self._version = version
        for child in self._children.listening:
            self._offer_weights(child, later=True)

    def weights_read(self, child: Collector) -> None:
        """Release the buffer that a collector has read, and offer it newer weights."""
        self._weights.release(self._reading.pop(child.index))
        self._offer_weights(child)

    def _offer_weights(self, child: Collector, *, later: bool = False) -> None:
        """Send a collector the buffer of the newest weights, unless it is still reading others.

        `later`: with the grant of the next round. In lockstep weights alone would wake a collector for nothing.
        """
        if child.index in self._reading or self._offered.get(child.index) == self._version:
            return
        self._weights.hold(self._index)
        self._reading[child.index] = self._index
        self._offered[child.index] = self._version
        self._children.send_message(child, commands.Weights(self._runner, self._index, self._version), later=later)

    def grant(self, number: int, steps: int, ahead: int | None) -> None:
        """Begin a round; see `CollectorPool.grant`."""
        for quota in self.quotas:
            self._send_grants(quota.grant(number, -(-steps // len(self.quotas)), ahead))

    def quota_progress(self, child: Collector, message: messages.QuotaProgress) -> None:
        """Record progress; extend a quota that is used, if the round is not complete."""
        quota = self._quota(child)
        self._send_grants(quota.progress(child.index, message.round, message.steps, used=message.used))

    def collected(self) -> tuple[int, int] | None:
        """Return (round, steps) once when the current round is complete. Collectors answer no more of it."""
        for quota in self.quotas:
            for index in quota.to_end():
                assert quota.number is not None
                self._children.send_message(self._children[index], commands.EndRound(self._runner, quota.number))
            part = quota.collected()
            if part is not None:
                self._collected.append(part)
        if len(self._collected) < len(self.quotas):
            return None
        number, steps = self._collected[0][0], sum(steps for _, steps in self._collected)
        self._collected.clear()
        return number, steps

    def _quota(self, child: Collector) -> StepQuota:
        return self.quotas[rank_of(child.index, len(self.quotas))]

    def stop_recording(self) -> None:
        """Answer all agents without limits and without recording."""
        self._recorded = False
        self._children.broadcast(commands.Unrecorded(self._runner))

    def _send_grants(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            message = commands.GrantSteps(
                self._runner, grant.round, grant.steps, grant.size, grant.report_every, self._version, grant.ahead
            )
            self._children.send_message(self._children[grant.collector], message)

    def delivered(self, child: Collector, segments: Segments) -> Segments:
        """Take segments over; return them, each with the round that it counts into."""
        self.ledger.deliver(child.index, segments.blocks.tolist())
        columns = segments.column("round").tolist(), segments.column("length").tolist()
        quota = self._quota(child)
        return segments.of_rounds([quota.delivered(child.index, *pair) for pair in zip(*columns, strict=True)])

    def reclaim(self, segments: Segments) -> None:
        """Free the blocks of delivered segments, for those who starve first."""
        self.ledger.reclaim(segments.blocks.tolist())
        for index in list(self._starving):
            self.lend_blocks(self._children[index])

    def lend_blocks(self, child: Collector) -> None:
        """Give a collector blocks to write, now or when there are some."""
        blocks = self.ledger.lend(child.index, self._chunk)
        if len(blocks):
            self._starving.discard(child.index)
            self._children.send(child, Kind.BLOCKS, pack_numbered(self._runner, blocks.tobytes()))
        else:
            self._starving.add(child.index)

    def assign_opponents(self, assignment: OpponentAssignment, weights: Mapping[int, npt.NDArray[np.float32]]) -> None:
        """Set the learning team and the policies of the others; `weights` has those that are new."""
        named, frozen = assignment.keys, self._frozen
        expected = self._policy.weights_size
        for key in named - frozen.keys():
            if weights[key].shape != (expected,):
                raise ValueError(f"policy {key} has {weights[key].size} weights, {self.name} takes {expected}")
        new = {key: freeze(weights[key]) for key in sorted(named - frozen.keys())}
        self._children.retire([frozen[key] for key in frozen if key not in named])
        self._frozen = {key: fd for key, fd in (frozen | new).items() if key in named}
        self._assignment = assignment
        for child in self._children.listening:
            self._send_assignment(child, assignment, new)

    def begin_evaluation(
        self, session_id: str, episode_batch: int, team: int | None, parameters: Mapping[str, ParameterValue]
    ) -> None:
        """Begin an evaluation batch on a simulator, if it is connected."""
        message = commands.BeginEvaluation(self._runner, session_id, episode_batch, team, parameters)
        for child in self._children.listening:
            if session_id in child.simulators:
                self._children.send_message(child, message)

    def _send_assignment(self, child: Collector, assignment: OpponentAssignment, fresh: Mapping[int, int]) -> None:
        """Send a collector the opponents; `fresh` are those that it does not know."""
        for key, fd in fresh.items():
            self._children.send_message(child, commands.FrozenPolicy(self._runner, key), (fd,))
        self._children.send_message(child, commands.Opponents(self._runner, assignment))
