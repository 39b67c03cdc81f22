"""Events of runs."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a run."""

    seq: int
    """Counts 1, 2, 3, ... per run, without gaps."""
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
