"""The supervisor's loop: hands the job to a trainer, serves it until its last word, and concludes the attempt.

The supervisor holds the lease. It renews it, passes intents down (pause, stop, cancel, hand back) and what else users
want (changes, a checkpoint), and writes what the trainer reports to the database and the artifact store. Writes that
find the database out of reach wait in order and are tried again, for `outage_seconds` at most: an outage takes no run
away from anybody (the steward can't read either), so the trainer learns on. When the database says that the run is
another worker's, the trainer is ended at once; nothing was written meanwhile, because every write carries its epoch.

Threads: everything runs on the task's thread except the copying to and from the artifact store, which has one thread of
its own (`Copier`), and the signs of life for the trainer, so that a database that answers slowly does not cost the
trainer. A supervisor that is frozen gives none.
"""

import contextlib
import errno
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import assert_never

import structlog

from ludus.protocol.server_tls import TlsFiles
from server.kit.artifacts import ArtifactStore
from server.kit.errors import LeaseLost, StorageFull, StorageRefused, Unavailable
from server.kit.settings import WorkerSettings
from server.runs.attempts.claim import Claim
from server.runs.attempts.repository import AttemptLedger
from server.runs.states import Intent, RunState, StopReason
from worker.host.memory import MemoryWatch, kernel_kills
from worker.host.ports import PortTaken, hold_port
from worker.host.process import TrainerProcess, WarmTrainer
from worker.host.supervisor.checkpoints import CheckpointCommits
from worker.host.supervisor.copies import Copier, Unwanted
from worker.host.supervisor.job import ConfigUnreadable, NoGoodCheckpoint, amendment, configuration, prepare
from worker.host.supervisor.lease import Lease
from worker.host.supervisor.logs import LogPublisher
from worker.host.supervisor.reports import enter
from worker.host.supervisor.scratch import Scratch
from worker.host.supervisor.writes import Writes
from worker.trainer.link import (
    Action,
    Amend,
    Beat,
    CheckpointWritten,
    Command,
    EditParameters,
    Finished,
    LinkClosed,
    Listening,
    ParameterEdit,
    Progress,
    SaveCheckpoint,
    SimulatorUp,
    ToSupervisor,
)
from worker.trainer.restore import CheckpointUnusable, DemonstrationUnusable

log = structlog.get_logger()

LOG_SECONDS = 2.0
"""How often a growing log is published."""
CANCEL_GRACE_SECONDS = 3.0
"""What a cancelled trainer gets to say goodbye to its simulators."""
EXIT_GRACE_SECONDS = 5.0
"""What a trainer that has said its last word gets to end by itself; torch takes seconds on a busy machine."""
BURST, FLUSH_SECONDS = 1000, 1.0
"""How many messages are taken, and for how long is written, between two looks at the lease."""
RETRY_SECONDS = 0.5
"""Pause between attempts to reach a database that is out of reach."""


