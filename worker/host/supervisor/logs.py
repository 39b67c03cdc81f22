"""The log of an attempt, published while it grows."""

from concurrent.futures import Future
from pathlib import Path

import structlog

from server.kit.errors import LudusError, StorageFull, StorageRefused, StorageUnavailable
from server.runs.attempts.claim import Claim
from server.runs.attempts.repository import AttemptLedger
from worker.host.supervisor.attempt_log import AttemptLog
from worker.host.supervisor.copies import Copier
from worker.host.supervisor.writes import Writes

log = structlog.get_logger()


class LogPublisher:
    """Publishes what is new of the trainer's log, one copy at a time. One thread uses it."""

    def __init__(self, claim: Claim, ledger: AttemptLedger, copier: Copier, writes: Writes, scratch: Path) -> None:
        self._folder = f"runs/{claim.run_id}/{claim.epoch}/logs"
        self._ledger = ledger
        self._copier = copier
        self._writes = writes
        self._log = AttemptLog(scratch / "trainer.log")
        self.path = self._log.path
        """Where the trainer writes it."""
        self._copy: Future[list[tuple[str, str, int]]] | None = None
        self._trouble = ""
        """What the store said last."""

    def publish(self, *, last: bool = False) -> None:
        """Have what is new copied, and what was copied entered; the `last` copy is waited for. Raises LeaseLost."""
        if self._copy is not None:
            if not last and not self._copy.done():
                return
            self._enter(self._copy)
        self._copy = self._copier.submit(self._copied)
        if last:
            self._enter(self._copy)
            self._copy = None

    def last_error(self) -> str | None:
        """Return the last error in the log as one line, None if it has none."""
        return self._log.last_error()

    def _copied(self) -> list[tuple[str, str, int]]:
        """Copy the parts of the log that have changed; return their names, paths and sizes."""
        return [
            (name, f"{self._folder}/{name}", self._copier.store.publish(file, f"{self._folder}/{name}")[0].size)
            for name, file in self._log.due()
        ]

    def _enter(self, copy: "Future[list[tuple[str, str, int]]]") -> None:
        """Write down what was copied."""
        try:
            parts = self._copier.await_(copy)
        except (StorageFull, StorageRefused, StorageUnavailable) as error:
            self._refused(error)
            return
        except OSError as error:  # of the host's own disk: a log is not worth a run
            log.warning("log_not_copied", error=str(error))
            return
        self._trouble = ""
        for part in parts:
            self._writes.add(self._ledger.log, *part)

    def _refused(self, error: LudusError) -> None:
        """Tell the run's owner early, and once, that the store is out of use: checkpoints will fare no better."""
        log.warning("log_not_stored", error=str(error))
        if self._trouble != error.code:
            self._trouble = error.code
            self._writes.add(
                self._ledger.event, "log_not_stored", str(error), level="warning", data={"code": error.code}
            )
