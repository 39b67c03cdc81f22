"""An attempt's lease, and the queue of its writes: in order, each repeated until it has succeeded.

The lease is renewed at its pace, and given up when the database stays unavailable for too long.

Points of metrics are the one exception from the order: those that wait are one call, which new points join. So nothing
waits for more than one write of metrics, however fast they come, and the points of a checkpoint's steps are written
before the checkpoint, as if each report was a call of its own.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, ParamSpec

import structlog

from server.kit.errors import LeaseLost, Unavailable
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.lifecycle.leases.repository import Renewal
from server.metrics.points import MetricPoint
from server.runs.diagnosis import TimeSpent

log = structlog.get_logger()

HANGS_SECONDS = 300.0
"""A supervisor that has not looked after its lease for so long hangs: each statement has a time-out of its own."""


class Lease:
    """Keeps an attempt's lease. One thread uses it, and calls `keep` whenever it waits."""

    def __init__(self, claim: Claim, ledger: AttemptLedger, settings: WorkerSettings) -> None:
        self._claim = claim
        self._ledger = ledger
        self._settings = settings
        self._next = 0.0
        self._answered = self._looked = time.monotonic()
        self.step = claim.resume.step if claim.resume is not None else 0
        """Agent steps of all behaviors of the run. Renewals write it."""
        self.time_spent: TimeSpent | None = None
        """Where the trainer's newest time went. Renewals write it, too."""

    @property
    def fresh(self) -> bool:
        """Whether the renewals of this lease are all that its slot has to say: none is overdue. Any thread may ask."""
        return time.monotonic() < self._answered + 2 * self._settings.heartbeat_seconds

    @property
    def kept(self) -> bool:
        """Whether the thread that uses this lease turns, also without a database. Any thread may ask."""
        return time.monotonic() < self._looked + HANGS_SECONDS

    def renew(self) -> Renewal:
        """Renew the lease, and return what users want. Raises LeaseLost and Unavailable."""
        renewal = self._ledger.heartbeat(self._settings.lease_seconds, self.step, self.time_spent)
        self._answered = time.monotonic()
        return renewal

    def keep(self) -> Renewal | None:
        """Renew the lease if that is due; return what users want, None if the database was not read.

        Raises LeaseLost when the run is another worker's, or the database has been away for `outage_seconds`.
        """
        renewal = None
        now = self._looked = time.monotonic()
        if now >= self._next:
            self._next = now + self._settings.heartbeat_seconds
            try:
                renewal = self.renew()
            except Unavailable as error:
                log.warning("heartbeat_failed", error=str(error))
        if now >= self._answered + self._settings.outage_seconds:
            why = (
                f"the database has not answered for {self._settings.outage_seconds:g} s (LUDUS_WORKER__OUTAGE_SECONDS)"
            )
            raise LeaseLost(self._claim.run_id, self._claim.attempt, why)
        return renewal


Parameters = ParamSpec("Parameters")
AppendPoints = Callable[[Sequence[MetricPoint]], object]

MOST_POINTS: Final = 1 << 17
"""Points that may wait before they are thinned: 43 MB, more than come at 400 a second in `worker.outage_seconds`."""
AT_ONCE: Final = 8192
"""Points of one append."""


class JoinedPoints:
    """A call that appends the points of all reports that came since the call was queued."""

    def __init__(self, append: AppendPoints) -> None:
        self._append = append
        self._points: list[MetricPoint] = []
        self._newest: dict[tuple[str, str], int] = {}
        """The newest step of each behavior and key."""

    def join(self, points: Sequence[MetricPoint]) -> None:
        """Add the points of one report.

        Points that are not beyond an earlier report's are left out: readers do not see them either if each report is
        appended by itself, so what is seen does not depend on which reports have joined.
        """
        beyond = [point for point in points if point.step > self._newest.get((point.behavior, point.key), -1)]
        for point in beyond:
            name = point.behavior, point.key
            self._newest[name] = max(point.step, self._newest.get(name, -1))
        self._points += beyond
        if len(self._points) > MOST_POINTS:  # thinned evenly, with the newest ones, as the trainer does it
            self._points = self._points[-1::-2][::-1]

    def __call__(self) -> None:
        """Append the points. Raises Unavailable, with the rest still to be appended."""
        while self._points:
            self._append(self._points[:AT_ONCE])
            del self._points[:AT_ONCE]


class Writes:
    """A queue of calls that may find the database out of reach. One thread uses it."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._metrics: JoinedPoints | None = None
        """The queued call that points join; None where none is queued."""
        self.added = 0
        """Calls that were ever queued."""

    def __len__(self) -> int:
        """Return the number of queued calls."""
        return len(self._waiting)

    @property
    def made(self) -> int:
        """Calls that have succeeded: the first ones of those that were queued."""
        return self.added - len(self._waiting)

    def add(
        self, write: Callable[Parameters, object], /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> None:
        """Append a call."""
        self._waiting.append(partial(write, *arguments, **named))
        self.added += 1

    def add_points(self, append: AppendPoints, points: Sequence[MetricPoint]) -> None:
        """Append points of metrics to those that wait; `append`, the same in each call, writes them."""
        if self._metrics is None:
            self._metrics = JoinedPoints(append)
            self._waiting.append(self._metrics)
            self.added += 1
        self._metrics.join(points)

    def flush(self, seconds: float) -> None:
        """Make the queued calls, and begin none after `seconds`. Raises Unavailable, with the rest still queued."""
        deadline = time.monotonic() + seconds
        while self._waiting and time.monotonic() < deadline:
            self._waiting[0]()
            if self._waiting.popleft() is self._metrics:
                self._metrics = None
