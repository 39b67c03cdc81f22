"""The Celery side of a worker: thin tasks, and the life of the processes that execute them.

Celery is a wake-up: a message says "there is work", the ledger says which. A delivery claims the best eligible run
and executes it; when there is none, or a message came twice, nothing happens. After a run the slot looks for the next
one by itself, because a message that arrived while all slots were busy is gone.

Each prefork child is one slot. It has GPUs of its own, keeps a warm trainer (a fresh interpreter, never a fork of this
process), announces itself in the `workers` table, and dies with its parent. The parent asks its children to hand their
runs back through shared memory. A slot that sees its parent leave messages in the queue restarts the parent
(`worker.host.ending`). A slot that does not take a run which another idle slot serves wakes that one.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from billiard.process import current_process
from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown, worker_ready, worker_shutting_down

from ludus.child_process import end_with_parent
from ludus.logging import WORKER_VARIABLE, bind_process, configure_logging
from ludus.plugins import added, broken
from server.kit.artifacts.opening import open_store
from server.kit.db.database import Database
from server.kit.errors import LudusError, Unavailable
from server.kit.queue import TaskName, WakeUpQueue, make_celery, queues_of
from server.kit.settings import Settings, WorkerSettings
from server.kit.tracing import open_tracer, trace_id
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import AnotherSlot, Claim, RunQueue
from server.runs.attempts import Observer
from server.runs.scheduling.demand import Offer
from server.workers.repository import WorkerInfo, WorkerRegistry
from worker.host.ending import FRESH_SECONDS, Limits, SharedState, Watchdog, WorkerEnd, touch
from worker.host.gpus import VISIBLE, GpuInUse, assign, find_gpus, fingerprint, lock_gpus
from worker.host.process import WarmTrainer
from worker.host.supervisor.loop import Supervisor
from worker.host.supervisor.scratch import sweep
from worker.host.telemetry import AttemptMeasurement, AttemptSpans, WorkerTelemetry, serve_slots

log = structlog.get_logger()

BEAT_SECONDS = 2.0
CONNECTIONS = 2
"""Connections of a slot with the database: for its run, and for its own sign of life."""
RESTART_SECONDS = 15.0
"""Time for a parent that restarts, beyond that for last checkpoints, before it is killed."""
HOST_CHARACTERS = 60
"""Of a host's name in its workers' ids, which have 80 characters in the database."""
LOOK_SECONDS = 0.5
"""How often a worker looks whether it ends by itself."""
PASS_ON_SECONDS = 15.0
"""A slot passes the wake-up for a run on to other slots once in this time, so that it ends if none takes the run."""
YIELD_SECONDS = 0.5
"""A slot that has passed a wake-up on to a slot of its own host receives none for so long, or it may be its own."""


@dataclass(frozen=True)
class HostResources:
    """The GPUs of a worker host, and its number of slots."""

    gpus: tuple[tuple[str, ...], ...] | None
    """Of each slot; None where nothing is known of GPUs, and trainers look for themselves."""
    slots: int

    @classmethod
    def find(cls, settings: WorkerSettings) -> "HostResources":
        """Look at the host: as many slots as are set, else one per GPU, else one."""
        gpus = find_gpus(settings.gpus)
        slots = settings.slots or max(1, len(gpus or ()))
        return cls(None if gpus is None else tuple(assign(gpus, slots)), slots)

    def of(self, slot: int) -> tuple[str, ...]:
        """Return the GPUs of a slot."""
        return () if self.gpus is None else self.gpus[slot % self.slots]

    def kinds(self, labels: Collection[str]) -> frozenset[str]:
        """Return the kinds of its slots (`Offer.kind`), which have these labels."""
        return frozenset(Offer(len(self.of(slot)), frozenset(labels)).kind for slot in range(self.slots))

    def environment(self, slot: int) -> Mapping[str, str]:
        """Return the environment variables of the trainers of a slot."""
        return {} if self.gpus is None else {VISIBLE: ",".join(self.of(slot))}


class Slot:
    """One prefork child: everything that it keeps between runs."""

    def __init__(self, settings: Settings, resources: HostResources, shared: SharedState, limits: Limits) -> None:
        self._settings = settings
        self._resources = resources
        self._shared = shared
        self._limits = limits
        self._started = time.time()
        self._over = threading.Event()
        self._known = threading.Event()
        """Set once the slot's row has been written."""
        self._busy = False
        self._supervisor: Supervisor | None = None
        """Of the run that the slot executes."""

    def open(self) -> None:
        """Set up what must not be inherited from the parent: connections, threads, the warm trainer."""
        end_with_parent(os.getppid())
        configure_logging("worker", log_format=self._settings.log.format, level=self._settings.log.level)
        self.worker_id = f"{socket.gethostname()[:HOST_CHARACTERS]}/{os.getpid()}/{self._started:.0f}"
        os.environ[WORKER_VARIABLE] = self.worker_id  # trainers and collectors say whose they are
        bind_process(worker_id=self.worker_id)
        if self._shared.flags.taken:
            log.error("slot_killed", reason="The process of the slot died with its run: another worker resumes it.")
            self._shared.finish(lost=True)
        self._number = number = current_process().index
        self._shared.set_busy(number, busy=False)  # the child before this one may have died with a run
        self._gpus = self._resources.of(number)
        self._offer = Offer(len(self._gpus), frozenset(_labels(self._settings)))
        self._kinds = self._resources.kinds(_labels(self._settings))
        self._database = Database.from_settings(self._settings.database, CONNECTIONS)
        self._queue = RunQueue(self._database, self._settings.scheduling)
        self._registry = WorkerRegistry(self._database)
        self._store = open_store(self._settings.storage)
        self._telemetry = WorkerTelemetry()
        self._database.tracer = self._tracer = open_tracer(self._settings.telemetry, "worker")
        self._wake_ups = WakeUpQueue(make_celery(self._settings))
        self._watchdog = Watchdog(self._settings.worker.stall_seconds)
        self._fingerprint = fingerprint(self._gpus, self._settings.worker.commit)
        self._warm = WarmTrainer(self._resources.environment(number), self._lock())
        self._warm.prepare()
        if swept := sweep(self._settings.worker.scratch):
            log.info("leftovers_removed", folders=swept)
        self._passed_on: dict[str, float] = {}
        """Runs whose wake-ups were passed on, and when."""
        threading.Thread(target=self._beat, name="worker-beat", daemon=True).start()
        threading.Thread(target=self._look_for_work, name="worker-look", daemon=True).start()

    def _lock(self) -> Sequence[int]:
        """Lock the slot's GPUs; return the descriptors, with which trainers keep the locks too."""
        if self._settings.worker.share_gpus:
            return ()
        try:
            return [lock.descriptor for lock in lock_gpus(self._gpus, f"worker {self.worker_id}")]
        except GpuInUse as error:
            log.error("gpu_in_use", reason=str(error))  # noqa: TRY400  # the sentence says it all
            os._exit(1)  # Celery swallows exceptions here; the next child of this slot tries again

    def close(self) -> None:
        """Leave nothing behind."""
        self._over.set()
        self._warm.close()
        try:
            self._registry.stopped(self.worker_id)
        except LudusError as error:
            log.warning("worker_stop_not_recorded", error=str(error))
        self._wake_ups.close()
        self._database.close()
        if self._tracer is not None:
            self._tracer.close()

    def stopping(self) -> bool:
        """Whether the worker shall hand its runs back."""
        return self._shared.flags.stopping

    def work(self, hint: str) -> None:
        """Execute runs until none is eligible; `hint` is the one that rang."""
        self._busy = True
        self._watchdog.received()
        try:
            self._execute(hint)
        except Unavailable as error:
            self._shared.flags.taken = False
            log.warning("run_not_claimed", error=str(error))  # the controller wakes a slot for it again
        finally:
            self._busy = False

    def _execute(self, hint: str) -> None:
        preferred: str | None = hint
        self._known.wait(BEAT_SECONDS)  # the worker must be in the database before it holds a run
        while not self.stopping() and not self._shared.flags.finished:
            self._shared.flags.taken = self._limits.once  # first: this process may be killed as soon as it has it
            claim = self._queue.claim(
                self.worker_id, self._settings.worker.lease_seconds, preferred, self._offer, self._fingerprint
            )
            if claim is None:
                self._shared.flags.taken = False
                self._pass_on(self._queue.for_another)
                return
            preferred = None
            self._shared.set_busy(self._number, busy=True)
            try:
                self._train(claim)
            finally:
                self._shared.set_busy(self._number, busy=False)
                if self._limits.once and not has_lent(self._queue, claim):
                    self._shared.finish()
            if not self._shared.flags.finished:
                self._warm.prepare()

    def _train(self, claim: Claim) -> None:
        """Execute one attempt."""
        ids: dict[str, object] = {"run_id": claim.run_id, "attempt": claim.attempt}
        observers: list[Observer] = [AttemptMeasurement(self._telemetry, claim).observe]
        if self._tracer is not None:
            observers.append(AttemptSpans(self._tracer, claim).observe)
            ids["trace_id"] = trace_id(claim.run_id)
        with structlog.contextvars.bound_contextvars(**ids):
            self._supervisor = Supervisor(
                claim,
                AttemptLedger(self._database, claim, self._settings.controller.restart_budget, observers),
                self._store,
                self._settings.worker,
                self._settings.worker.scratch / f"{claim.run_id}-{claim.attempt}",
                self._settings.gateway,
                self.stopping,
                self._gpus,
            )
            try:
                self._supervisor.run(self._warm)
            finally:
                self._supervisor = None

    def _pass_on(self, another: AnotherSlot | None) -> None:
        """Wake another slot for a run that it serves: this one has received the wake-up, and does not take the run."""
        now = time.monotonic()
        self._passed_on = {
            run_id: moment for run_id, moment in self._passed_on.items() if now - moment < PASS_ON_SECONDS
        }
        if another is None or another.run_id in self._passed_on:
            return
        self._passed_on[another.run_id] = now
        self._wake_ups.wake(another.run_id, another.kind)
        if another.kind in self._kinds:
            self._over.wait(YIELD_SECONDS)

    def _look_for_work(self) -> None:
        """Wake a slot of this kind if a run waits that it serves: its wake-up was sent before this slot was there."""
        self._known.wait()
        try:
            run_id = self._queue.waiting(self._offer)
        except LudusError as error:
            log.warning("queue_not_read", error=str(error))
            return
        if run_id is not None and not self._shared.flags.finished:
            self._wake_ups.wake(run_id, self._offer.kind)

    def _beat(self) -> None:
        """Keep this slot's row current, and an eye on the queue. While it executes a run, its lease says that it lives.

        A database that is a restored one ends the attempt; the slot enters the list again after that.
        """
        listed = False
        while not self._over.wait(BEAT_SECONDS if listed else 0.0):
            try:
                if not listed:
                    self._registry.register(
                        WorkerInfo(
                            self.worker_id,
                            socket.gethostname(),
                            os.getpid(),
                            version("ludus"),
                            labels=_labels(self._settings),
                            resources={"gpus": list(self._gpus)},
                        )
                    )
                    self._known.set()
                supervisor = self._supervisor
                if supervisor is None or not supervisor.lease.fresh:
                    listed = self._registry.beat(self.worker_id)
                self._watch_queue()
            except LudusError as error:
                log.warning("worker_beat_failed", error=str(error))
                self._over.wait(BEAT_SECONDS)
            supervisor = self._supervisor
            if supervisor is None or supervisor.lease.kept:
                self._shared.turn(self._number)
                if self._shared.all_turn(FRESH_SECONDS):  # every slot of the host gets on
                    touch(self._settings.worker.alive_file)

    def _watch_queue(self) -> None:
        """Restart the parent if it leaves messages in the queue while this slot is idle."""
        idle = not self._busy and not self.stopping()
        pending = self._wake_ups.pending() + self._wake_ups.pending(self._offer.kind) if idle else 0
        if not self._watchdog.stalled(idle=idle, pending=pending):
            return
        log.error("queue_stalled", seconds=self._settings.worker.stall_seconds)
        self._shared.flags.restarting = True
        os.kill(os.getppid(), signal.SIGTERM)
        seconds = self._settings.worker.stop_seconds + RESTART_SECONDS
        if not self._over.wait(seconds):
            log.error("worker_hangs", seconds=seconds)
            os.kill(os.getppid(), signal.SIGKILL)  # and this process with it


