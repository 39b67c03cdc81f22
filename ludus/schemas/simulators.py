"""Simulators of runs."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Simulator:
    """One connection of a game process."""

    session_id: str
    """Id of the connection."""
    number: int
    """Its seed is the run's seed + number."""
    label: str
    client: str
    peer: str
    state: str
    """`joined` (has a ticket), `connected` or `left`."""
    attempt: int
    """Number of the attempt that it belongs to."""
    collector: int | None = None
    relayed: bool
    behaviors: tuple[str, ...]
    agents: int
    steps: int
    """Agent steps in its current session."""
    joined_at: datetime
    connected_at: datetime | None = None
    left_at: datetime | None = None
    leave_code: str | None = None
    """Stable name of the reason why it left."""
    leave_reason: str | None = None
    """The same as a sentence."""


@dataclass(frozen=True, kw_only=True)
class SimulatorListed(Simulator):
    """A simulator in the list of all runs."""

    run_id: str
    run_name: str
    project: str = "default"
    """That of the run."""
