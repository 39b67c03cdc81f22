"""Copying to and from the artifact store: on a thread of its own, so that a slow disk or network costs no lease."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from ludus.backoff import Backoff
from server.kit.artifacts.store import ArtifactStore, FileRef
from server.kit.errors import StorageUnavailable
from server.kit.states import Intent
from server.runs.attempts.repository import CheckpointCopied
from worker.host.supervisor.lease import Lease

log = structlog.get_logger()

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

    def await_(self, copy: "Future[Result]") -> Result:
        """Wait for a copy, and keep the lease meanwhile. Raises LeaseLost, and what the copy raises."""
        while not copy.done():
            self._lease.keep()
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
                return self._await_wanted(self.submit(copy))
            except StorageUnavailable as error:
                pause = backoff.pause()
                if backoff.failing_seconds > timeout:
                    raise
                log.warning("fetch_delayed", error=str(error))
                self._await_wanted(self.submit(partial(self._over.wait, pause)))

    def _await_wanted(self, copy: "Future[Result]") -> Result:
        while not copy.done():
            renewal = self._lease.keep()
            if renewal is not None and renewal.intent is not Intent.NONE:
                raise Unwanted("A user wanted the attempt to end before its trainer began.")
            if self._stopping():
                raise Unwanted("The worker shut down before the trainer began.")
            wait([copy], timeout=POLL_SECONDS)
        return copy.result()

    def publish(self, folder: Path, path: str) -> "Future[list[FileRef]]":
        """Copy a checkpoint into the store; one that is away is waited for, while the folder stays where it is."""
        return self.submit(lambda: self._publish(folder, path))

    def _publish(self, folder: Path, path: str) -> list[FileRef]:
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
