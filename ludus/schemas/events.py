"""Events of runs."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened to a run. `seq` counts 1, 2, 3, ... without gaps."""

    seq: int
    at: datetime
    type: str
    level: str
    message: str
    epoch: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
