"""The Celery side of a worker: thin tasks, and the life of the processes that execute them.

Celery is a doorbell: a message says "there is work", the ledger says which. A delivery claims the best eligible run
and executes it; when there is none, or a message came twice, nothing happens. After a run the slot looks for the next
one by itself, so that a bell that rang while everybody was busy is not waited for.

Each prefork child is one slot. It keeps a warm trainer (a fresh interpreter, never a fork of this process), announces
itself in the `workers` table, and dies with its parent. The parent tells its children to hand their runs back through
one byte of shared memory: signals would interrupt database calls.
"""

import mmap
import os
import socket
import threading
import time
from importlib.metadata import version

import structlog
from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown, worker_shutting_down

from server.artifacts import FolderStore
from server.attempts.repository import AttemptLedger, RunQueue
from server.db.database import Database
from server.errors import LudusError
from server.logging import configure_logging
from server.processes import end_with_parent
from server.queue import TaskName, make_celery
from server.settings import Settings
from server.workers.repository import WorkerInfo, WorkerRegistry
from worker.process import WarmTrainer
from worker.supervisor import Supervisor

log = structlog.get_logger()

BEAT_SECONDS = 2.0


class Slot:
    """One prefork child: everything that it keeps between runs."""

    def __init__(self, settings: Settings, stopping: mmap.mmap) -> None:
        self._settings = settings
        self._shared = stopping
        self._started = time.time()
        self._over = threading.Event()

    def open(self) -> None:
        """Set up what must not be inherited from the parent: connections, threads, the warm trainer."""
        end_with_parent(os.getppid())
        configure_logging("worker", log_format=self._settings.log.format, level=self._settings.log.level)
        self.worker_id = f"{socket.gethostname()}/{os.getpid()}/{self._started:.0f}"
        structlog.contextvars.bind_contextvars(worker_id=self.worker_id)
        self._database = Database.from_settings(self._settings.database)
        self._queue = RunQueue(self._database)
        self._registry = WorkerRegistry(self._database)
        self._store = FolderStore(self._settings.storage.root)
        self._warm = WarmTrainer()
        self._warm.prepare()
        threading.Thread(target=self._beat, name="worker-beat", daemon=True).start()

    def close(self) -> None:
        """Leave nothing behind."""
        self._over.set()
        self._warm.close()
        try:
            self._registry.stopped(self.worker_id)
        except LudusError as error:
            log.warning("worker_stop_not_recorded", error=str(error))
        self._database.close()

    def stopping(self) -> bool:
        """Whether the worker shall hand its runs back."""
        return self._shared[0] != 0

    def work(self, hint: str) -> None:
        """Execute runs until none is eligible; `hint` is the one that rang."""
        wanted: str | None = hint
        while not self.stopping():
            claim = self._queue.claim(self.worker_id, self._settings.worker.lease_seconds, wanted)
            if claim is None:
                return
            wanted = None
            with structlog.contextvars.bound_contextvars(run_id=claim.run_id, epoch=claim.epoch):
                Supervisor(
                    claim,
                    AttemptLedger(self._database, claim, self._settings.steward.restart_budget),
                    self._store,
                    self._settings.worker,
                    self._settings.worker.scratch / f"{claim.run_id}-{claim.epoch}",
                    ticket_key(self._settings),
                    self.stopping,
                    self._settings.gateway.tls,
                ).run(self._warm)
            self._warm.prepare()

    def _beat(self) -> None:
        """Keep this slot's row current."""
        known = False
        while not self._over.wait(BEAT_SECONDS if known else 0.0):
            try:
                if not known:
                    self._registry.register(
                        WorkerInfo(self.worker_id, socket.gethostname(), os.getpid(), version("ludus"))
                    )
                known = True
                self._registry.beat(self.worker_id)
            except LudusError as error:
                log.warning("worker_beat_failed", error=str(error))
                self._over.wait(BEAT_SECONDS)


def build(settings: Settings) -> Celery:
    """Return the worker's Celery application, with its tasks and the hooks of its processes."""
    celery = make_celery(settings)
    shared = mmap.mmap(-1, 1)  # anonymous and shared: children see what the parent writes
    slot = Slot(settings, shared)

    @celery.task(name=TaskName.TRAIN)  # type: ignore[untyped-decorator]
    def train(run_id: str) -> None:
        """Execute the best eligible run. Harmless when delivered twice: the second claim finds nothing."""
        slot.work(run_id)

    @worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator]
    def _open(**_: object) -> None:
        slot.open()

    @worker_process_shutdown.connect(weak=False)  # type: ignore[untyped-decorator]
    def _close(**_: object) -> None:
        slot.close()

    @worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator]
    def _hand_back(**_: object) -> None:
        shared[0] = 1

    return celery


def ticket_key(settings: Settings) -> bytes | None:
    """Return the key with which collectors verify tickets, None where there is none."""
    key = settings.gateway.ticket_key
    return None if key is None else key.get_secret_value().encode()
