"""`run_logs/training_status.json`: checkpoints, lessons and ratings, as ML-Agents keeps them.

ML-Agents reads the file with `--resume` and refuses unknown keys in its metadata; so there are none of Ludus' own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ludus.protocol.options import ML_AGENTS_VERSION

FORMAT_VERSION = "0.3.0"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class SavedModel:
    """One checkpoint of a behavior, with the files that are on this machine."""

    steps: int
    file_path: str
    """The ONNX model."""
    reward: float | None
    """Mean return of the last episodes before it, or of an evaluation; None without any."""
    creation_time: float
    """Seconds since 1970-01-01 UTC."""
    auxiliary_file_paths: Sequence[str] = ()

    def to_json(self, file_path: str | None = None) -> dict[str, Any]:
        """Return the form that is stored, `auxillary` as ML-Agents spells it; `file_path` names a copy instead."""
        return {
            "steps": self.steps,
            "file_path": file_path or self.file_path,
            "reward": self.reward,
            "creation_time": self.creation_time,
            "auxillary_file_paths": list(self.auxiliary_file_paths),
        }


@dataclass(frozen=True)
class BehaviorStatus:
    """Checkpoints and rating of one behavior."""

    checkpoints: Sequence[SavedModel]
    """Oldest first."""
    final_model: str | None = None
    """The copy of the last model; None while it trains."""
    elo: float | None = None
    """Rating in self-play."""


def training_status(behaviors: Mapping[str, BehaviorStatus], lessons: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of the file. `lessons` has the present lesson of each environment parameter, from 0."""
    written: dict[str, Any] = {name: {"lesson_num": number} for name, number in lessons.items()}
    for name, behavior in behaviors.items():
        entry: dict[str, Any] = {} if behavior.elo is None else {"elo": behavior.elo}
        entry["checkpoints"] = [each.to_json() for each in behavior.checkpoints]
        if behavior.checkpoints and behavior.final_model is not None:
            entry["final_checkpoint"] = behavior.checkpoints[-1].to_json(behavior.final_model)
        written[name] = written.get(name, {}) | entry
    written["metadata"] = {
        "stats_format_version": FORMAT_VERSION,
        "mlagents_version": ML_AGENTS_VERSION,
        "torch_version": installed("torch"),
    }
    return written


def installed(package: str) -> str:
    """Return the version of a package on this machine, or `unknown` where it isn't there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return UNKNOWN
