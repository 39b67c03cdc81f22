"""Sessions whose agents a runner restores from snapshots, once a round has been granted in which they can go on."""

from typing import NamedTuple

from ludus.collector.agents import AgentIndex
from ludus.collector.batch import Batch, Part, SessionCallbacks
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.snapshots.agents import AgentsSnapshot, blocks_of, restore
from ludus.protocol.batches import DecisionBatch
from ludus.protocol.codec import CloseCode, ProtocolError


class Returning(NamedTuple):
    """The agents of a session that goes on where it was in a checkpoint."""

    member: SessionCallbacks
    agent_index: AgentIndex
    step_id: int
    decisions: DecisionBatch | None
    """The agents that ask again; None where none waits."""
    agents: AgentsSnapshot


class ReturningSessions:
    """The sessions that wait to be restored in one runner."""

    def __init__(self) -> None:
        self._waiting: list[Returning] = []

    def add(self, returning: Returning) -> None:
        """Restore the agents of a session in a later turn."""
        self._waiting.append(returning)

    def has(self, agent_index: AgentIndex) -> bool:
        """Whether a session waits."""
        return any(each.agent_index is agent_index for each in self._waiting)

    def check(self, agent_index: AgentIndex) -> None:
        """Raise ProtocolError(decision_pending) if a session that sends a message waits."""
        if self.has(agent_index):
            message = "a simulator that goes on from a checkpoint sends nothing more before it is answered"
            raise ProtocolError(CloseCode.DECISION_PENDING, message)

    def drop(self, agent_index: AgentIndex) -> None:
        """Forget a session."""
        self._waiting = [each for each in self._waiting if each.agent_index is not agent_index]

    def blocks(self, recorder: TrajectoryRecorder) -> int:
        """Return how many blocks the open segments of all need."""
        return sum(blocks_of(each.agents, recorder.arena.layout) for each in self._waiting)

    def restore(self, recorder: TrajectoryRecorder, *, recorded: bool) -> list[Batch]:
        """Restore all sessions, once there are a round and room for their segments; return the agents that ask."""
        if not self._waiting:
            return []
        if recorded and (recorder.quota.number is None or self.blocks(recorder) > len(recorder.segments.blocks)):
            return []
        batches = []
        waiting, self._waiting = self._waiting, []
        for member, agent_index, step_id, decisions, saved in waiting:
            restore(recorder, agent_index, saved)
            if decisions is not None:
                slots = recorder.agents.slots(agent_index, decisions.agent_ids)
                part = Part(member, agent_index, step_id, len(slots), int(recorder.agents.tick[slots[0]]))
                batches.append(Batch([part], slots, decisions.observations, decisions.action_masks))
        if not recorded:
            recorder.stop_recording()
        return batches
