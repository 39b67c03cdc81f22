"""A claim: the data that a worker gets with a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ludus.schemas.states import RunKind
from server.checkpoints.refs import CheckpointRef
from server.runs.amendments.refs import AmendmentRef

DEFAULT_RESTART_BUDGET = 3
"""Restarts without progress before a run counts as FAILED, where the settings say nothing else."""


@dataclass(frozen=True)
class Claim:
    """One attempt at a run, held by one worker under a lease."""

    run_id: str
    attempt: int
    """Fencing number: greater than that of every earlier attempt."""
    kind: RunKind
    name: str
    config: Mapping[str, Any]
    """Resolved configuration, with all amendments."""
    seed: int
    resume: CheckpointRef | None
    """Newest good checkpoint, None at the beginning."""
    worker_id: str
    amendments: tuple[AmendmentRef, ...] = ()
    """Changes of the configuration up to now; a checkpoint stores how many of them it includes."""
    recovers: bool = False
    """Whether the run was RECOVERING: an earlier attempt was interrupted."""
    waited_seconds: float = 0.0
    """How long the run has waited for this claim, on the database's clock: since it was queued, or since the last
    heartbeat of the attempt that was interrupted."""
