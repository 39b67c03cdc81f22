"""The lease of an attempt: renewed at its pace, given up when the database stays unavailable for too long."""

import time

import structlog

from server.kit.errors import LeaseLost, Unavailable
from server.kit.settings import WorkerSettings
from server.kit.states import Intent
from server.lifecycle.attempts.claim import Claim
from server.lifecycle.attempts.repository import AttemptLedger
from server.runs.bottleneck.times import TimeSpent

log = structlog.get_logger()


class Lease:
    """Keeps an attempt's lease. One thread uses it, and calls `keep` whenever it waits."""

    def __init__(self, claim: Claim, ledger: AttemptLedger, settings: WorkerSettings) -> None:
        self._claim = claim
        self._ledger = ledger
        self._settings = settings
        self._next = 0.0
        self._answered = time.monotonic()
        self.step = claim.resume.step if claim.resume is not None else 0
        """Agent steps of all behaviors of the run. Renewals write it."""
        self.time_spent: TimeSpent | None = None
        """Where the trainer's newest time went. Renewals write it, too."""

    def renew(self) -> Intent:
        """Renew the lease, and return the users' intent. Raises LeaseLost and Unavailable."""
        intent = self._ledger.heartbeat(self._settings.lease_seconds, self.step, self.time_spent)
        self._answered = time.monotonic()
        return intent

    def keep(self) -> Intent | None:
        """Renew the lease if that is due; return the users' intent, None if the database was not read.

        Raises LeaseLost when the run is another worker's, or the database has been away for `outage_seconds`.
        """
        intent = None
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._settings.heartbeat_seconds
            try:
                intent = self.renew()
            except Unavailable as error:
                log.warning("heartbeat_failed", error=str(error))
        if now >= self._answered + self._settings.outage_seconds:
            why = f"the database has not answered for {self._settings.outage_seconds:g} s (worker.outage_seconds)"
            raise LeaseLost(self._claim.run_id, self._claim.attempt, why)
        return intent
