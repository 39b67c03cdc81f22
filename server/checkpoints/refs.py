"""Checkpoints as values: published by an attempt, resumed by the next one; their score, their files, their errors."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ludus.config.run import KeepBest
from ludus.schemas import OnnxModel, ScoredBy
from server.kit.artifacts.store import ArtifactStore, FileRef, digest_of
from server.kit.errors import ArtifactNotFound, Conflict, Invalid, NotFound


class CheckpointRequestNotFound(NotFound, code="checkpoint_request_not_found"):
    """The run has had no such request for a checkpoint."""

    run_id: str
    seq: int
    sentence = "Run {run_id} has had no request {seq} for a checkpoint. Ask for one with `:checkpoint`."


class CheckpointInUse(Conflict, code="checkpoint_in_use"):
    """An uploaded checkpoint cannot be deleted: a run that has not ended begins with it."""

    checkpoint_id: str
    run_id: str
    sentence = (
        "Checkpoint {checkpoint_id} is used by run {run_id}, which has not ended. Wait for its end, or cancel it, and "
        "delete the checkpoint then."
    )


class CheckpointInvalid(Invalid, code="invalid_checkpoint"):
    """An uploaded file is no checkpoint."""

    problem: str
    sentence = "The checkpoint cannot be used: {problem}."


class AliasNotFound(NotFound, code="alias_not_found"):
    """No checkpoint has this alias."""

    name: str
    sentence = (
        "There is no alias {name!r}. Make it with `ludus checkpoint alias set {name} RUN/latest`, or name a checkpoint "
        "by its id (ckpt_...) or as RUN/latest."
    )


class AliasMoved(Conflict, code="alias_moved"):
    """An alias does not name the expected checkpoint: another request has moved it."""

    name: str
    expected: str | None
    actual: str | None

    def _sentence(self) -> str:
        stands = "stands for nothing" if self.actual is None else f"stands for {self.actual}"
        return (
            f"The alias {self.name!r} {stands}, not for {self.expected or 'nothing'} as expected: it was left as it "
            "is. Compare with what it stands for now, or move it without `expected`."
        )


class AliasInvalid(Invalid, code="invalid_alias"):
    """A checkpoint cannot have this alias."""

    name: str
    sentence = "{name!r} cannot be an alias: it means a checkpoint anyway. Choose another name."


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


Scores = Mapping[str, Mapping[str, float]]
"""Behavior (empty for the run as a whole) -> metric -> value."""


def keep_best_of(config: Mapping[str, Any]) -> KeepBest | None:
    """Return what a run's stored configuration says of its best checkpoints."""
    rule = (config.get("checkpoint_settings") or {}).get("keep_best")
    return None if rule is None else KeepBest.model_validate(rule)


def overall_score(
    rule: KeepBest | None, scores: Scores, returns: Iterable[float | None], scored_by: Collection[ScoredBy]
) -> tuple[float | None, ScoredBy | None]:
    """Return how good a checkpoint is, higher is better, and by which measurement; None if it has no such score.

    Without a rule it is the mean over the behaviors of their `returns`, which `scored_by` describes.
    """
    if rule is None:
        return _mean(value for value in returns if value is not None), _joined(scored_by)
    behaviors = scores if rule.behavior is None else [rule.behavior]
    values = (scores.get(behavior, {}).get(rule.metric) for behavior in behaviors)
    score = _mean(value for value in values if value is not None)
    if score is None:
        return None, None
    return score if rule.mode == "max" else -score, ScoredBy(kind="metric", metric=rule.metric)


def _joined(measurements: Collection[ScoredBy]) -> ScoredBy | None:
    """Return the measurement of several behaviors together; None without any."""
    if not measurements:
        return None
    kinds = {measurement.kind for measurement in measurements}
    return ScoredBy(
        kind="evaluation" if kinds == {"evaluation"} else "episodes",
        episodes=sum(measurement.episodes or 0 for measurement in measurements),
        from_step=min(measurement.from_step or 0 for measurement in measurements),
    )


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return fmean(numbers) if numbers else None


def damage(store: ArtifactStore, checkpoint: CheckpointRef) -> list[str]:
    """Return, of each file that is not as it was stored, what is wrong with it. Raises StorageUnavailable."""
    problems = []
    for file in checkpoint.files:
        path = f"{checkpoint.path}/{file.name}"
        try:
            size = store.size(path)
            digest = digest_of(store, path) if size == file.size else ""
        except ArtifactNotFound:
            problems.append(f"{file.name} is missing")
            continue
        if size != file.size:
            problems.append(f"{file.name} has {size} bytes, not {file.size}")
        elif digest != file.sha256:
            problems.append(f"{file.name} has the SHA-256 {digest}, not {file.sha256}")
    return problems
