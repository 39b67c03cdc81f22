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


@dataclass(frozen=True, kw_only=True)
class Collector:
    """A collector of a run's live attempt: the process that answers simulators with actions."""

    index: int
    """Number of the collector, or of its place."""
    kind: str
    """`local`, on the worker's host, or `edge`, beside the games."""
    address: str
    """Where simulators connect to a local one; where the stream of an edge collector comes from."""
    host: str = ""
    """Name of an edge collector's machine, as it says itself."""
    joined_at: datetime | None = None
    """When an edge collector joined."""
    simulators: int
    """That it serves now."""
    lagged_at: datetime | None = None
    """When the network of an edge collector was first found to be slower than its games; null: it keeps up."""
    waiting_bytes: int = 0
    """That waited for its network then."""
