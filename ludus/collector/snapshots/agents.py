"""Snapshots of the agents of one session with their open segments.

None of the agents acts when the snapshot is taken (`Agents.is_at_rest`). It is part of a `SessionSnapshot`. They are
restored once a round has been granted in which they can go on.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ludus.collector.agent_queue import AgentQueue, Batch, Part
from ludus.collector.agents import WAITING, AgentIndex, Agents, Slots
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.segment_builder import LENGTH
from ludus.collector.snapshots.state import State

COLUMNS = (
    *("records", "state", "memory", "returns", "group_returns", "decisions", "steps"),
    *("began", "told", "parameter_set"),
)
"""The columns of `Agents` that are kept, beside the steps of their open segments."""


def snapshot(recorder: TrajectoryRecorder, agent_index: AgentIndex) -> State:
    """Return a session's agents, and the steps of their open segments, as copies."""
    agents, slots = recorder.agents, agent_index.slots
    rows = _rows_of(recorder, slots)
    return {
        "limit": agent_index.limit,
        "former_steps": agent_index.former_steps,
        "slots": slots.astype(np.int64),
        **{name: getattr(agents, name)[slots] for name in COLUMNS},
        "steps_of_segments": [column[rows] for column in recorder.arena.columns],
    }


def waiting_of(agents: State) -> set[int]:
    """Return the ids of the agents that waited."""
    ids: set[int] = set(agents["records"][agents["state"] == WAITING, 1].tolist())
    return ids


def restore_returning(queue: AgentQueue) -> int:
    """Restore all sessions that return to a queue, once there are a round and room for their segments.

    The agents that ask wait in the queue then. Returns how many blocks the segments of sessions that wait on need.
    """
    recorder, rows = queue.recorder, queue.recorder.arena.layout.rows
    blocks = sum(int((-(-returning.saved["records"][:, LENGTH] // rows)).sum()) for returning in queue.returning)
    if queue.recorded and (recorder.quota.number is None or blocks > len(recorder.segments.blocks)):
        return blocks
    ready, queue.returning = queue.returning, []
    for member, agent_index, step_id, decisions, saved in ready:
        restore(recorder, agent_index, saved)
        if decisions is not None:
            slots = recorder.agents.slots(agent_index, decisions.agent_ids)
            part = Part(member, agent_index, step_id, len(slots), int(recorder.agents.tick[slots[0]]))
            queue.waiting.append(Batch([part], slots, decisions.observations, decisions.action_masks))
    if not queue.recorded:
        recorder.stop_recording()
    return 0


def restore(recorder: TrajectoryRecorder, agent_index: AgentIndex, saved: State) -> None:
    """Restore the agents of a session, in the slots that they had if those are free.

    Open segments whose round is over or has no room for them any more, and those that are longer than a segment may be
    now, are dropped; their episodes go on.
    """
    agents, segments = recorder.agents, recorder.segments
    agent_index.limit, agent_index.former_steps = saved["limit"], saved["former_steps"]
    former = saved["slots"].tolist()
    if set(agents.free).issuperset(former):
        agents.free = [slot for slot in agents.free if slot not in set(former)]
        slots = np.array(former, np.intp)
    else:
        while len(agents.free) < len(former):
            agents.grow(2 * len(agents.state))
        slots = np.array([agents.free.pop() for _ in former], np.intp)
    for name in COLUMNS:
        getattr(agents, name)[slots] = saved[name]
    agents.owner[slots], agents.simulator[slots] = agent_index.number, agent_index.simulator
    agents.row[slots] = recorder.arena.layout.scratch_row
    if len(slots):
        agent_index.parameter_set = int(agents.told[slots[0]])
    agent_index.table = dict(zip(agents.agent[slots].tolist(), slots.tolist(), strict=True))
    agents.new_episodes += int(((agents.began[slots] < 0) & (agents.state[slots] == WAITING)).sum())
    agents.grouped |= bool(agents.group[slots].any())
    begin = 0
    for slot, length, number in zip(slots.tolist(), *saved["records"][:, 5:7].T.tolist(), strict=True):
        if 0 < length <= segments.horizon and recorder.quota.take_restored(number, length):
            used = -(-length // recorder.arena.layout.rows)
            agents.blocks[slot, :used] = [segments.blocks.pop() for _ in range(used)]
            rows = _rows_of(recorder, np.array([slot], np.intp))
            for column, values in zip(recorder.arena.columns, saved["steps_of_segments"], strict=True):
                column[rows] = values[begin : begin + length]
            agents.row[slot] = rows[-1]
            segments.longest, segments.round = max(segments.longest, length), None
        else:
            agents.length[slot] = 0
        begin += length


def slots_in_order(agents: Agents) -> list[int]:
    """Return the slots in the order in which agents get them, last one first; those of present agents are the first."""
    return [*np.flatnonzero(agents.state).tolist(), *agents.free]


def restore_order(agents: Agents, slots: Sequence[int]) -> None:
    """Give slots away in this order from now on. Only while no agent has one."""
    if len(slots) > len(agents.state):
        agents.grow(len(slots))
    agents.free = list(slots)


def _rows_of(recorder: TrajectoryRecorder, slots: Slots) -> npt.NDArray[np.int64]:
    """Return the arena rows of the open segments of some agents, segment by segment."""
    agents, layout = recorder.agents, recorder.arena.layout
    rows = [np.zeros(0, np.int64)]
    for slot in slots.tolist():
        steps = np.arange(int(agents.length[slot]))
        rows.append(agents.blocks[slot, steps // layout.rows] * layout.stride + steps % layout.rows)
    return np.concatenate(rows)
