"""Worker hosts."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One slot of a worker host."""

    id: str
    host: str
    pid: int
    version: str
    labels: tuple[str, ...] = ()
    resources: dict[str, Any] = field(default_factory=dict)
    """For instance `{"gpus": ["GPU-5d2f..."]}`."""
    run_id: str | None = None
    """The run that it executes."""
    started_at: datetime
    heartbeat_at: datetime
    silent_since: datetime | None = None
    """Its last sign of life, where it is silent although it has not stopped: it is lost, or does not get on."""
    last_claim_at: datetime | None = None
    stopped_at: datetime | None = None
    cordoned: bool = False
    """Whether it takes no run, because it or its host is cordoned."""
    draining: bool = False
    """Whether it hands its run back, too."""


@dataclass(frozen=True, kw_only=True)
class SelectedWorkers:
    """The slots that a name stands for: one slot, or all of a host."""

    workers: tuple[Worker, ...]
    """None, if the host is cordoned and has not been heard of for long."""
