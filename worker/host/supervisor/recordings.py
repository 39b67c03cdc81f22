"""Publishes the recordings of an attempt: files that its collectors have written into the scratch folder."""

import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import structlog

from ludus.play.recordings.file import PART, SUFFIX, BadRecording, finish
from server.kit.db.ids import new_id
from server.kit.errors import LudusError, StorageUnavailable
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.simulators.recordings.repository import NewRecording
from worker.host.supervisor.lease import Writes
from worker.host.supervisor.transfers import ArtifactTransfer

log = structlog.get_logger()


class RecordingPublisher:
    """Copies complete recordings to the store, a batch at a time. One thread uses it."""

    def __init__(
        self, claim: Claim, ledger: AttemptLedger, transfer: ArtifactTransfer, writes: Writes, scratch: Path
    ) -> None:
        self._claim = claim
        self._ledger = ledger
        self._transfer = transfer
        self._writes = writes
        self._folder = scratch / "recordings"
        self._copy: Future[Sequence[NewRecording]] | None = None

    def publish(self, *, last: bool = False) -> None:
        """Begin to copy what is complete, and enter what was copied; `last`: also what its collector has not completed,
        and wait for it. Raises LeaseLost.
        """
        if self._copy is not None:
            if not last and not self._copy.done():
                return
            self._enter(self._copy)
            self._copy = None
        if last:
            for part in self._folder.glob(f"*{PART}"):
                part.rename(part.with_name(part.name.removesuffix(PART)))
        files = sorted(self._folder.glob(f"*{SUFFIX}"))
        if files:
            self._copy = self._transfer.submit(lambda: [new for file in files for new in self._store(file)])
            if last:
                self._enter(self._copy)

    def _enter(self, copy: "Future[Sequence[NewRecording]]") -> None:
        for new in self._transfer.await_(copy):
            self._writes.add(self._ledger.recordings.add, new)

    def _store(self, file: Path) -> Sequence[NewRecording]:
        """Store a file, and remove it here. One that cannot be read or stored is lost: it is not worth a run. Where the
        store is away, it is tried again with the next batch.
        """
        claim = self._claim
        try:
            summary = finish(file, claim.config)
            header, end, id_ = summary.header, summary.end, new_id("rec")
            if (header.run_id, header.attempt) != (claim.run_id, claim.attempt) or not summary.frames:
                log.warning("recording_of_another", name=file.name, run=header.run_id, frames=summary.frames)
                file.unlink(missing_ok=True)
                return ()
            path = f"runs/{claim.run_id}/{claim.attempt}/recordings/{id_}-{secrets.token_hex(4)}{SUFFIX}"
            (stored,) = self._transfer.store.publish(file, path)
            file.unlink(missing_ok=True)
        except (BadRecording, OSError, LudusError) as error:
            log.warning("recording_not_stored", name=file.name, error=str(error))
            if not isinstance(error, StorageUnavailable):
                file.unlink(missing_ok=True)
            return ()
        return (
            NewRecording(
                id=id_,
                session_id=header.session_id,
                simulator=header.number,
                carrier=header.carrier,
                behaviors=end.behaviors,
                cause=end.cause,
                code=end.code,
                reason=end.reason,
                frames=summary.frames,
                seconds=summary.seconds,
                path=path,
                size=stored.size,
                sha256=stored.sha256,
                started_at=header.started_at,
            ),
        )
