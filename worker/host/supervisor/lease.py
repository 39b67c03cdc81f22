"""An attempt's lease, as its holder sees it: renewed at its pace, given up when the database stays away too long."""

import time

import structlog

from server.kit.errors import LeaseLost, Unavailable
from server.kit.settings import WorkerSettings
from server.runs.attempts.claim import Claim
from server.runs.attempts.repository import AttemptLedger
from server.runs.states import Intent

log = structlog.get_logger()


class Lease:
    """Keeps an attempt's lease. One thread uses it: whoever waits for something calls `keep` meanwhile."""

    def __init__(self, claim: Claim, ledger: AttemptLedger, settings: WorkerSettings) -> None:
        self._claim = claim
        self._ledger = ledger
        self._settings = settings
        self._next = 0.0
        self._answered = time.monotonic()
        self.step = claim.resume.step if claim.resume is not None else 0
        """How far the run has come: agent steps of all behaviors. Renewals write it."""

    def renew(self) -> Intent:
        """Renew the lease, and return what users want of the run. Raises LeaseLost and Unavailable."""
        intent = self._ledger.heartbeat(self._settings.lease_seconds, self.step)
        self._answered = time.monotonic()
        return intent

    def keep(self) -> Intent | None:
        """Renew the lease if it is time to; return what users want, None where nobody was asked or answered.

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
            raise LeaseLost(self._claim.run_id, self._claim.epoch, why)
        return intent
