"""The files of `run_logs` in the form of ML-Agents': `training_status.json` and `timers.json`.

ML-Agents reads the status (checkpoints, lessons and ratings) with `--resume` and refuses unknown keys in its metadata;
so there are none of Ludus' own.

In `timers.json` it times its own Python calls. Of a run on a server two durations are known, and the tree has those:
until training began, and training itself. A gauge is a metric's newest summary with the smallest and the largest one
(`.mean`); `.sum` exists if it is the same number, for `Step` and `Is Training`.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypeAlias

from ludus.protocol.options import COMMUNICATION_VERSION, ML_AGENTS_VERSION

Json: TypeAlias = dict[str, Any]

STATUS_VERSION: Final = "0.3.0"
TIMERS_VERSION: Final = "0.1.0"


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

    def to_json(self, file_path: str | None = None) -> Json:
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


def training_status(behaviors: Mapping[str, BehaviorStatus], lessons: Mapping[str, int]) -> Json:
    """Return the content of the file. `lessons` has the present lesson of each environment parameter, from 0."""
    written: Json = {name: {"lesson_num": number} for name, number in lessons.items()}
    for name, behavior in behaviors.items():
        entry: Json = {} if behavior.elo is None else {"elo": behavior.elo}
        entry["checkpoints"] = [checkpoint.to_json() for checkpoint in behavior.checkpoints]
        if behavior.checkpoints and behavior.final_model is not None:
            entry["final_checkpoint"] = behavior.checkpoints[-1].to_json(behavior.final_model)
        written[name] = written.get(name, {}) | entry
    written["metadata"] = {
        "stats_format_version": STATUS_VERSION,
        "mlagents_version": ML_AGENTS_VERSION,
        "torch_version": installed("torch"),
    }
    return written


def installed(package: str) -> str:
    """Return the version of a package on this machine; `unknown` without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Gauge:
    """A metric over the whole run."""

    behavior: str
    key: str
    value: float
    """The newest."""
    smallest: float
    largest: float
    count: int
    summed: bool = False
    """Whether the sum of a summary is its value."""


def timers(created: float, started: float, ended: float, gauges: Iterable[Gauge], command: str) -> Json:
    """Return the content of the file. `command` is the command line.

    The times of the run are in seconds since 1970-01-01 UTC; `started` equals `ended` if training never began.
    """
    written: Json = {}
    for gauge in gauges:
        name = f"{gauge.behavior}.{gauge.key}".replace("/", ".").replace(" ", "")
        content = {"value": gauge.value, "min": gauge.smallest, "max": gauge.largest, "count": gauge.count}
        written[f"{name}.mean"] = content
        if gauge.summed:
            written[f"{name}.sum"] = dict(content)
    setup, learning = started - created, ended - started
    return {
        "name": "root",
        "gauges": written,
        "metadata": {
            "timer_format_version": TIMERS_VERSION,
            "start_time_seconds": str(int(created)),
            "python_version": sys.version.replace("\n", ""),
            "command_line_arguments": command,
            "mlagents_version": ML_AGENTS_VERSION,
            "mlagents_envs_version": ML_AGENTS_VERSION,
            "communication_protocol_version": COMMUNICATION_VERSION,
            "pytorch_version": installed("torch"),
            "numpy_version": installed("numpy"),
            "end_time_seconds": str(int(ended)),
        },
        "total": setup + learning,
        "count": 1,
        "self": 0.0,
        "children": {
            "run_training.setup": {"total": setup, "count": 1, "self": setup},
            "TrainerController.start_learning": {"total": learning, "count": 1, "self": learning},
        },
    }
