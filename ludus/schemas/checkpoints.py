"""Checkpoints: of runs, and of other programs."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a checkpoint; `size` in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A complete state of a run, with its exported models."""

    id: str
    run_id: str
    epoch: int
    step: int
    steps: dict[str, int]
    reason: str
    size: int
    files: tuple[CheckpointFile, ...]
    created_at: datetime
    metrics: dict[str, Any] = field(default_factory=dict)
    deleted_at: datetime | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    merit: float | None = None
    pinned_at: datetime | None = None
    damaged_at: datetime | None = None
    damage: str | None = None


@dataclass(frozen=True)
class CheckpointVerified:
    """What became of a look into all files of a checkpoint; `bytes` were read."""

    checkpoint: Checkpoint
    sound: bool
    problems: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class PrunedCheckpoint:
    """A checkpoint that is deleted, or would be: because of its `age`, or of the `size` of all."""

    id: str
    run_id: str
    step: int
    size: int
    created_at: datetime
    rule: str


@dataclass(frozen=True)
class Pruned:
    """What was deleted, or would be (`dry_run`); `bytes` of all of them together."""

    dry_run: bool
    checkpoints: tuple[PrunedCheckpoint, ...]
    bytes: int


@dataclass(frozen=True)
class UploadedCheckpoint:
    """A checkpoint of ML-Agents that behaviors can begin with; `modules` are what its file says is in it."""

    id: str
    name: str
    behavior: str | None
    format: str
    modules: tuple[str, ...]
    file: str
    size: int
    sha256: str
    created_at: datetime
