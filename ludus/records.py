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
    owner: str | None = None
    """Whom it counts for where workers are shared. Absent in lists."""
    waits_for: str | None = None
    """Why no worker can take it, where it waits in vain. Absent in lists."""
    config: dict[str, Any] | None = None
    project: str = "default"


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
    owner: str = ""


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
    """Points that the entries stand for."""
    steps: tuple[int, ...]
    """Of each entry's last point, as are the times."""
    times: tuple[datetime, ...]
    values: tuple[float | None, ...]
    """Means of the entry's points; None where none is a number."""
    minima: tuple[float | None, ...]
    maxima: tuple[float | None, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class EnvironmentParameter:
    """Where one environment parameter of a run is in its lessons."""

    name: str
    lesson: int
    """Number of the present lesson, counted from 1."""
    lessons: int
    lesson_name: str
    value: float | dict[str, Any]
    """A number, or a sampler as in configurations."""
    waits_for: str
    """A sentence: the lesson, and what has to happen before it ends."""
    measure: str | None = None
    measured: float | None = None
    """The newest measure, smoothed if that is asked for."""
    threshold: float | None = None
    episodes: int = 0
    """Finished episodes (of a metric: values) of this lesson that the measure is made of."""
    min_lesson_length: int = 0


@dataclass(frozen=True)
class ParameterEdit:
    """A change that was asked for and not carried out yet."""

    seq: int
    parameter: str
    change: dict[str, Any]
    """`lesson`, `value`, or both."""
    created_at: datetime


@dataclass(frozen=True)
class EnvironmentParameters:
    """The environment parameters of a run."""

    parameters: tuple[EnvironmentParameter, ...]
    pending: tuple[ParameterEdit, ...] = ()


@dataclass(frozen=True)
class Change:
    """One key of a run's configuration that was changed. `path`: dotted keys."""

    path: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Amendment:
    """One change of a run's configuration; `applied` says whether a trainer goes on with it."""

    seq: int
    changes: tuple[Change, ...]
    applied: bool
    created_at: datetime


@dataclass(frozen=True)
class Amendments:
    """How a run's configuration came to be what it is."""

    original_config: dict[str, Any]
    config: dict[str, Any]
    amendments: tuple[Amendment, ...] = ()


@dataclass(frozen=True)
class CheckpointRequest:
    """A request for a checkpoint now. Answered, it has a `checkpoint_id`, or a `problem` that says why not."""

    run_id: str
    seq: int
    created_at: datetime
    answered_at: datetime | None = None
    checkpoint_id: str | None = None
    problem: str | None = None


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
class Alias:
    """A name that stands for a checkpoint and can be moved."""

    name: str
    checkpoint_id: str
    version: int
    created_at: datetime
    moved_at: datetime


@dataclass(frozen=True)
class MatchResult:
    """Where a match stands. `verdict` is `pass`, `fail` or `undecided`, None while it goes on; results are the
    candidate's.
    """

    kind: str
    behavior: str
    candidate: str
    champion: str
    games: int
    wins: int
    draws: int
    losses: int
    paired: bool
    llr: float
    llr_lower: float
    llr_upper: float
    elo0: float
    elo1: float
    alpha: float
    beta: float
    max_games: int
    verdict: str | None = None
    pairs: tuple[int, ...] | None = None
    score: float | None = None
    elo: float | None = None
    elo_low: float | None = None
    elo_high: float | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """Where an evaluation stands. `low` and `high` are the ends of the interval of the mean return."""

    kind: str
    behavior: str
    checkpoint: str
    episodes: int
    wanted: int
    seeded: bool
    confidence: float
    verdict: str | None = None
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    least: float | None = None
    most: float | None = None
    mean_length: float | None = None
    threshold: float | None = None


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
class Ladder:
    """A set of players that are compared with each other; `matches` is the number of the newest one."""

    id: str
    name: str
    description: str
    run_id: str | None
    """The run whose own ladder this is; None for one that was made to be shared."""
    initial_elo: float
    players: int
    matches: int
    rated_through: int
    """All matches up to this number are in ratings and payoffs."""
    created_at: datetime


@dataclass(frozen=True)
class Player:
    """A player of a ladder: a run's `policy`, a `snapshot` of it, a `checkpoint`, a `scripted` one or a `human`."""

    id: int
    name: str
    kind: str
    fixed: bool
    created_at: datetime
    run_id: str | None = None
    behavior: str | None = None
    snapshot: int | None = None
    checkpoint_id: str | None = None
    step: int | None = None


@dataclass(frozen=True)
class Rating:
    """How strong a player is: its Elo, and mean and deviation of what is believed of its strength."""

    id: int
    name: str
    kind: str
    fixed: bool
    """The ratings are given and never change."""
    elo: float
    mu: float
    sigma: float
    ordinal: float
    """mu - 3 sigma."""
    games: int
    run_id: str | None = None
    behavior: str | None = None
    snapshot: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class RatingSeries:
    """A player's ratings over its matches in columns, thinned to evenly spaced ones; the last entry is the newest."""

    id: int
    name: str
    total: int
    games: tuple[int, ...]
    matches: tuple[int, ...]
    steps: tuple[int | None, ...]
    times: tuple[datetime, ...]
    elo: tuple[float, ...]
    mu: tuple[float, ...]
    sigma: tuple[float, ...]


@dataclass(frozen=True)
class PayoffPlayer:
    """A row and column of a payoff matrix."""

    id: int
    name: str
    kind: str


@dataclass(frozen=True)
class Payoffs:
    """How each player did against each other one: rows against columns, in the players' order."""

    rated_through: int
    players: tuple[PayoffPlayer, ...]
    wins: tuple[tuple[int, ...], ...]
    draws: tuple[tuple[int, ...], ...]
    losses: tuple[tuple[int, ...], ...]
    games: tuple[tuple[int, ...], ...]
    scores: tuple[tuple[float | None, ...], ...]
    """Mean score, a draw being half a win; None where they never met."""


@dataclass(frozen=True)
class Seat:
    """One side of a match. `rank` 1 is best; equal ones drew."""

    player: int
    name: str
    team: int
    rank: int
    score: float | None = None
    step: int | None = None


@dataclass(frozen=True)
class Match:
    """A finished match. `seq` counts in the ladder, `number` among the run's matches of the behavior that learnt."""

    seq: int
    at: datetime
    outcome: str
    """Of the first seat: `win`, `draw` or `loss`."""
    truncated: bool
    rated: bool
    seats: tuple[Seat, ...]
    superseded_by: int | None = None
    run_id: str | None = None
    epoch: int | None = None
    behavior: str | None = None
    number: int | None = None
    simulator: int | None = None
    step: int | None = None
    elo: float | None = None


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
class Token:
    """A token, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    project: str
    """`*`: all projects."""
    created_by: str
    created_at: datetime
    run_id: str | None = None
    """The only run in which it may play."""
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute."""
    revoked_at: datetime | None = None
    token: str | None = field(default=None, repr=False)
    """What to send; only in the answer to its making."""


@dataclass(frozen=True)
class Identity:
    """Who makes a request; `scopes` with those that are included in others."""

    name: str
    scopes: tuple[str, ...]
    project: str
    """What it is bound to; `*`: nothing."""
    acts_in: str
    """The project of the request."""
    token_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True)
