"""The part of a collector that its sessions use: settings, clock, numbers of simulators, and reports to the learner."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ludus.collector.messages import Message
from ludus.collector.settings import CollectorSettings
from ludus.collector.snapshots.returning import ReturningSessions
from ludus.collector.snapshots.state import SessionSnapshot
from ludus.collector.stats import StatSums
from ludus.collector.unity.diagnostics import Connections
from ludus.protocol.tickets import TicketChecker


@dataclass(slots=True)
class Host:
    """One collector, as its sessions see it."""

    settings: CollectorSettings
    """Its newest settings; the environment parameters in them change."""
    now: Callable[[], float]
    """The event loop's time in seconds."""
    wall_clock: Callable[[], float]
    """Seconds since 1970."""
    tickets: TicketChecker | None
    """None where no tickets are needed."""
    numbers: Iterator[int]
    """Numbers for simulators that come without a ticket, unique among the collectors."""
    index_numbers: Iterator[int]
    """Numbers for agent indexes."""
    tell: Callable[[Message], None]
    """Sends the learner a message."""
    snapshots: dict[str, SessionSnapshot]
    """Snapshots of an earlier attempt by session id, each until its simulator has come back."""
    returning: ReturningSessions = field(default_factory=ReturningSessions)
    """Sessions that go on from their snapshots in a later turn."""
    stats: StatSums = field(default_factory=StatSums)
    """Numbers that simulators have reported since the last report to the learner."""
    connections: Connections = field(default_factory=Connections)
    port: int = 0
    """Port on which the collector listens, once it does."""
