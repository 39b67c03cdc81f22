"""Demonstrations: recordings of good behavior."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Demonstration:
    """A recording of good behavior. `summary`, absent in lists, has episodes, returns and histograms of actions."""

    id: str
    name: str
    behavior: str
    format: str
    spec: dict[str, Any]
    transitions: int
    episodes: int
    mean_return: float | None
    size: int
    sha256: str
    origin: dict[str, Any]
    created_at: datetime
    summary: dict[str, Any] | None = None
