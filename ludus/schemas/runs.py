"""Runs, what a run would be, who executes them, and who plays in them."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class SelfPlay:
    """Where a run's self-play is."""

    learning_team: int
    elo: dict[str, float]
    """The present rating of each behavior's policy that learns."""


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
    """A label: of one token's runs, those of the owner with fewer in training go first. Absent in lists."""
    token_id: str | None = None
    """The token that created it, by which quotas count it. Absent in lists."""
    waits_for: str | None = None
    """What a run that does not go on waits for: simulators, a worker, or a slot and the runs that hold the slots."""
    needs_action: bool = False
    """Whether it goes on only when somebody acts. Absent in lists."""
    self_play: SelfPlay | None = None
    """None where no behavior has `self_play`, before the first turn, and in lists."""
    config: dict[str, Any] | None = None
    project: str = "default"
    metrics: dict[str, float | None] = field(default_factory=dict)
    """In lists: what was asked for, by the texts of `list_runs`."""


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
    fingerprint: dict[str, Any] | None = None
    """What it ran on: release, commit, libraries and hardware of the worker."""


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
