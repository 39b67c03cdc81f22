"""Events of runs."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ludus.schemas.states import RunState


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a run."""

    seq: int
    """Counts 1, 2, 3, ... per run. Gaps are routine events that retention has deleted."""
    at: datetime
    attempt: int | None = None
    """Number of the attempt that it concerns; null where none does."""
    type: str
    """Past tense: `run_created`, `simulator_left`, `checkpoint_saved`."""
    level: str
    """`debug`, `info`, `warning` or `error`."""
    message: str
    """A sentence for people."""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProjectEvent(Event):
    """Something that happened to a run, among the events of all runs of a project."""

    run_id: str
    run_name: str
    """The run's name when the message was made."""
    state: RunState
    """The run's state when the message was made."""
