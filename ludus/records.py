"""What the HTTP API returns, as frozen dataclasses. Times are aware datetimes in UTC.

A field that the server adds later is ignored by older clients; a field that is missing takes its default.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")


@dataclass(frozen=True)
class ProblemDetail:
    """One mistake of a refused request: where, which (stable code), and what to do, for people."""

    path: str
    code: str
    message: str
    location: str = "body"
    """`config`, `body`, `query`, `path` or `header`: what `path` is a path in."""


@dataclass(frozen=True)
class Run:
    """One job. `config` is absent in lists."""

    id: str
    kind: str
    name: str
    tags: tuple[str, ...]
    state: str
    seed: int
    priority: int
    epoch: int
    step: int
    restarts_without_progress: int
    created_at: datetime
    updated_at: datetime
    stop_reason: str | None = None
    stop_detail: str | None = None
    intent: str | None = None
    config_name: str | None = None
    config_version: int | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True)
class ConfigWarning:
    """Something in a configuration that is legal but probably not meant."""

    path: str
    code: str
    message: str


@dataclass(frozen=True)
class PlannedRun:
    """What a run would be: the answer to `validate_only`."""

    kind: str
    name: str | None
    tags: tuple[str, ...]
    priority: int
    config: dict[str, Any]
    config_name: str | None = None
    config_version: int | None = None
    warnings: tuple[ConfigWarning, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One execution of a run by one worker."""

    epoch: int
    worker_id: str
    step: int
    started_at: datetime
    heartbeat_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    detail: str | None = None
    resumed_from: str | None = None
    endpoints: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Event:
    """Something that happened to a run. `seq` counts 1, 2, 3, ... without gaps."""

    seq: int
    at: datetime
    type: str
    level: str
    message: str
    epoch: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Metric:
    """The newest value of a metric. `behavior` is empty for metrics of the run as a whole."""

    behavior: str
    key: str
    step: int
    value: float | None
    at: datetime


@dataclass(frozen=True)
class Series:
    """A metric over time in columns, ascending by step; where it was thinned, each entry stands for several points."""

    behavior: str
    key: str
    total: int
    """Points that were recorded."""
    steps: tuple[int, ...]
    """Of each entry's last point, as are the times."""
    times: tuple[datetime, ...]
    values: tuple[float | None, ...]
    """Means of the entry's points; None where none is a number."""
    minima: tuple[float | None, ...]
    maxima: tuple[float | None, ...]
    counts: tuple[int, ...]


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


@dataclass(frozen=True)
class Demonstration:
    """A recording of good behavior. `summary`, absent in lists, has episodes, returns and histograms of actions."""

    id: str
    name: str
    behavior: str
    format: str
    spec: dict[str, Any]
    transitions: int
    episodes: int
    mean_return: float | None
    size: int
    sha256: str
    origin: dict[str, Any]
    created_at: datetime
    summary: dict[str, Any] | None = None


@dataclass(frozen=True)
class Log:
    """A log file of an attempt; `size` in bytes."""

    epoch: int
    name: str
    size: int
    updated_at: datetime


@dataclass(frozen=True)
class LogText:
    """A part of a log. Offsets and sizes are in bytes of the file."""

    text: str
    offset: int
    next_offset: int
    size: int


@dataclass(frozen=True)
class Simulator:
    """One connection of a game process."""

    incarnation: str
    number: int
    label: str
    client: str
    peer: str
    state: str
    epoch: int
    relayed: bool
    behaviors: tuple[str, ...]
    agents: int
    steps: int
    joined_at: datetime
    collector: int | None = None
    connected_at: datetime | None = None
    left_at: datetime | None = None
    leave_code: str | None = None
    leave_reason: str | None = None


@dataclass(frozen=True)
class Worker:
    """One slot of a worker host."""

    id: str
    host: str
    pid: int
    version: str
    started_at: datetime
    heartbeat_at: datetime
    labels: tuple[str, ...] = ()
    resources: dict[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    last_claim_at: datetime | None = None
    stopped_at: datetime | None = None


@dataclass(frozen=True)
class ConfigSummary:
    """One version of a stored configuration, without its content."""

    name: str
    version: int
    description: str
    digest: str
    created_at: datetime


@dataclass(frozen=True)
class ConfigVersion:
    """One immutable version of a stored configuration: as it was sent, and with every default filled in."""

    name: str
    version: int
    description: str
    digest: str
    created_at: datetime
    source: str
    resolved: dict[str, Any]


@dataclass(frozen=True)
class ConfigChange:
    """One difference: a key was `added`, `removed` (`old` is its value) or `changed`."""

    path: str
    kind: str
    old: Any = None
    new: Any = None


@dataclass(frozen=True)
class ConfigDiff:
    """Differences between the resolved forms of two versions."""

    name: str
    old: int
    new: int
    changes: tuple[ConfigChange, ...]


def read_record(kind: type[Record], data: Any) -> Record:
    """Build a record from its JSON form. Raises ValueError if it isn't one."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{type(data).__name__} is no {kind.__name__}")  # noqa: TRY004  # one error for all of it
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    values = {name: _convert(hints[name], value) for name, value in data.items() if name in hints}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _convert(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) in {Union, UnionType}:
        return _convert(next(member for member in get_args(hint) if member is not type(None)), value)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_convert(get_args(hint)[0], item) for item in value)
    if hint is datetime:
        return datetime.fromisoformat(str(value))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_record(hint, value)
    return value