class Supervisor:
    """Executes one attempt. `run` returns when nothing of it is left."""

    def __init__(
        self,
        claim: Claim,
        ledger: AttemptLedger,
        store: ArtifactStore,
        settings: WorkerSettings,
        scratch: Path,
        ticket_key: bytes | None,
        stopping: Callable[[], bool],
        tls: TlsFiles | None = None,
    ) -> None:
        self._claim = claim
        self._ledger = ledger
        self._settings = settings
        self._scratch = Scratch(scratch)
        self._ticket_key = ticket_key
        self._stopping = stopping
        self._tls = tls
        self._lease = Lease(claim, ledger, settings)
        self._copier = Copier(store, self._lease, stopping)
        self._writes = Writes()
        self._checkpoints = CheckpointCommits(claim, ledger, self._copier)
        self._log = LogPublisher(claim, ledger, self._copier, self._writes, scratch)
        self._state = RunState.STARTING
        self._edit = 0
        """Newest edit of environment parameters that the trainer was told of."""
        self._amendment = max((each.seq for each in claim.amendments), default=0)
        """Newest amendment of the configuration that the trainer was told of."""
        self._request = 0
        """Newest request for a checkpoint that the trainer was told of."""
        self._begun_with: int | None = None
        """How far the run was when the trainer began."""
        self._command: Action | None = None
        self._patience_ends = math.inf
        self._finished: Finished | None = None
        self._listens = False
        self._outgrown: str | None = None
        """Set when the trainer holds more memory than it may, as a sentence."""
        self._kernel_kills = kernel_kills()
        self._memory = MemoryWatch(settings.trainer_memory_bytes)

    def run(self, warm: WarmTrainer) -> None:
        """Execute the attempt from its claim to its last write. Nothing of the trainer lives when it returns."""
        try:
            ending = self._with_reason(self._executed(warm))
            self._conclude(ending)
            self._settle()
            log.info("attempt_ended", outcome=ending.outcome, reason=ending.reason, detail=ending.detail)
        except LeaseLost as lost:
            log.warning("lease_lost", reason=str(lost))
        finally:
            self._copier.close()
            self._scratch.remove()

    def _executed(self, warm: WarmTrainer) -> Finished:
        """Execute the attempt, and return how it has ended, or why it can't be executed here. Raises LeaseLost."""
        try:
            with self._ports():
                return self._execute(warm)
        except (DemonstrationUnusable, CheckpointUnusable, PortTaken) as error:
            return Finished(outcome="failed", reason=StopReason.TRAINER_ERROR, detail=str(error))
        except ConfigUnreadable as error:  # a worker of the api's release may take the run next
            return _lost(str(error), StopReason.TRAINER_ERROR)
        except NoGoodCheckpoint as error:
            return Finished(outcome="failed", reason=StopReason.CHECKPOINT_DAMAGED, detail=str(error))
        except StorageFull as error:
            return Finished(outcome="failed", reason=StopReason.STORAGE_FULL, detail=str(error))
        except StorageRefused as error:  # charged to the restart budget: waiting alone mends nothing
            return _lost(str(error), StopReason.STORAGE_UNAVAILABLE)
        except (Unavailable, Unwanted) as error:
            return Finished(outcome="released", detail=str(error))
        except OSError as error:  # no room for a log, no right to the folder, no processes left
            log.exception("host_failed")
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            reason = StopReason.STORAGE_FULL if full else StopReason.TRAINER_LOST
            return _lost(f"the worker's host fails: {error}", reason)
        except LinkClosed as error:
            return _lost(f"the trainer ended before it had its job: {error}")

    def _execute(self, warm: WarmTrainer) -> Finished:
        self._scratch.make()
        job = prepare(
            self._claim,
            self._ledger,
            self._copier,
            self._settings,
            self._scratch.folder,
            self._log.path,
            self._ticket_key,
            self._tls,
        )
        trainer = warm.take(job)
        log.info("trainer_started", pid=trainer.pid, epoch=self._claim.epoch)
        try:
            with self._pulse(trainer):
                ending = self._watch(trainer)
            if self._finished is not None:
                self._await_exit(trainer)
        finally:
            trainer.end()
        self._log.publish(last=True)
        return ending

    @contextlib.contextmanager
    def _pulse(self, trainer: TrainerProcess) -> Iterator[None]:
        """Tell the trainer that its supervisor lives, whatever the database does."""
        over = threading.Event()

        def beat() -> None:
            with contextlib.suppress(LinkClosed):  # `receive` says so
                while not over.wait(self._settings.heartbeat_seconds):
                    trainer.link.send(Beat())

        thread = threading.Thread(target=beat, name="pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _ports(self) -> AbstractContextManager[None]:
        """Keep the fixed port that the run asks for, if it does. Raises `PortTaken` and `ConfigUnreadable`."""
        port = configuration(self._claim).simulators.unity_port
        return nullcontext() if port is None else hold_port(port)

    def _watch(self, trainer: TrainerProcess) -> Finished:
        """Serve the trainer until it has said its last word or is gone. Raises `LeaseLost`."""
        started = last_word = time.monotonic()
        next_log = 0.0
        while True:
            now = time.monotonic()
            intent = self._lease.keep()
            if intent is not None:
                self._obey(trainer, intent)
                self._pass_wishes(trainer)
                self._weigh(trainer)
            try:
                if self._hear(trainer):
                    last_word = now
            except LinkClosed:
                return self._trainer_gone(trainer)
            self._flush(trainer)
            if now >= next_log:
                next_log = now + LOG_SECONDS
                self._log.publish()
            if self._finished is not None and not self._writes and not self._checkpoints:
                return self._finished
            if self._checkpoints and self._command != "cancel" and not self._stopping():  # the trainer waits for us
                self._patience_ends = max(self._patience_ends, now + EXIT_GRACE_SECONDS)
            if now > self._patience_ends and self._finished is None:
                return self._overdue()
            if not self._listens and now - started > self._settings.startup_seconds:
                return _lost(f"the trainer took more than {self._settings.startup_seconds:g} s to start")
            if self._listens and now - last_word > self._settings.silence_seconds:
                return _lost(f"the trainer reported nothing for {self._settings.silence_seconds:g} s")

    # what users want ------------------------------------------------------------------------------------------------

    def _obey(self, trainer: TrainerProcess, intent: Intent) -> None:
        try:
            match intent:
                case Intent.NONE:
                    if self._stopping() and self._command is None:
                        self._tell(trainer, "release", self._settings.stop_seconds)
                case Intent.PAUSE:
                    if self._command is None:
                        self._move(RunState.PAUSING, StopReason.USER, "A user asked to pause the run.")
                        self._tell(trainer, "pause", self._settings.stop_seconds)
                case Intent.STOP:
                    if self._command != "stop":
                        self._move(RunState.STOPPING)
                        self._tell(trainer, "stop", self._settings.stop_seconds)
                case Intent.CANCEL:
                    if self._command != "cancel":
                        self._tell(trainer, "cancel", CANCEL_GRACE_SECONDS)
                case _:
                    assert_never(intent)
        except LinkClosed:
            pass  # `receive` says so next, when everything that the trainer has sent is read

    def _weigh(self, trainer: TrainerProcess) -> None:
        """Replace a trainer that holds more memory than it may: it saves a checkpoint and hands the run back."""
        outgrown = self._memory.weigh(trainer.pid) if self._command is None else None
        if outgrown is None:
            return
        self._outgrown = str(outgrown)
        message = f"{outgrown} It saves a checkpoint and is replaced."
        data = {"bytes": outgrown.held, "limit_bytes": outgrown.limit, "step": self._lease.step}
        self._writes.add(self._ledger.event, "trainer_outgrown", message, level="warning", data=data)
        log.warning("trainer_outgrown", **data)
        with contextlib.suppress(LinkClosed):  # `receive` says so next
            self._tell(trainer, "release", self._settings.stop_seconds, self._outgrown)

    def _pass_wishes(self, trainer: TrainerProcess) -> None:
        """Hand the trainer what users want changed, and a wish for a checkpoint; it knows from its own what is done."""
        try:
            amendments = self._ledger.amendments(self._amendment)
            if amendments:
                trainer.link.send(Amend(amendments=[amendment(each) for each in amendments]))
                self._amendment = amendments[-1].seq
            request = self._ledger.checkpoint_wanted()
            if request is not None and request > self._request:
                trainer.link.send(SaveCheckpoint(request=request))
                self._request = request
            edits = [
                ParameterEdit(seq=seq, parameter=parameter, **change)
                for seq, parameter, change in self._ledger.parameter_edits(self._edit)
            ]
            if edits:
                trainer.link.send(EditParameters(edits=edits))
                self._edit = edits[-1].seq
        except Unavailable as error:
            log.warning("wishes_not_read", error=str(error))
        except LinkClosed:
            pass  # `receive` says so next

    def _tell(self, trainer: TrainerProcess, action: Action, seconds: float, why: str | None = None) -> None:
        """Give the trainer a command, and so many seconds to finish; `why` it is to release the run."""
        self._command = action
        self._patience_ends = time.monotonic() + seconds
        trainer.link.send(Command(action=action) if why is None else Command(action=action, detail=why))

    # what the trainer reports ---------------------------------------------------------------------------------------

    def _hear(self, trainer: TrainerProcess) -> bool:
        """Take what the trainer has sent, and tell whether that was anything. Raises `LinkClosed`.

        All of it at once: while the database is away rounds are slow, and a trainer that has said that it listens, or
        its last word, must not look late because of what it said before.
        """
        patience = 0.1
        for heard in range(BURST):
            message = trainer.link.receive(patience)
            if message is None:
                return heard > 0
            self._take(message)
            patience = 0.0
        return True

    def _take(self, message: ToSupervisor) -> None:
        match message:
            case Progress():
                self._lease.step = message.step
                self._begun_with = message.step if self._begun_with is None else self._begun_with
                if message.step > self._begun_with:
                    self._begin()  # clones learn without a simulator
            case CheckpointWritten():
                self._checkpoints.begin(message)
            case Finished():
                self._finished = message
            case _:
                self._listens |= isinstance(message, Listening)
                if isinstance(message, SimulatorUp):
                    self._begin()
                self._writes.add(enter, self._ledger, message)

    def _begin(self) -> None:
        if self._state is RunState.STARTING:
            self._move(RunState.RUNNING)

    def _move(self, to: RunState, reason: StopReason | None = None, detail: str | None = None) -> None:
        """Move the run once everything before it is written."""
        self._state = to
        self._writes.add(self._ledger.move, to, reason=reason, detail=detail)

    def _flush(self, trainer: TrainerProcess) -> None:
        """Write what waits; then take over checkpoints that are copied."""
        with self._writing():
            self._writes.flush(FLUSH_SECONDS)
            if not self._writes:
                self._checkpoints.finish(trainer.link)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Leave what can't be written, because the database is out of reach, for later."""
        try:
            yield
        except Unavailable as error:
            log.warning("write_delayed", error=str(error), waiting=len(self._writes))
            time.sleep(RETRY_SECONDS)

    # the end --------------------------------------------------------------------------------------------------------

    def _overdue(self) -> Finished:
        """Conclude for a trainer that does not do what it was told in time."""
        if self._command == "cancel":
            return Finished(outcome="cancelled", reason=StopReason.USER)
        seconds = self._settings.stop_seconds
        return _lost(f"the trainer took more than {seconds:g} s for its last checkpoint")

    def _trainer_gone(self, trainer: TrainerProcess) -> Finished:
        """The link has ended: by plan, or because the trainer died."""
        self._settle()
        self._await_checkpoints(trainer)
        if self._finished is not None:
            return self._finished
        if self._command == "cancel":
            return Finished(outcome="cancelled", reason=StopReason.USER)
        status = self._await_exit(trainer)
        reason = self._log.last_error() or trainer.last_line() or "its log says more"
        if status == f"signal {signal.SIGKILL.name}":
            if kernel_kills() > self._kernel_kills:
                detail = "the kernel killed the trainer for want of memory (SIGKILL; oom_kill has risen); give its "
                detail += "worker more memory, or have the run hold less (buffer_size, the models' sizes)"
                return _lost(detail, StopReason.MEMORY_LIMIT)
            status += ", not sent by Ludus"
        return _lost(f"the trainer ended unexpectedly ({status or 'its link closed'}): {reason}")

    def _await_checkpoints(self, trainer: TrainerProcess) -> None:
        """Take over the checkpoints that are still copied, and keep the lease meanwhile. Raises `LeaseLost`."""
        while self._checkpoints:
            self._lease.keep()
            self._checkpoints.wait(0.1)
            self._flush(trainer)

    def _await_exit(self, trainer: TrainerProcess) -> str | None:
        """Let a trainer end by itself for a while, keep the lease meanwhile, and say how it ended; None if it lives."""
        deadline = time.monotonic() + EXIT_GRACE_SECONDS
        while (status := trainer.exit_status()) is None and time.monotonic() < deadline:
            self._lease.keep()
            time.sleep(0.02)
        return status

    def _with_reason(self, ending: Finished) -> Finished:
        """Return an ending with the reason that is recorded.

        The supervisor knows why it wanted a trainer to end, which the trainer may not have lived to say.
        """
        if self._outgrown is None or ending.outcome not in {"released", "lost"}:
            return ending
        detail = self._outgrown if ending.outcome == "released" else f"{self._outgrown} Then {ending.detail}."
        return ending.model_copy(update={"reason": StopReason.MEMORY_LIMIT, "detail": detail})

    def _conclude(self, finished: Finished) -> None:
        """Queue the attempt's last writes."""
        reason = StopReason(finished.reason) if finished.reason else None
        # The lease has to last for what follows, and the row gets the last step.
        self._writes.add(self._lease.renew)
        match finished.outcome:
            case "succeeded":
                if self._state is not RunState.STOPPING:
                    self._move(RunState.STOPPING)
                self._move(RunState.SUCCEEDED, reason, finished.detail)
            case "cancelled":
                self._move(RunState.CANCELLED, reason, finished.detail)
            case "paused" if self._state is RunState.STOPPING:  # a user's wish that came after the pause outranks it
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

    def _settle(self) -> None:
        """Write everything that waits, and keep the lease meanwhile. Raises LeaseLost."""
        while self._writes:
            self._lease.keep()
            with self._writing():
                self._writes.flush(FLUSH_SECONDS)


def _lost(detail: str, reason: StopReason = StopReason.TRAINER_LOST) -> Finished:
    """Conclude that another attempt has to go on."""
    return Finished(outcome="lost", reason=reason, detail=detail)
