"""A claim: what a worker gets when a run is handed to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from server.checkpoints.refs import CheckpointRef
from server.runs.amendments.refs import AmendmentRef
from server.runs.states import RunKind

DEFAULT_RESTART_BUDGET = 3
"""Restarts without progress before a run counts as FAILED, where the settings say nothing else."""


@dataclass(frozen=True)
class Claim:
    """One attempt at a run, held by one worker under a lease."""

    run_id: str
    epoch: int
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
    """What users have changed in the configuration up to now; a checkpoint knows with how much of it it was written."""
