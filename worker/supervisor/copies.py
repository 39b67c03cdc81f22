"""Copying to and from the artifact store: on a thread of its own, so that a slow disk or network costs no lease."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

import structlog

from server.artifacts import ArtifactStore, FileRef
from server.errors import StorageUnavailable
from worker.supervisor.lease import Lease

log = structlog.get_logger()

Result = TypeVar("Result")

PATIENCE_SECONDS = 120.0
"""How long a store that doesn't answer is tried again, before what should be copied counts as failed."""
RETRY_SECONDS = 2.0
POLL_SECONDS = 0.1


class Copier:
    """Does one copy after the other. All methods are called on the thread that keeps the lease."""

    def __init__(self, store: ArtifactStore, lease: Lease, stopping: Callable[[], bool]) -> None:
        self.store = store
        self._lease = lease
        self._stopping = stopping
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="artifacts")

    def close(self) -> None:
        """Wait for the copy that is under way; the others are dropped."""
        self._over.set()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def submit(self, copy: Callable[[], Result]) -> "Future[Result]":
        """Have something copied."""
        return self._thread.submit(copy)

    def await_(self, copy: "Future[Result]") -> Result:
        """Wait for a copy, and keep the lease meanwhile. Raises LeaseLost, and what the copy raises."""
        while not copy.done():
            self._lease.keep()
            wait([copy], timeout=POLL_SECONDS)
        return copy.result()

    def fetch(self, copy: Callable[[], Result]) -> Result:
        """Bring something from the store; the lease is kept meanwhile, and a store that is away waited for.

        Raises what `copy` raises, and LeaseLost.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.await_(self.submit(copy))
            except StorageUnavailable as error:
                if time.monotonic() > deadline or self._stopping():
                    raise
                log.warning("fetch_delayed", error=str(error))
                self.await_(self.submit(lambda: self._over.wait(RETRY_SECONDS)))

    def publish(self, folder: Path, path: str) -> "Future[list[FileRef]]":
        """Copy a folder into the store; a store that is away is waited for, while the folder stays where it is."""
        return self.submit(lambda: self._publish(folder, path))

    def _publish(self, folder: Path, path: str) -> list[FileRef]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.store.publish(folder, path)
            except StorageUnavailable as error:
                if time.monotonic() > deadline or self._over.wait(RETRY_SECONDS):
                    raise
                log.warning("checkpoint_delayed", error=str(error), path=path)
