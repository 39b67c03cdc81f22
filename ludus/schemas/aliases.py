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
    run_id: str
    """The run that saved the checkpoint."""
    step: int
    """Its agent steps, of all behaviors together."""
    version: int
    """Number of moves, counted from 1; goes on where the alias was deleted and set again."""
    created_at: datetime
    moved_at: datetime
    moved_by: str | None = None
    """Name of the token that moved it last; null where that is not known."""


@dataclass(frozen=True, kw_only=True)
class AliasMove:
    """One move of an alias, or its deletion."""

    alias: str
    project: str = "default"
    version: int
    """Number of the move, counted from 1."""
    checkpoint_id: str | None
    """The checkpoint from then on, which may since have been deleted; null: the alias was deleted."""
    moved_at: datetime
    moved_by: str | None = None
    """Name of the token; null for moves from before this history was kept."""
