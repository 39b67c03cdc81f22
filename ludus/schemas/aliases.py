"""Aliases: names of checkpoints that can be moved."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Alias:
    """A name of a checkpoint that can be moved to another one."""

    name: str
    """Unique in its project."""
    project: str = "default"
    checkpoint_id: str
    version: int
    """Number of moves, counted from 1."""
    created_at: datetime
    moved_at: datetime
