"""Values that trainers take and report without the database: amendments, and edge collectors."""

from dataclasses import dataclass

from server.kit.db.texts import JsonObject


@dataclass(frozen=True)
class AmendmentRef:
    """One numbered change of a run's configuration."""

    seq: int
    changes: tuple[JsonObject, ...]
    """`path`, `old` and `new` of each key."""


@dataclass(frozen=True)
class EdgeCollectorRef:
    """An edge collector that collects for an attempt."""

    index: int
    """Of its place, among the collectors of the attempt."""
    host: str
    """Name of its machine, as it says itself."""
    address: str
    """Its own, as gRPC names it; the gateway's if that relays."""
    joined_at: float
    """Seconds since 1970, as are the others."""
    lagged_at: float | None = None
    """When its network was first found to be slower than its games."""
    waiting_bytes: int = 0
    """That waited for its network then."""
