"""Checkpoints as values: published by an attempt, and resumed by the next one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ludus.schemas import OnnxModel, ScoredBy
from server.kit.artifacts.store import FileRef


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint whose files are published and that gets its row now."""

    step: int
    """Agent steps of all behaviors together."""
    steps: Mapping[str, int]
    """Agent steps per behavior."""
    reason: str
    """`interval`, `final` or `requested`."""
    path: str
    """Its folder in the artifact store."""
    files: Sequence[FileRef]
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Per behavior: mean return of the episodes that `scored_by` describes, or None."""
    scored_by: Mapping[str, ScoredBy] = field(default_factory=dict)
    models: Mapping[str, OnnxModel] = field(default_factory=dict)
    """Descriptions of the ONNX models among the files, by their names."""


@dataclass(frozen=True)
class CheckpointRef:
    """A published checkpoint."""

    id: str
    attempt: int
    step: int
    steps: Mapping[str, int]
    path: str
    files: tuple[FileRef, ...]