def has_lent(queue: RunQueue, claim: Claim) -> bool:
    """Return whether a run only lent its slot, which takes the other one next; False where the queue can't tell."""
    try:
        return queue.has_lent(claim)
    except LudusError as error:
        log.warning("queue_not_read", error=str(error))
        return False


def end_by_itself(shared: SharedState, end: WorkerEnd) -> None:
    """Stop this process as SIGTERM does once there is a reason. The body of a thread of the parent."""
    while not shared.flags.stopping:
        reason = end.reason(busy=shared.busy, finished=shared.flags.finished, lost=shared.flags.lost)
        if reason is not None:
            log.info("worker_ends", reason=reason)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(LOOK_SECONDS)


def _labels(settings: Settings) -> list[str]:
    """Return the labels of this worker: those that it is given, and one for each plug-in that it has."""
    return [*settings.worker.labels, *(plugin.label for plugin in added())]


def build(settings: Settings, resources: HostResources, shared: SharedState, limits: Limits) -> Celery:
    """Return the worker's Celery application, with its tasks and the hooks of its processes."""
    for problem in broken():
        log.warning("plugin_broken", problem=str(problem))
    celery = make_celery(settings)
    celery.conf.task_queues = queues_of(resources.kinds(_labels(settings)))
    slot = Slot(settings, resources, shared, limits)

    @celery.task(name=TaskName.TRAIN)  # type: ignore[untyped-decorator]
    def train(run_id: str) -> None:
        """Execute the best eligible run. Harmless when delivered twice: the second claim finds nothing."""
        slot.work(run_id)

    @worker_ready.connect(weak=False)  # type: ignore[untyped-decorator]
    def _serve_metrics(**_: object) -> None:
        serve_slots(settings.telemetry, settings.worker.alive_file)
        if limits:
            end = WorkerEnd(limits)
            threading.Thread(target=end_by_itself, args=(shared, end), name="worker-end", daemon=True).start()

    @worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator]
    def _open(**_: object) -> None:
        slot.open()

    @worker_process_shutdown.connect(weak=False)  # type: ignore[untyped-decorator]
    def _close(**_: object) -> None:
        slot.close()

    @worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator]
    def _hand_back(**_: object) -> None:
        shared.flags.stopping = True

    return celery
