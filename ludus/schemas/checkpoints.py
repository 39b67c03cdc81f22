"""Checkpoints: of runs, and uploaded ones."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class OnnxTensor:
    """An input or output of an ONNX model."""

    name: str
    dtype: str
    """As numpy names it: `float32`, `int64`."""
    shape: tuple[int | str, ...]
    """A text names a dimension that the caller chooses: `batch`, the number of agents."""


@dataclass(frozen=True, kw_only=True)
class OnnxModel:
    """Inputs, outputs and actions of an ONNX model, for the game that loads it."""

    behavior: str
    opset: int
    inputs: tuple[OnnxTensor, ...]
    """In order; `obs_0`, `obs_1`, ... are the behavior's observations in its own order."""
    outputs: tuple[OnnxTensor, ...]
    """In order."""
    continuous_actions: int
    """Number of continuous actions."""
    discrete_branches: tuple[int, ...]
    """Number of choices of each discrete branch."""
    action_masks: bool
    """Whether it takes masks of discrete actions: the input `action_masks`."""
    memory_size: int
    """Width of the memory of a recurrent policy (`recurrent_in`, `recurrent_out`); 0 without one."""


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """One file of a checkpoint."""

    name: str
    size: int
    """Bytes."""
    sha256: str
    """Lower-case hexadecimal; also the ETag of the download."""
    model: OnnxModel | None = None
    """Of an ONNX model; null for other files, and in checkpoints of earlier releases."""


@dataclass(frozen=True, kw_only=True)
class ScoredBy:
    """The measurement behind a score."""

    kind: Literal["episodes", "evaluation", "metric"]
    """`episodes`: the last training episodes before the checkpoint; `evaluation`: episodes of its policy alone;
    `metric`: the number that `keep_best` names."""
    metric: str = "Environment/Cumulative Reward"
    episodes: int | None = None
    """Episodes whose mean return it is; null for a metric."""
    from_step: int | None = None
    """Agent steps of the behavior when the first of them ended; null for a metric."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete state of a run, with its exported models."""

    id: str
    run_id: str
    attempt: int
    """Number of the attempt that saved it."""
    step: int
    """Agent steps of all behaviors together."""
    steps: dict[str, int]
    """Agent steps per behavior."""
    reason: str
    """`interval`, `final` or `requested`."""
    size: int
    """Bytes of all files."""
    files: tuple[CheckpointFile, ...]
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Per behavior: mean return of the last episodes before it, or of an evaluation (`scored_by`)."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Per behavior (empty: the run as a whole): metrics when the checkpoint was saved, and those of evaluations."""
    score: float | None = None
    """Value by which `best` is chosen, higher is better: the score that `keep_best` names (negated if less is better),
    or the mean of `metrics`."""
    scored_by: ScoredBy | None = None
    """The measurement that `score` is; null without a score, and in checkpoints of earlier releases, whose score is the
    mean return since the checkpoint before."""
    created_at: datetime
    pinned_at: datetime | None = None
    """Since when it is exempt from retention."""
    damaged_at: datetime | None = None
    """When a file was found missing or altered."""
    damage: str | None = None
    """The damaged file, and its problem."""
    deleted_at: datetime | None = None
    """When retention deleted it."""


@dataclass(frozen=True, kw_only=True)
class CheckpointVerified:
    """Result of comparing the checksums of all files of a checkpoint."""

    checkpoint: Checkpoint
    sound: bool
    """Whether every file is as it was stored."""
    problems: tuple[str, ...]
    """One sentence for each file that is not."""
    bytes: int
    """Bytes that were read."""


@dataclass(frozen=True, kw_only=True)
class PrunedCheckpoint:
    """A checkpoint that was deleted, or would be."""

    id: str
    run_id: str
    step: int
    size: int
    """Bytes."""
    created_at: datetime
    rule: Literal["age", "size"]
    """The rule that it violates."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """Checkpoints that were deleted, or would be."""

    dry_run: bool
    checkpoints: tuple[PrunedCheckpoint, ...]
    bytes: int
    """Of all of them together."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRequest:
    """A request for a checkpoint now."""

    run_id: str
    seq: int
    """Counts 1, 2, 3, ... per run."""
    created_at: datetime
    answered_at: datetime | None = None
    """Null until the trainer has written it."""
    checkpoint_id: str | None = None
    """The checkpoint, once it is stored."""
    problem: str | None = None
    """Why there is none, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class UploadedCheckpoint:
    """A checkpoint that was uploaded, for behaviors to begin with (`initialize_from`)."""

    id: str
    name: str
    """For people; not unique."""
    behavior: str | None = None
    """The behavior that it was trained for, if the upload named one."""
    format: str
    """`mlagents`: a `checkpoint.pt`; `ludus`: the format of `ludus learn`, a whole checkpoint of a run."""
    modules: tuple[str, ...]
    """Names of the modules in the file, as in `Policy`, `Optimizer:critic`."""
    file: str
    """Name of the file in the artifact store."""
    size: int
    """Bytes of the file."""
    sha256: str
    """Of the file, lower-case hexadecimal."""
    project: str = "default"
    created_at: datetime
