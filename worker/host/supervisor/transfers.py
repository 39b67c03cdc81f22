"""Copying to and from the artifact store: on a thread of its own, so that a slow disk or network costs no lease.

What comes from the store is checked by its SHA-256. A file that is missing or altered makes its checkpoint, or its
demonstration, unusable. A store that doesn't answer says nothing about its files: `StorageUnavailable` goes through.
"""

import contextlib
import errno
import secrets
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from ludus.backoff import Backoff
from server.checkpoints.refs import CheckpointRef, NewCheckpoint
from server.demonstrations.refs import DemonstrationRef
from server.kit.artifacts.store import ArtifactStore, FileRef
from server.kit.artifacts.store import fetch as fetch_file
from server.kit.errors import ArtifactNotFound, LudusError, StorageFull, StorageUnavailable
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.runs.attempts import CheckpointCopied
from worker.host.supervisor.lease import Lease, Writes
from worker.trainer.connection import ConnectionClosed, SupervisorConnection
from worker.trainer.messages import CheckpointCommitted, CheckpointRefused, CheckpointWritten

log = structlog.get_logger()


class CheckpointUnusable(Exception):
    """A stored checkpoint lacks a file, or a file was altered."""


class DemonstrationUnusable(Exception):
    """A stored demonstration's file is missing, or was altered."""


def fetch(store: ArtifactStore, checkpoint: CheckpointRef, folder: Path) -> Path:
    """Copy a checkpoint's files to `folder` and return it.

    Raises CheckpointUnusable, StorageUnavailable, StorageFull (the folder's disk has no room).
    """
    shutil.rmtree(folder, ignore_errors=True)
    with _room(folder):
        for file in checkpoint.files:
            target = folder / file.name
            if problem := _fetched(store, f"{checkpoint.path}/{file.name}", target, file.sha256):
                size = f" ({target.stat().st_size} bytes)" if target.exists() else ""
                raise CheckpointUnusable(f"{file.name}{size} {problem}")
    return folder


def fetch_demonstrations(
    store: ArtifactStore, demonstrations: Iterable[DemonstrationRef], folder: Path
) -> dict[str, str]:
    """Copy demonstrations' files; return where each lies, by its id. Raises as `fetch`, and DemonstrationUnusable."""
    files: dict[str, str] = {}
    with _room(folder):
        for demonstration in demonstrations:
            target = folder / demonstration.path.rpartition("/")[2]
            if problem := _fetched(store, demonstration.path, target, demonstration.sha256):
                raise DemonstrationUnusable(f"the file of demonstration {demonstration.label} {problem}")
            files[demonstration.id] = str(target)
    return files


def _fetched(store: ArtifactStore, path: str, target: Path, sha256: str) -> str | None:
    """Copy a file; return the problem with it, None if it is as it was stored."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        digest = fetch_file(store, path, target)
    except ArtifactNotFound:
        return "is missing from the artifact store"
    if digest == sha256:
        return None
    return f"has the SHA-256 {digest}, not {sha256} as when it was stored"


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """Turn "no space left" on this host into StorageFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise StorageFull(str(folder)) from error


Result = TypeVar("Result")

RETRY_SECONDS = 120.0
"""How long a copy is retried while the store does not answer, before it counts as failed."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 4.0
POLL_SECONDS = 0.1


class Unwanted(Exception):
    """An attempt shall end before it has what it begins with."""


class ArtifactTransfer:
    """Does one copy after the other. All methods are called on the thread that keeps the lease."""

    def __init__(
        self,
        store: ArtifactStore,
        lease: Lease,
        stopping: Callable[[], bool],
        notify: Callable[[CheckpointCopied], None] = lambda _: None,
    ) -> None:
        self.store = store
        self._notify = notify
        self._lease = lease
        self._stopping = stopping
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="artifacts")

    def close(self) -> None:
        """Wait for the copy that is under way; the others are dropped."""
        self._over.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def submit(self, copy: Callable[[], Result]) -> "Future[Result]":
        """Run a copy on the thread for copies."""
        return self._thread.submit(copy)

    def await_(self, copy: "Future[Result]", *, while_wanted: bool = False) -> Result:
        """Wait for a copy, and keep the lease meanwhile. Raises LeaseLost, what the copy raises, and Unwanted."""
        while not copy.done():
            renewal = self._lease.keep()
            if while_wanted and renewal is not None and renewal.intent is not Intent.NONE:
                raise Unwanted("A user wanted the attempt to end before its trainer began.")
            if while_wanted and self._stopping():
                raise Unwanted("The worker shut down before the trainer began.")
            wait([copy], timeout=POLL_SECONDS)
        return copy.result()

    def fetch(self, copy: Callable[[], Result], timeout: float = RETRY_SECONDS) -> Result:
        """Bring something from the store; the lease is kept meanwhile, and a store that is away waited for.

        Raises what `copy` raises, LeaseLost, and Unwanted as soon as the worker or a user wants the attempt to end: it
        has nothing yet that could be saved.
        """
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            try:
                return self.await_(self.submit(copy), while_wanted=True)
            except StorageUnavailable as error:
                pause = backoff.pause()
                if backoff.failing_seconds > timeout:
                    raise
                log.warning("fetch_delayed", error=str(error))
                self.await_(self.submit(partial(self._over.wait, pause)), while_wanted=True)

    def publish(self, folder: Path, path: str) -> list[FileRef]:
        """Copy a checkpoint into the store, on the thread; one that is away is waited for, and the folder stays."""
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            began = time.monotonic()
            try:
                files = self.store.publish(folder, path)
            except StorageUnavailable as error:
                pause = backoff.pause()
                if backoff.failing_seconds > RETRY_SECONDS or self._over.wait(pause):
                    raise
                log.warning("checkpoint_delayed", error=str(error), path=path)
            else:
                self._notify(CheckpointCopied(path, time.monotonic() - began))
                return files


class _Copy(NamedTuple):
    """A checkpoint that is copied to the store."""

    written: CheckpointWritten
    path: str
    """In the store."""
    files: Future[list[FileRef]]
    after: int
    """How many writes were queued before it."""


class CheckpointCommits:
    """Stores the checkpoints that an attempt's trainer writes, in their order, and answers it. One thread uses it.

    A checkpoint is entered once the writes are made that were queued before it: the metrics up to its step are in the
    database, which another attempt does not record again. It does not wait for later ones.
    """

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
        files = self._transfer.submit(partial(self._transfer.publish, Path(written.folder), path))
        self._copies.append(_Copy(written, path, files, after=self._writes.added))

    def wait(self, seconds: float) -> None:
        """Wait for the first copy, for so long."""
        if self._copies:
            wait([self._copies[0].files], timeout=seconds)

    def finish(self, connection: SupervisorConnection) -> None:
        """Enter copied checkpoints whose turn it is, and answer. Raises Unavailable: the rest waits."""
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
