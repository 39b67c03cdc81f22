"""Reads the events of all runs that are new since a position: without loss, and those of a run in their order.

The events of a run become visible in the order of their numbers, without gaps (`server.runs.events.repository`), so the
position in a run is the number of the last event that was read. No database gives one order over the events of all
runs (ADR 8): each look asks which runs have changed, by the time that their transactions noted. A commit may come later
than that time, so each look reaches back behind the one before, by `MARGIN_SECONDS`.

A look changes nothing. Its reader keeps it as the position for the next one when it has handled what is new; until
then the same events are found again.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from server.runs.events.repository import EventRepository, RunHead
from server.runs.models import Event

MARGIN_SECONDS: Final = 30.0
"""Longest time between an event's time and its commit. PostgreSQL ends statements and idle transactions before that."""


@dataclass(frozen=True)
class Look:
    """The result of a look for new events: the position of a reader of all runs."""

    at: float
    """On the database's clock."""
    since: float
    """The runs that had changed since then were looked at."""
    seqs: Mapping[str, int]
    """The number of the newest event of each of them."""
    new: Sequence[RunHead]
    """Those that have events behind the look before."""
    ended: float = field(default_factory=time.monotonic)
    """On this process's monotonic clock."""

    @classmethod
    def first(cls, events: EventRepository, since: float) -> "Look":
        """Look at the runs that changed at or after a time on the database's clock. All of them are new."""
        clock, heads = events.changed(since)
        return cls(clock, since, {head.run_id: head.seq for head in heads}, heads)

    def next(self, events: EventRepository, margin_seconds: float = MARGIN_SECONDS) -> "Look":
        """Look at what has changed since this look."""
        since = self.at - margin_seconds
        clock, heads = events.changed(since)
        new = [head for head in heads if head.seq > self.seqs.get(head.run_id, 0)]
        return Look(clock, since, {head.run_id: head.seq for head in heads}, new)

    def events_behind(self, events: EventRepository, head: RunHead) -> Iterator[Event]:
        """Iterate over a run's events that this look did not see, up to the head of a later look."""
        after = self.seqs.get(head.run_id)
        if after is None:  # it had not changed for so long that this look passed over it
            after = events.last_before(head.run_id, self.since)
        return events.through(head, after)

    @property
    def position(self) -> int:
        """Milliseconds since 1970: what was committed by then, this look and those before have seen."""
        return int(self.at * 1000)
