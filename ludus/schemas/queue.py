"""The queue: runs of all projects that wait for a worker."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DemandSlots:
    """Numbers of live slots that have what a demand needs."""

    idle: int = 0
    busy: int = 0
    cordoned: int = 0
    """With or without a run."""


@dataclass(frozen=True, kw_only=True)
class QueuedDemand:
    """The waiting runs that demand the same of a slot."""

    demand: str
    """Number of GPUs, and labels after a semicolon: `0`, `1`, `1;a100,linux`."""
    gpus: int = 0
    labels: tuple[str, ...] = ()
    runs: int = 0
    startable_runs: int = 0
    """Of them, those that quotas allow to be in training now."""
    missing_slots: int = 0
    """Slots that the startable runs lack beyond the idle ones. An idle slot is counted for one run only."""
    oldest_seconds: float = 0.0
    """Waiting time of the run that has waited longest."""
    pool: str | None = None
    """The declared pool that starts workers for it (`LUDUS_SCHEDULING__POOLS`)."""
    slots: DemandSlots = DemandSlots()
    """Slots that have what it needs."""
    explanation: str | None = None
    """Why no slot takes the runs, if no live slot and no pool serves them."""


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The waiting runs: all of them, or those that were asked for."""

    runs: int
    startable_runs: int = 0
    """Of them, those that quotas allow to be in training now."""
    missing_slots: int = 0
    """Slots that the startable runs lack beyond the idle ones: how many more an autoscaler starts."""
    oldest_seconds: float = 0.0
    """Waiting time of the run that has waited longest."""
    demands: tuple[QueuedDemand, ...] = ()
    """The demand with the most runs first."""
