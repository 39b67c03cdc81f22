"""Amendments as values: trainers take them without the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AmendmentRef:
    """One numbered change of a run's configuration."""

    seq: int
    changes: tuple[Mapping[str, Any], ...]
    """`path`, `old` and `new` of each key."""
