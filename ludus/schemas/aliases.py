"""Aliases: names of checkpoints that can be moved."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Alias:
    """A name that stands for a checkpoint and can be moved."""

    name: str
    checkpoint_id: str
    version: int
    created_at: datetime
    moved_at: datetime
    project: str = "default"
