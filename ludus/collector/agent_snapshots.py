"""Keeping: the agents of one session with their open segments, as copies for a checkpoint, and the way back.

None of them is out: their simulator is at rest (`Agents.is_at_rest`). What is kept is part of a `handover.KeptSession`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ludus.collector.agents import WAITING, AgentIndex
from ludus.collector.arena import ArenaLayout
from ludus.collector.recorder import TrajectoryRecorder
from ludus.collector.segment_builder import LENGTH

Kept = Mapping[str, Any]


def keep(recorder: TrajectoryRecorder, agent_index: AgentIndex) -> dict[str, Any]:
    """Return a session's agents, and the steps of their open segments, as copies."""
    slots = agent_index.slots
    return {
        "limit": agent_index.limit,
        "former_steps": agent_index.former_steps,
        "slots": slots.astype(np.int64),
        **recorder.agents.copies(slots),
        "steps_of_segments": recorder.segments.copies(slots),
    }


def waiting_of(kept: Kept) -> set[int]:
    """Return which agents waited when they were kept."""
    ids: set[int] = set(kept["records"][kept["state"] == WAITING, 1].tolist())
    return ids


def blocks_of(kept: Kept, layout: ArenaLayout) -> int:
    """Return how many blocks `take_over` needs."""
    return int((-(-kept["records"][:, LENGTH] // layout.rows)).sum())


def take_over(recorder: TrajectoryRecorder, agent_index: AgentIndex, kept: Kept) -> None:
    """Let a session's agents go on that `keep` returned in a former attempt.

    Open segments whose round is over or has no room for them any more, and those that are longer than a segment may be
    now, are dropped; their episodes go on.
    """
    agents, segments = recorder.agents, recorder.segments
    agent_index.limit, agent_index.former_steps = kept["limit"], kept["former_steps"]
    slots = agents.take_over(agent_index, kept["slots"].tolist(), kept)
    begin = 0
    for slot, length, number in zip(slots.tolist(), *kept["records"][:, 5:7].T.tolist(), strict=True):
        if 0 < length <= segments.horizon and recorder.quota.take_restored(number, length):
            segments.reopen(slot, length, [column[begin:] for column in kept["steps_of_segments"]])
        else:
            agents.length[slot] = 0
        begin += length
