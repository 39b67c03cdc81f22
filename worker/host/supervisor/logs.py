"""Publishes the log of an attempt while it grows."""

from concurrent.futures import Future
from pathlib import Path

import structlog

from server.kit.errors import StorageFull, StorageRefused, StorageUnavailable
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from worker.host.supervisor.attempt_log import AttemptLog
from worker.host.supervisor.transfers import ArtifactTransfer
from worker.host.supervisor.writes import Writes

log = structlog.get_logger()


class LogPublisher:
    """Uploads new content of the trainer's log, one copy at a time. One thread uses it."""

    def __init__(
        self, claim: Claim, ledger: AttemptLedger, transfer: ArtifactTransfer, writes: Writes, scratch: Path
    ) -> None:
        self._folder = f"runs/{claim.run_id}/{claim.attempt}/logs"
        self._ledger = ledger
        self._transfer = transfer
        self._writes = writes
        self.log = AttemptLog(scratch / "trainer.log")
        self.path = self.log.path
        """Where the trainer writes it."""
        self._copy: Future[list[tuple[str, str, int]]] | None = None
        self._problem = ""
        """Code of the store's last error; empty without one."""

    def publish(self, *, last: bool = False) -> None:
        """Upload new content and register finished uploads; wait for the `last` one. Raises LeaseLost."""
        if self._copy is not None:
            if not last and not self._copy.done():
                return
            self._enter(self._copy)
        self._copy = self._transfer.submit(self._upload)
        if last:
            self._enter(self._copy)
            self._copy = None

    def _upload(self) -> list[tuple[str, str, int]]:
        """Copy the parts of the log that have changed; return their names, paths and sizes."""
        return [
            (name, f"{self._folder}/{name}", self._transfer.store.publish(file, f"{self._folder}/{name}")[0].size)
            for name, file in self.log.due()
        ]

    def _enter(self, copy: "Future[list[tuple[str, str, int]]]") -> None:
        """Register a finished upload."""
        try:
            parts = self._transfer.await_(copy)
        except (StorageFull, StorageRefused, StorageUnavailable) as error:
            log.warning("log_not_stored", error=str(error))
            if self._problem != error.code:  # once, since checkpoints will fail too
                self._problem, data = error.code, {"code": error.code}
                self._writes.add(self._ledger.event, "log_not_stored", str(error), level="warning", data=data)
            return
        except OSError as error:  # of the host's own disk: a log is not worth a run
            log.warning("log_not_copied", error=str(error))
            return
        self._problem = ""
        for part in parts:
            self._writes.add(self._ledger.log, *part)
