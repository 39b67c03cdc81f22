"""Sessions whose agents are restored from snapshots, once a round has been granted in which they can go on."""

from typing import NamedTuple

from ludus.collector.agent_queue import AgentQueue, Batch, Part, SessionCallbacks
from ludus.collector.agents import AgentIndex
from ludus.collector.snapshots.agents import AgentsSnapshot, blocks_of, restore
from ludus.protocol.batches import DecisionBatch
from ludus.protocol.codes import CloseCode, ProtocolError


class Returning(NamedTuple):
    """The agents of one behavior of a session that goes on where it was in a checkpoint."""

    queue: AgentQueue
    member: SessionCallbacks
    agent_index: AgentIndex
    step_id: int
    decisions: DecisionBatch | None
    """The agents that ask again; None where none waits."""
    agents: AgentsSnapshot


class ReturningSessions:
    """The sessions of one collector that wait to be restored."""

    def __init__(self) -> None:
        self._waiting: list[Returning] = []

    def add(self, returning: Returning) -> None:
        """Restore the agents of a session in a later turn."""
        self._waiting.append(returning)
        returning.queue.schedule()

    def has(self, agent_index: AgentIndex) -> bool:
        """Whether a session waits."""
        return any(returning.agent_index is agent_index for returning in self._waiting)

    def check(self, agent_index: AgentIndex) -> None:
        """Raise ProtocolError(decision_pending) if a session that sends a message waits."""
        if self.has(agent_index):
            message = "a simulator that goes on from a checkpoint sends nothing more before it is answered"
            raise ProtocolError(CloseCode.DECISION_PENDING, message)

    def drop(self, member: SessionCallbacks) -> None:
        """Forget a session."""
        self._waiting = [returning for returning in self._waiting if returning.member is not member]

    def restore(self, queue: AgentQueue) -> int:
        """Restore all sessions of a queue, once there are a round and room for their segments.

        The agents that ask wait in the queue then. Returns how many blocks the segments of sessions that wait on need.
        """
        ready = [returning for returning in self._waiting if returning.queue is queue]
        if not ready:
            return 0
        recorder = queue.recorder
        blocks = sum(blocks_of(returning.agents, recorder.arena.layout) for returning in ready)
        if queue.recorded and (recorder.quota.number is None or blocks > len(recorder.segments.blocks)):
            return blocks
        self._waiting = [returning for returning in self._waiting if returning.queue is not queue]
        for _, member, agent_index, step_id, decisions, saved in ready:
            if member.agent_indexes.get(agent_index.behavior) != (queue, agent_index):
                continue  # the team that learns has changed: a reset follows
            restore(recorder, agent_index, saved)
            if decisions is not None:
                slots = recorder.agents.slots(agent_index, decisions.agent_ids)
                part = Part(member, agent_index, step_id, len(slots), int(recorder.agents.tick[slots[0]]))
                queue.waiting.append(Batch([part], slots, decisions.observations, decisions.action_masks))
        if not queue.recorded:
            recorder.stop_recording()
        return 0
