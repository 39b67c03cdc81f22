"""Stores the checkpoints of a trainer: copies them, enters them into the database, answers the trainer.

A checkpoint is entered once the writes are made that were queued before it: the metrics up to its step are in the
database, which another attempt does not record again. It does not wait for later ones.
"""

import contextlib
import secrets
import shutil
from collections import deque
from concurrent.futures import Future, wait
from pathlib import Path
from typing import NamedTuple

from server.checkpoints.refs import NewCheckpoint
from server.kit.artifacts.store import FileRef
from server.kit.errors import LudusError
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from worker.host.supervisor.transfers import ArtifactTransfer
from worker.host.supervisor.writes import Writes
from worker.trainer.connection import ConnectionClosed, SupervisorConnection
from worker.trainer.messages import CheckpointCommitted, CheckpointRefused, CheckpointWritten


class _Copy(NamedTuple):
    """A checkpoint that is copied to the store."""

    written: CheckpointWritten
    path: str
    """In the store."""
    files: Future[list[FileRef]]
    after: int
    """How many writes were queued before it."""


class CheckpointCommits:
    """Stores the checkpoints that an attempt's trainer writes, in their order. One thread uses it."""

    def __init__(self, claim: Claim, ledger: AttemptLedger, transfer: ArtifactTransfer, writes: Writes) -> None:
        self._folder = f"runs/{claim.run_id}/{claim.attempt}/checkpoints"
        self._ledger = ledger
        self._transfer = transfer
        self._writes = writes
        self._count = 0
        self._unique = secrets.token_hex(4)
        """Part of each path: the store may have files of an attempt of this number that a restored database does not
        know, and the files of a path never change."""
        self._copies: deque[_Copy] = deque()

    def __len__(self) -> int:
        """Return how many are not stored yet."""
        return len(self._copies)

    def begin(self, written: CheckpointWritten) -> None:
        """Begin to copy a checkpoint."""
        self._count += 1
        path = f"{self._folder}/{written.step}-{self._count}-{self._unique}"
        self._copies.append(
            _Copy(written, path, self._transfer.publish(Path(written.folder), path), after=self._writes.added)
        )

    def wait(self, seconds: float) -> None:
        """Wait for the first copy, for so long."""
        if self._copies:
            wait([self._copies[0].files], timeout=seconds)

    def finish(self, connection: SupervisorConnection) -> None:
        """Enter copied checkpoints whose turn it is, and answer the trainer.

        Raises Unavailable, with the rest still to be entered.
        """
        while self._copies and self._copies[0].files.done() and self._writes.made >= self._copies[0].after:
            copy = self._copies[0]
            answer = self._enter(copy)
            shutil.rmtree(copy.written.folder, ignore_errors=True)
            with contextlib.suppress(ConnectionClosed):
                connection.send(answer)
            self._copies.popleft()

    def _enter(self, copy: _Copy) -> CheckpointCommitted | CheckpointRefused:
        written = copy.written
        try:
            files = copy.files.result()
        except LudusError as error:
            self._ledger.event(
                "checkpoint_failed",
                f"The checkpoint at step {written.step} could not be stored: {error}",
                level="error",
                data={"code": error.code, "step": written.step},
            )
            if written.request is not None:
                self._ledger.checkpoints.decline(written.request, f"it could not be stored: {error}")
            return CheckpointRefused(folder=written.folder, code=error.code, detail=str(error))
        self._ledger.checkpoints.add(
            NewCheckpoint(
                step=written.step,
                steps=written.steps,
                reason=written.reason,
                path=copy.path,
                files=files,
                metrics=written.metrics,
                scored_by=written.scored_by,
                models=written.models,
            ),
            written.request,
        )
        self._ledger.checkpoints.retire(written.keep)
        return CheckpointCommitted(folder=written.folder)
