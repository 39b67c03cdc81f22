"""The supervisor: hands the job to a trainer, serves it until it has finished, and concludes the attempt.

The supervisor holds the lease. It renews it, sends users' intents (pause, stop, cancel, hand back), changes and
requests for checkpoints to the trainer, and writes the trainer's reports to the database and the artifact store. Writes
that find the database out of reach wait in order and are tried again, for `outage_seconds` at most. During an outage
the trainer learns on: the controller cannot read the database either, so that no run is taken away. When the database
says that the run belongs to another worker, the trainer is ended at once. Nothing was written meanwhile, because every
write carries the attempt's number.

Threads: everything runs on the task's thread, except the copies to and from the artifact store, which have one thread
(`ArtifactTransfer`), the heartbeats for the trainer, so that a slow database does not end the trainer, and the samples
of the resources that it uses (`ResourceMeter`). A frozen supervisor sends no heartbeats.
"""

import errno
import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import assert_never

import structlog

from ludus.collector.messages import SimulatorConnected
from ludus.config.run import RunConfig
from ludus.schemas.states import RunState, StopReason
from server.kit.artifacts.store import ArtifactStore
from server.kit.errors import LeaseLost, StorageFull, StorageRefused, Unavailable
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.kit.states import Intent
from server.lifecycle.attempts.repository import AttemptLedger
from server.lifecycle.claims.repository import Claim
from worker.host.memory import OverMemoryLimit, kernel_kills
from worker.host.ports import PortTaken, hold_port
from worker.host.process import TrainerProcess, WarmTrainer
from worker.host.supervisor.checkpoints import CheckpointCommits
from worker.host.supervisor.job import ConfigUnreadable, NoGoodCheckpoint, configuration, prepare
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.logs import LogPublisher
from worker.host.supervisor.profiles import Profiles
from worker.host.supervisor.reports import write
from worker.host.supervisor.requests import UserRequests
from worker.host.supervisor.resources import ResourceRecorder
from worker.host.supervisor.scratch import Scratch
from worker.host.supervisor.transfers import ArtifactTransfer, Unwanted
from worker.host.supervisor.writes import Writes
from worker.trainer.connection import ConnectionClosed
from worker.trainer.messages import (
    Action,
    CheckpointWritten,
    Command,
    Finished,
    Listening,
    Metrics,
    Progress,
    ToSupervisor,
)
from worker.trainer.restore import CheckpointUnusable, DemonstrationUnusable

log = structlog.get_logger()

LOG_SECONDS = 2.0
"""How often a growing log is published."""
CANCEL_GRACE_SECONDS = 3.0
"""Time for a cancelled trainer to close its simulators' sessions."""
EXIT_GRACE_SECONDS = 5.0
"""Time for a finished trainer to end by itself; torch takes seconds on a busy machine."""
BURST, FLUSH_SECONDS = 1000, 1.0
"""Most messages that are received, and seconds that are spent on writes, between two checks of the lease."""
RETRY_SECONDS = 0.5
"""Pause between attempts to reach a database that is out of reach."""