class AuditEntry:
    """A request that changed something, or tried to."""

    id: str
    at: datetime
    actor: str
    """Name of the token, or what else somebody was let in for."""
    project: str
    method: str
    route: str
    target: str
    request_id: str
    status: int
    client: str
    token_id: str | None = None


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


@dataclass(frozen=True)
class ConfigRewrite:
    """Something of an older configuration that is written otherwise now; `*` in a path stands for each behavior."""

    path: str
    to: str
    why: str
    old: Any = None
    """None where only the place changed, as `new`."""
    new: Any = None


@dataclass(frozen=True)
class ConfigDrop:
    """Something of an older configuration that the new one does not have."""

    path: str
    why: str
    value: Any = None


@dataclass(frozen=True)
class ConfigUpgrade:
    """A configuration in the format of today, as YAML, and what was done to it."""

    document: str
    unchanged: bool
    """It had the format of today already."""
    changes: tuple[ConfigRewrite, ...]
    dropped: tuple[ConfigDrop, ...]
    problems: tuple[ProblemDetail, ...]
    """What is left to do before a run can be made of it."""


@dataclass(frozen=True)
class Webhook:
    """An address that is told of events."""

    id: str
    url: str
    description: str
    events: tuple[str, ...]
    """Types of events; `*` stands for anything."""
    enabled: bool
    created_at: datetime
    updated_at: datetime
    run_id: str | None = None
    tag: str | None = None
    disabled_reason: str | None = None
    """`user`, `gone` (the receiver answered 410) or `failing`."""
    failing_since: datetime | None = None
    last_success_at: datetime | None = None
    former_until: datetime | None = None
    """Until then messages are signed with the secret before the present one, too."""
    secret: str | None = field(default=None, repr=False)
    """`whsec_...`; only in the answer that made it."""


@dataclass(frozen=True)
class DeliveryAttempt:
    """One try to deliver a message."""

    number: int
    at: datetime
    seconds: float
    status: int | None = None
    """Of HTTP; None where no answer came."""
    error: str | None = None
    """Why it failed; None where it succeeded."""
    response: str | None = None
    """How the receiver's answer began."""


@dataclass(frozen=True)
class Delivery:
    """A message for a webhook, and what became of it: `pending`, `succeeded` or `failed`."""

    id: str
    """The `webhook-id` of each attempt."""
    webhook_id: str
    type: str
    state: str
    attempts: int
    created_at: datetime
    run_id: str | None = None
    seq: int | None = None
    """The event's number in its run."""
    next_try_at: datetime | None = None
    ended_at: datetime | None = None
    log: tuple[DeliveryAttempt, ...] = ()
    payload: str | None = None
    """What is sent, byte for byte; absent in lists."""


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
