"""The lease of an attempt: renewed at its pace, given up when the database stays unavailable for too long."""

import time

import structlog

from server.kit.errors import LeaseLost, Unavailable
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.lifecycle.leases.repository import Renewal
from server.runs.bottleneck.diagnosis import TimeSpent

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
        """Whether the thread that uses this lease turns; a database that is away keeps it from nothing. Any thread may
        ask.
        """
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