class Supervisor:
    """Executes one attempt. No process of it is left when `run` returns."""

    def __init__(
        self,
        claim: Claim,
        ledger: AttemptLedger,
        store: ArtifactStore,
        settings: WorkerSettings,
        scratch: Path,
        gateway: GatewaySettings,
        stopping: Callable[[], bool],
        gpus: Sequence[str] = (),
    ) -> None:
        """`gpus`: UUIDs or numbers of those that the trainer sees; none where nothing is known of them."""
        self._claim = claim
        self._ledger = ledger
        self._settings = settings
        self._scratch = Scratch(scratch)
        self._gateway = gateway
        self._stopping = stopping
        self.lease = Lease(claim, ledger, settings)
        self._transfer = ArtifactTransfer(store, self.lease, stopping, ledger.notify)
        self._writes = Writes()
        self._checkpoints = CheckpointCommits(claim, ledger, self._transfer, self._writes)
        self._log = LogPublisher(claim, ledger, self._transfer, self._writes, scratch)
        self._profiles = Profiles(claim, ledger, self._transfer, self._writes, self._scratch.folder)
        self._state = RunState.STARTING
        self._requests = UserRequests(claim, ledger, self._profiles)
        self._begun_with: int | None = None
        """The run's step when the trainer began."""
        self._command: Action | None = None
        self._deadline = math.inf
        self._finished: Finished | None = None
        self._listens = False
        self._over_memory: str | None = None
        """Set when the trainer uses more memory than it may: a sentence for the run."""
        self._kernel_kills = kernel_kills()
        self._resources = ResourceRecorder(self.lease, ledger, self._writes, gpus)

    def run(self, warm: WarmTrainer) -> None:
        """Execute the attempt, from its claim to its last write."""
        try:
            ending = self._executed(warm)
            if self._over_memory is not None and ending.outcome in {"released", "lost"}:
                over = self._over_memory
                detail = over if ending.outcome == "released" else f"{over} Then {ending.detail}."
                ending = ending.model_copy(update={"reason": StopReason.MEMORY_LIMIT, "detail": detail})
            self._conclude(ending)
            self._flush_all()
            log.info("attempt_ended", outcome=ending.outcome, reason=ending.reason, detail=ending.detail)
        except LeaseLost as lost:
            log.warning("lease_lost", reason=str(lost))
        finally:
            self._transfer.close()
            self._scratch.remove()

    def _executed(self, warm: WarmTrainer) -> Finished:
        """Execute the attempt; return how it has ended, or why it can't be executed here. Raises LeaseLost."""
        try:
            config = configuration(self._claim)
            port = config.simulators.unity_port
            with nullcontext() if port is None else hold_port(port):
                return self._execute(warm, config)
        except (DemonstrationUnusable, PortTaken) as error:
            return Finished(outcome="failed", reason=StopReason.TRAINER_ERROR, detail=str(error))
        except ConfigUnreadable as error:  # a worker of the api's release may take the run next
            return _lost(str(error), StopReason.TRAINER_ERROR)
        except (CheckpointUnusable, NoGoodCheckpoint) as error:
            return Finished(outcome="failed", reason=StopReason.CHECKPOINT_DAMAGED, detail=str(error))
        except StorageFull as error:
            return Finished(outcome="failed", reason=StopReason.STORAGE_FULL, detail=str(error))
        except StorageRefused as error:  # counts against the restart budget: waiting does not help
            return _lost(str(error), StopReason.STORAGE_UNAVAILABLE)
        except (Unavailable, Unwanted) as error:
            return Finished(outcome="released", detail=str(error))
        except OSError as error:  # no room for a log, no right to the folder, no processes left
            log.exception("host_failed")
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            reason = StopReason.STORAGE_FULL if full else StopReason.TRAINER_LOST
            return _lost(f"the worker's host fails: {error}", reason)
        except ConnectionClosed as error:
            return _lost(f"the trainer ended before it had its job: {error}")

    def _execute(self, warm: WarmTrainer, config: RunConfig) -> Finished:
        if self._claim.attempt > 1:
            self._writes.add(self._ledger.rewind_metrics)  # the first write: before any metric of this attempt
            with self._writing():
                self._writes.flush(FLUSH_SECONDS)
        self._scratch.make()
        folder = self._scratch.folder
        job = prepare(self._claim, config, self._ledger, self._transfer, self._settings, folder, self._gateway)
        trainer = warm.take(job)
        log.info("trainer_started", pid=trainer.pid, attempt=self._claim.attempt)
        try:
            with trainer.heartbeat(self._settings.heartbeat_seconds), self._resources.measuring(trainer.pid):
                ending = self._watch(trainer)
            if self._finished is not None:
                self._await_exit(trainer)
        finally:
            self._profiles.close()
            trainer.end()
        self._log.publish(last=True)
        return ending

    def _watch(self, trainer: TrainerProcess) -> Finished:
        """Serve the trainer until it has finished or has died. Raises `LeaseLost`."""
        started = last_message = time.monotonic()
        next_log = 0.0
        while True:
            now = time.monotonic()
            renewal = self.lease.keep()
            if renewal is not None:
                self._apply_intent(trainer, renewal.intent)
                self._requests.serve(trainer, renewal.requests)
                self._check_memory(trainer, self._settings.trainer_memory_bytes)
            try:
                if self._receive(trainer):
                    last_message = now
            except ConnectionClosed:
                return self._trainer_gone(trainer)
            self._profiles.poll()
            self._flush(trainer)
            if now >= next_log:
                next_log = now + LOG_SECONDS
                self._log.publish()
            if self._finished is not None and not self._writes and not self._checkpoints:
                return self._finished
            if self._checkpoints and self._command != "cancel" and not self._stopping():
                # The trainer has done its part, and waits for the answer to its checkpoint.
                self._deadline = max(self._deadline, now + EXIT_GRACE_SECONDS)
            if now > self._deadline and self._finished is None:
                if self._command == "cancel":
                    return Finished(outcome="cancelled", reason=StopReason.USER)
                seconds = self._settings.stop_seconds
                why = f"the trainer took more than {seconds:g} s for its last checkpoint"
                return _lost(f"{why} (LUDUS_WORKER__STOP_SECONDS)")
            if not self._listens and now - started > self._settings.startup_seconds:
                seconds = self._settings.startup_seconds
                return _lost(f"the trainer took more than {seconds:g} s to start (LUDUS_WORKER__STARTUP_SECONDS)")
            if self._listens and now - last_message > self._settings.silence_seconds:
                seconds = self._settings.silence_seconds
                return _lost(f"the trainer reported nothing for {seconds:g} s (LUDUS_WORKER__SILENCE_SECONDS)")

    # intents and requests of users ------------------------------------------------------------------------------------

    def _apply_intent(self, trainer: TrainerProcess, intent: Intent) -> None:
        with suppress(ConnectionClosed):  # `receive` raises it next, when all that the trainer has sent is read
            match intent:
                case Intent.NONE:
                    if self._stopping() and self._command is None:
                        self._send_command(trainer, "release", self._settings.stop_seconds)
                case Intent.RELEASE:
                    if self._command is None:
                        why = "it was asked to hand its slot back"
                        self._send_command(trainer, "release", self._settings.stop_seconds, why)
                case Intent.PAUSE:
                    if self._command is None:
                        self._move(RunState.PAUSING, StopReason.USER, "A user asked to pause the run.")
                        self._send_command(trainer, "pause", self._settings.stop_seconds)
                case Intent.STOP:
                    if self._command != "stop":
                        self._move(RunState.STOPPING)
                        self._send_command(trainer, "stop", self._settings.stop_seconds)
                case Intent.CANCEL:
                    if self._command != "cancel":
                        self._send_command(trainer, "cancel", CANCEL_GRACE_SECONDS)
                case _:
                    assert_never(intent)

    def _check_memory(self, trainer: TrainerProcess, limit: int | None) -> None:
        """Make a trainer that uses more memory than it may save a checkpoint and hand the run back."""
        if limit is None or self._resources.memory <= limit or self._command is not None:
            return
        excess = OverMemoryLimit(self._resources.memory, limit)
        self._over_memory = str(excess)
        message = f"{excess} It saves a checkpoint and is replaced."
        data = {"bytes": excess.held, "limit_bytes": excess.limit, "step": self.lease.step}
        self._writes.add(self._ledger.event, "trainer_over_memory_limit", message, level="warning", data=data)
        log.warning("trainer_over_memory_limit", **data)
        with suppress(ConnectionClosed):  # `receive` raises it next
            self._send_command(trainer, "release", self._settings.stop_seconds, self._over_memory)

    def _send_command(self, trainer: TrainerProcess, action: Action, seconds: float, why: str | None = None) -> None:
        """Send a command that the trainer has `seconds` to carry out; `why` is the reason of a release."""
        self._command = action
        self._deadline = time.monotonic() + seconds
        trainer.connection.send(Command(action=action) if why is None else Command(action=action, detail=why))

    # reports of the trainer -------------------------------------------------------------------------------------------

    def _receive(self, trainer: TrainerProcess) -> bool:
        """Handle all messages that the trainer has sent; return whether there was one. Raises `ConnectionClosed`.

        All of them at once: a database outage makes each round slow, and the messages that show that the trainer
        listens, or has finished, may come after many others.
        """
        timeout = 0.1
        for received in range(BURST):
            message = trainer.connection.receive(timeout)
            if message is None:
                return received > 0
            self._handle(message)
            timeout = 0.0
        return True

    def _handle(self, message: ToSupervisor) -> None:
        match message:
            case Metrics():
                self._writes.add_points(self._ledger.metrics.append, message.points)
                self._resources.record(summary=True)
            case Progress():
                self.lease.step, self.lease.time_spent = message.step, message.time_spent
                self._begun_with = message.step if self._begun_with is None else self._begun_with
                if message.step > self._begun_with:
                    self._begin()  # clones learn without a simulator
                self._resources.record(summary=False)
            case CheckpointWritten():
                self._checkpoints.begin(message)
            case Finished():
                self._finished = message
            case _:
                self._listens |= isinstance(message, Listening)
                if isinstance(message, SimulatorConnected):
                    self._begin()
                self._writes.add(write, self._ledger, message)

    def _begin(self) -> None:
        if self._state is RunState.STARTING:
            self._move(RunState.RUNNING)

    def _move(self, to: RunState, reason: StopReason | None = None, detail: str | None = None) -> None:
        """Change the run's state once everything that is queued before is written."""
        self._state = to
        self._writes.add(self._ledger.move, to, reason=reason, detail=detail)

    def _flush(self, trainer: TrainerProcess) -> None:
        """Make queued writes; then enter the copied checkpoints whose turn it is."""
        with self._writing():
            self._writes.flush(FLUSH_SECONDS)
            self._checkpoints.finish(trainer.connection)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep writes for later while the database is out of reach."""
        try:
            yield
        except Unavailable as error:
            log.warning("write_delayed", error=str(error), waiting=len(self._writes))
            time.sleep(RETRY_SECONDS)

    # the end --------------------------------------------------------------------------------------------------------

    def _trainer_gone(self, trainer: TrainerProcess) -> Finished:
        """Return the end of a trainer whose connection has closed: it has finished, or it died."""
        self._flush_all()
        while self._checkpoints:  # that are still being copied
            self.lease.keep()
            self._checkpoints.wait(0.1)
            self._flush(trainer)
        if self._finished is not None:
            return self._finished
        if self._command == "cancel":
            return Finished(outcome="cancelled", reason=StopReason.USER)
        status = self._await_exit(trainer)
        reason = self._log.log.last_error() or trainer.last_line() or "its log says more"
        if status == f"signal {signal.SIGKILL.name}":
            if kernel_kills() > self._kernel_kills:
                detail = "the kernel killed the trainer for want of memory (SIGKILL; oom_kill has risen); give its "
                detail += "worker more memory, or have the run hold less (buffer_size, the models' sizes)"
                return _lost(detail, StopReason.MEMORY_LIMIT)
            status += ", not sent by Ludus"
        return _lost(f"the trainer ended unexpectedly ({status or 'its link closed'}): {reason}")

    def _await_exit(self, trainer: TrainerProcess) -> str | None:
        """Wait a while for the trainer to end, and keep the lease; return how it ended, None if it still lives."""
        deadline = time.monotonic() + EXIT_GRACE_SECONDS
        while (status := trainer.exit_status()) is None and time.monotonic() < deadline:
            self.lease.keep()
            time.sleep(0.02)
        return status

    def _conclude(self, finished: Finished) -> None:
        """Queue the last writes of the attempt."""
        reason = StopReason(finished.reason) if finished.reason else None
        # The lease has to last for the following writes, and the row gets the last step.
        self._writes.add(self.lease.renew)
        match finished.outcome:
            case "succeeded":
                if self._state is not RunState.STOPPING:
                    self._move(RunState.STOPPING)
                self._move(RunState.SUCCEEDED, reason, finished.detail)
            case "cancelled":
                self._move(RunState.CANCELLED, reason, finished.detail)
            case "paused" if self._state is RunState.STOPPING:  # a user's stop after the pause takes precedence
                self._move(RunState.SUCCEEDED, StopReason.USER, "stopped on request while the run paused")
            case "paused":
                self._move(RunState.PAUSING, reason, finished.detail)
                self._move(RunState.PAUSED, reason, finished.detail)
            case "failed":
                self._move(RunState.FAILED, reason, finished.detail)
            case "released":
                outcome = reason if reason is StopReason.MEMORY_LIMIT else "released"
                self._writes.add(self._ledger.release, outcome, finished.detail or "handed back")
            case "lost":
                detail, data = finished.detail or "", {"reason": reason}
                self._writes.add(self._ledger.event, "trainer_lost", detail, level="error", data=data)
                self._writes.add(self._ledger.release, reason or StopReason.TRAINER_LOST, detail)
            case _:
                assert_never(finished.outcome)

    def _flush_all(self) -> None:
        """Write everything that is queued, and keep the lease meanwhile. Raises LeaseLost."""
        while self._writes:
            self.lease.keep()
            with self._writing():
                self._writes.flush(FLUSH_SECONDS)


def _lost(detail: str, reason: StopReason = StopReason.TRAINER_LOST) -> Finished:
    """Return the end of an attempt that another one has to continue."""
    return Finished(outcome="lost", reason=reason, detail=detail)
