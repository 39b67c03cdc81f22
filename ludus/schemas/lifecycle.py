"""What was asked of a run while it goes on: changes of its configuration, checkpoints."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Change:
    """One key of a run's configuration that was changed. `path`: dotted keys."""

    path: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Amendment:
    """One change of a run's configuration; `applied` says whether a trainer goes on with it."""

    seq: int
    changes: tuple[Change, ...]
    applied: bool
    created_at: datetime


@dataclass(frozen=True)
class Amendments:
    """How a run's configuration came to be what it is."""

    original_config: dict[str, Any]
    config: dict[str, Any]
    amendments: tuple[Amendment, ...] = ()


@dataclass(frozen=True)
class CheckpointRequest:
    """A request for a checkpoint now. Answered, it has a `checkpoint_id`, or a `problem` that says why not."""

    run_id: str
    seq: int
    created_at: datetime
    answered_at: datetime | None = None
    checkpoint_id: str | None = None
    problem: str | None = None
