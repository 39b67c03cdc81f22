"""The body of the Celery task: executes one attempt of a run, and is its only writer.

The supervisor holds the lease. It hands the job to a trainer, renews the lease, passes intents down (pause, stop,
cancel, hand back) and what else users want (changes, a checkpoint), and writes what the trainer reports to the
database and the artifact store. Writes that find the database out of reach wait in order and are tried again, for
`outage_seconds` at most: an outage takes no run away from anybody (the steward can't read either), so the trainer
learns on. When the database says that the run is another worker's, the trainer is ended at once; nothing was written
meanwhile, because every write carries its epoch.

Threads: everything runs on the task's thread except the copying to and from the artifact store, which has one thread of
its own so that a slow disk or network does not cost the lease, and the signs of life for the trainer, so that a
database that answers slowly does not cost the trainer. A supervisor that is frozen gives none.
"""

import contextlib
import math
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

import structlog

from server.amendments.refs import AmendmentRef
from server.artifacts import ArtifactStore, FileRef
from server.attempts.claim import Claim
from server.attempts.repository import AttemptLedger
from server.checkpoints.refs import NewCheckpoint
from server.errors import LeaseLost, LudusError, StorageFull, StorageRefused, StorageUnavailable, Unavailable
from server.ladders.refs import PlayedMatch, PlayedSeat
from server.metrics.points import MetricPoint
from server.runs.states import Intent, RunState, StopReason
from server.settings import WorkerSettings
from server.tls import TlsFiles
from server.training.config import RunConfig
from worker.attempt_log import AttemptLog
from worker.link import (
    Action,
    Amend,
    Amended,
    Amendment,
    Assessed,
    Beat,
    ChangedKey,
    CheckpointCommitted,
    CheckpointDeclined,
    CheckpointRefused,
    CheckpointWritten,
    Command,
    EditParameters,
    EventRecord,
    Finished,
    Job,
    LinkClosed,
    Listening,
    Match,
    MatchesPlayed,
    MatchesResumed,
    Metrics,
    ParameterEdit,
    ParameterStates,
    Progress,
    SaveCheckpoint,
    SimulatorDown,
    SimulatorPlays,
    SimulatorUp,
    ToSupervisor,
)
from worker.memory import MemoryWatch
from worker.ports import PortTaken, hold_port
from worker.process import TrainerProcess, WarmTrainer
from worker.restore import CheckpointUnusable, DemonstrationUnusable, fetch, fetch_demonstrations

log = structlog.get_logger()

Result = TypeVar("Result")

RETRY_SECONDS = 0.5
"""Pause between attempts to reach a database that is out of reach."""
LOG_SECONDS = 2.0
"""How often a growing log is published."""
STORE_PATIENCE_SECONDS = 120.0
"""How long an artifact store that doesn't answer is tried again before a checkpoint counts as failed."""
STORE_RETRY_SECONDS = 2.0
CANCEL_GRACE_SECONDS = 3.0
"""What a cancelled trainer gets to say goodbye to its simulators."""
EXIT_GRACE_SECONDS = 5.0
"""What a trainer that has said its last word gets to end by itself; torch takes seconds on a busy machine."""


class NoGoodCheckpoint(Exception):
    """A run has checkpoints, and none of them can be restored."""

    def __init__(self, damaged: Sequence[str]) -> None:
        found = f" ({'; '.join(damaged)})" if damaged else ""
        super().__init__(
            f"none of the run's checkpoints can be restored{found}; bring their files back into the artifact store, "
            "let `ludus checkpoint verify RUN` look at them, and begin a run with `resume_from`"
        )


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
        self._store = store
        self._settings = settings
        self._scratch = scratch
        self._ticket_key = ticket_key
        self._stopping = stopping
        self._log = AttemptLog(scratch / "trainer.log")
        self._tls = {} if tls is None else tls.named()
        self._state = RunState.STARTING
        self._writes: deque[Callable[[], None]] = deque()
        self._copies: deque[tuple[CheckpointWritten, Future[tuple[str, list[FileRef]]]]] = deque()
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="artifacts")
        self._ended = threading.Event()
        self._log_copy: Future[list[tuple[str, str, int]]] | None = None
        self._log_trouble = ""
        """What the store said last of the log."""
        self._step = claim.resume.step if claim.resume is not None else 0
        self._edit = 0
        """Newest edit of environment parameters that the trainer was told of."""
        self._amendment = max((each.seq for each in claim.amendments), default=0)
        """Newest amendment of the configuration that the trainer was told of."""
        self._request = 0
        """Newest request for a checkpoint that the trainer was told of."""
        self._command: Action | None = None
        self._patience_ends = math.inf
        self._finished: Finished | None = None
        self._checkpoints = 0
        self._listens = False
        self._outgrown: str | None = None
        """Set when the trainer holds more memory than it may, as a sentence."""
        self._memory = MemoryWatch(settings.trainer_memory_bytes)

    def run(self, warm: WarmTrainer) -> None:
        """Execute the attempt from its claim to its last write. Nothing of the trainer lives when it returns."""
        try:
            try:
                with self._ports():
                    self._execute(warm)
            except (DemonstrationUnusable, CheckpointUnusable, PortTaken) as error:
                self._conclude(Finished(outcome="failed", reason=StopReason.TRAINER_ERROR, detail=str(error)))
                self._settle()
            except NoGoodCheckpoint as error:
                self._conclude(Finished(outcome="failed", reason=StopReason.CHECKPOINT_DAMAGED, detail=str(error)))
                self._settle()
            except StorageFull as error:
                self._conclude(Finished(outcome="failed", reason=StopReason.STORAGE_FULL, detail=str(error)))
                self._settle()
            except StorageRefused as error:  # charged to the restart budget: waiting alone mends nothing
                self._conclude(Finished(outcome="lost", detail=str(error)))
                self._settle()
            except Unavailable as error:
                self._conclude(Finished(outcome="released", detail=str(error)))
                self._settle()
        except LeaseLost as lost:
            log.warning("lease_lost", reason=str(lost))
        finally:
            self._ended.set()
            self._copier.shutdown(wait=True, cancel_futures=True)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _execute(self, warm: WarmTrainer) -> None:
        trainer = warm.take(self._job())
        log.info("trainer_started", pid=trainer.pid, epoch=self._claim.epoch)
        try:
            with self._pulse(trainer):
                ending = self._watch(trainer)
            if self._finished is not None:
                self._await_exit(trainer)
        finally:
            trainer.end()
        self._publish_log(last=True)
        self._conclude(ending)
        self._settle()
        log.info("attempt_ended", outcome=ending.outcome, reason=ending.reason)

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
        """Keep the fixed port that the run asks for, if it does. Raises `PortTaken`."""
        port = RunConfig.model_validate(self._claim.config).simulators.unity_port
        return nullcontext() if port is None else hold_port(port)

    def _job(self) -> Job:
        self._scratch.mkdir(parents=True, exist_ok=True)
        return Job(
            run_id=self._claim.run_id,
            epoch=self._claim.epoch,
            config=dict(self._claim.config),
            amendments=[_amendment(each) for each in self._claim.amendments],
            seed=self._claim.seed,
            resume_from=self._resume(),
            scratch=str(self._scratch),
            log_path=str(self._log.path),
            collectors=self._settings.collectors,
            bind_host=self._settings.bind_host,
            advertise_host=self._settings.advertise_host,
            port_range=self._settings.port_range,
            ticket_key=None if self._ticket_key is None else self._ticket_key.hex(),
            tls_certificate=self._tls.get("tls_certificate"),
            tls_key=self._tls.get("tls_key"),
            tls_client_ca=self._tls.get("tls_client_ca"),
            demonstrations=self._fetched(
                lambda: fetch_demonstrations(
                    self._store, self._ledger.demonstrations(), self._scratch / "demonstrations"
                )
            ),
            checkpoints=self._initial(),
            policies=self._ledger.policies(),
            assessed=self._ledger.assessed(),
            lease_seconds=self._settings.lease_seconds,
        )

    def _initial(self) -> dict[str, str]:
        """Fetch the checkpoints that behaviors begin with; return the folder of each. Raises CheckpointUnusable."""
        found = self._ledger.initial_checkpoints()
        return {
            each.id: str(self._fetched(partial(fetch, self._store, each, self._scratch / "initial" / each.id)))
            for each in found
        }

    def _resume(self) -> str | None:
        """Fetch the newest checkpoint that is good; return its folder, or None where the run has never had one.

        Raises NoGoodCheckpoint: to begin anew would throw away what was acknowledged, without anybody having said so.
        """
        checkpoint, damaged = self._claim.resume, list[str]()
        while checkpoint is not None:
            try:
                return str(self._fetched(partial(fetch, self._store, checkpoint, self._scratch / "resume")))
            except CheckpointUnusable as error:
                damaged.append(f"{checkpoint.id}: {error}")
                checkpoint = self._ledger.resume_instead(checkpoint.id, str(error))
        if damaged or self._ledger.has_checkpoints():
            raise NoGoodCheckpoint(damaged)
        return None

    def _fetched(self, fetch: Callable[[], Result]) -> Result:
        """Bring something from the artifact store; the lease is kept meanwhile, and a store that is away waited for.

        Raises what `fetch` raises, and LeaseLost.
        """
        deadline = time.monotonic() + STORE_PATIENCE_SECONDS
        while True:
            try:
                return self._keeping_lease(self._copier.submit(fetch))
            except StorageUnavailable as error:
                if time.monotonic() > deadline or self._stopping():
                    raise
                log.warning("fetch_delayed", error=str(error))
                self._keeping_lease(self._copier.submit(self._ended.wait, STORE_RETRY_SECONDS))

    def _keeping_lease(self, work: Future[Result]) -> Result:
        """Wait for work on the other thread and keep the lease. Raises LeaseLost, and what the work raises."""
        give_up = time.monotonic() + self._settings.outage_seconds
        next_beat = time.monotonic() + self._settings.heartbeat_seconds
        while not work.done():
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + self._settings.heartbeat_seconds
                if self._beat() is not None:
                    give_up = now + self._settings.outage_seconds
            if now >= give_up:
                raise LeaseLost(self._claim.run_id, self._claim.epoch)
            wait([work], timeout=0.1)
        return work.result()

    def _watch(self, trainer: TrainerProcess) -> Finished:
        """Serve the trainer until it has said its last word or is gone. Raises `LeaseLost`."""
        beat_every = self._settings.heartbeat_seconds
        give_up = time.monotonic() + self._settings.outage_seconds
        next_beat = next_log = 0.0
        started = last_word = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + beat_every
                intent = self._beat()
                if intent is not None:
                    give_up = now + self._settings.outage_seconds
                    self._obey(trainer, intent)
                    self._pass_wishes(trainer)
                    self._weigh(trainer)
            if now >= give_up:
                raise LeaseLost(self._claim.run_id, self._claim.epoch)
            try:
                message = trainer.link.receive(0.1)
            except LinkClosed:
                return self._trainer_gone(trainer)
            if message is not None:
                last_word = now
                self._take(message)
            self._flush(trainer)
            if now >= next_log:
                next_log = now + LOG_SECONDS
                self._publish_log()
            if self._finished is not None and not self._writes and not self._copies:
                return self._finished
            if now > self._patience_ends and self._finished is None:
                return self._overdue()
            if not self._listens and now - started > self._settings.startup_seconds:
                return _lost(f"the trainer took more than {self._settings.startup_seconds:g} s to start")
            if self._listens and now - last_word > self._settings.silence_seconds:
                return _lost(f"the trainer reported nothing for {self._settings.silence_seconds:g} s")

    def _beat(self) -> Intent | None:
        """Renew the lease; None when the database is out of reach."""
        try:
            return self._ledger.heartbeat(self._settings.lease_seconds, self._step)
        except Unavailable as error:
            log.warning("heartbeat_failed", error=str(error))
            return None

    def _overdue(self) -> Finished:
        """Conclude for a trainer that does not do what it was told in time."""
        if self._command == "cancel":
            return Finished(outcome="cancelled", reason=StopReason.USER)
        seconds = self._settings.stop_seconds
        return _lost(f"the trainer took more than {seconds:g} s for its last checkpoint")

    def _last_beat(self) -> None:
        self._ledger.heartbeat(self._settings.lease_seconds, self._step)

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
        data = {"bytes": outgrown.held, "limit_bytes": outgrown.limit, "step": self._step}
        self._writes.append(lambda: self._ledger.event("trainer_outgrown", message, level="warning", data=data))
        with contextlib.suppress(LinkClosed):  # `receive` says so next
            self._tell(trainer, "release", self._settings.stop_seconds)

    def _pass_wishes(self, trainer: TrainerProcess) -> None:
        """Hand the trainer what users want changed, and a wish for a checkpoint; it knows from its own what is done."""
        try:
            amendments = self._ledger.amendments(self._amendment)
            if amendments:
                trainer.link.send(Amend(amendments=[_amendment(each) for each in amendments]))
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

    def _tell(self, trainer: TrainerProcess, action: Action, seconds: float) -> None:
        """Give the trainer a command, and so many seconds to finish."""
        self._command = action
        self._patience_ends = time.monotonic() + seconds
        trainer.link.send(Command(action=action))

    def _take(self, message: ToSupervisor) -> None:
        match message:
            case Progress():
                self._step = message.step
                if message.step and self._state is RunState.STARTING:
                    self._move(RunState.RUNNING)  # clones learn without a simulator
            case Listening():
                self._listens = True
                endpoints = [endpoint.model_dump() for endpoint in message.endpoints]
                self._writes.append(lambda: self._ledger.listening(endpoints))
            case Metrics():
                points = [MetricPoint(**point.model_dump()) for point in message.points]
                self._writes.append(lambda: self._ledger.metrics(points))
            case EventRecord():
                self._writes.append(
                    lambda: self._ledger.event(message.name, message.message, level=message.level, data=message.data)
                )
            case Amended():
                changes = [each.model_dump() for each in message.amendment.changes]
                self._writes.append(lambda: self._ledger.amended(message.amendment.seq, changes, message.step))
            case CheckpointDeclined():
                self._writes.append(lambda: self._ledger.checkpoint_declined(message.request, message.detail))
            case ParameterStates():
                self._writes.append(lambda: self._ledger.parameters(message.parameters, message.edit))
            case SimulatorUp():
                if self._state is RunState.STARTING:
                    self._move(RunState.RUNNING)
                self._writes.append(
                    lambda: self._ledger.simulator_connected(
                        message.incarnation,
                        number=message.number,
                        collector=message.collector,
                        behaviors=message.behaviors,
                        peer=message.peer,
                        client=message.client,
                    )
                )
            case SimulatorPlays():
                self._writes.append(
                    lambda: self._ledger.simulator_plays(message.incarnation, message.behaviors, message.agents)
                )
            case SimulatorDown():
                self._writes.append(
                    lambda: self._ledger.simulator_left(
                        message.incarnation,
                        code=message.code,
                        reason=message.reason,
                        steps=message.steps,
                        peer=message.peer,
                    )
                )
            case MatchesResumed():
                self._writes.append(lambda: self._ledger.resume_matches(message.newest))
            case MatchesPlayed():
                matches = [played(match) for match in message.matches]
                self._writes.append(lambda: self._ledger.matches(matches))
            case Assessed():
                self._writes.append(lambda: self._ledger.assess(message.games, message.result, message.state))
            case CheckpointWritten():
                self._checkpoints += 1
                path = f"runs/{self._claim.run_id}/{self._claim.epoch}/checkpoints/{message.step}-{self._checkpoints}"
                self._copies.append((message, self._copier.submit(self._copy, message.folder, path)))
            case Finished():
                self._finished = message
            case _:
                assert_never(message)

    def _copy(self, folder: str, path: str) -> tuple[str, list[FileRef]]:
        """Publish a checkpoint; a store that is away is waited for, while the checkpoint lies in the scratch folder."""
        deadline = time.monotonic() + STORE_PATIENCE_SECONDS
        while True:
            try:
                return path, self._store.publish(Path(folder), path)
            except StorageUnavailable as error:
                if time.monotonic() > deadline or self._ended.wait(STORE_RETRY_SECONDS):
                    raise
                log.warning("checkpoint_delayed", error=str(error), path=path)

    def _move(self, to: RunState, reason: StopReason | None = None, detail: str | None = None) -> None:
        """Move the run once everything before it is written."""
        self._state = to
        self._writes.append(lambda: self._ledger.move(to, reason=reason, detail=detail))

    def _flush(self, trainer: TrainerProcess) -> None:
        """Write what waits, in order, as far as the database lets us; then take over finished copies."""
        try:
            while self._writes:
                self._writes[0]()
                self._writes.popleft()
            while self._copies and self._copies[0][1].done():
                self._commit(trainer, *self._copies[0])
                self._copies.popleft()
        except Unavailable as error:
            log.warning("write_delayed", error=str(error), waiting=len(self._writes))
            time.sleep(RETRY_SECONDS)

    def _commit(
        self, trainer: TrainerProcess, written: CheckpointWritten, copy: Future[tuple[str, list[FileRef]]]
    ) -> None:
        answer: CheckpointCommitted | CheckpointRefused
        try:
            path, files = copy.result()
        except LudusError as error:
            self._ledger.event(
                "checkpoint_failed",
                f"The checkpoint at step {written.step} could not be stored: {error}",
                level="error",
                data={"code": error.code, "step": written.step},
            )
            if written.request is not None:
                self._ledger.checkpoint_declined(written.request, f"it could not be stored: {error}")
            answer = CheckpointRefused(folder=written.folder, code=error.code, detail=str(error))
        else:
            self._ledger.checkpoint(
                NewCheckpoint(
                    step=written.step,
                    steps=written.steps,
                    reason=written.reason,
                    path=path,
                    files=files,
                    metrics=written.metrics,
                ),
                written.request,
            )
            self._ledger.retire_checkpoints(written.keep)
            answer = CheckpointCommitted(folder=written.folder)
        shutil.rmtree(written.folder, ignore_errors=True)
        with contextlib.suppress(LinkClosed):
            trainer.link.send(answer)

    def _trainer_gone(self, trainer: TrainerProcess) -> Finished:
        """The link has ended: by plan, or because the trainer died."""
        self._settle()
        self._await_copies(trainer)
        if self._finished is not None:
            return self._finished
        if self._command == "cancel":
            return Finished(outcome="cancelled", reason=StopReason.USER)
        status = self._await_exit(trainer)
        return _lost(f"the trainer ended unexpectedly ({status or 'its link closed'}); its log says more")

    def _await_copies(self, trainer: TrainerProcess) -> None:
        """Take over the checkpoints that are still copied, and keep the lease meanwhile. Raises `LeaseLost`."""
        give_up = time.monotonic() + self._settings.outage_seconds
        next_beat = 0.0
        while self._copies:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + self._settings.heartbeat_seconds
                if self._beat() is not None:
                    give_up = now + self._settings.outage_seconds
            if now >= give_up:
                raise LeaseLost(self._claim.run_id, self._claim.epoch)
            wait([self._copies[0][1]], timeout=0.1)
            self._flush(trainer)

    def _await_exit(self, trainer: TrainerProcess) -> str | None:
        """Let a trainer end by itself for a while, keep the lease meanwhile, and say how it ended; None if it lives."""
        deadline = time.monotonic() + EXIT_GRACE_SECONDS
        next_beat = 0.0
        while (status := trainer.exit_status()) is None and (now := time.monotonic()) < deadline:
            if now >= next_beat:
                next_beat = now + self._settings.heartbeat_seconds
                self._beat()
            time.sleep(0.02)
        return status

    def _conclude(self, finished: Finished) -> None:
        """Queue the attempt's last writes."""
        reason = StopReason(finished.reason) if finished.reason else None
        # The lease has to last for what follows, and the row gets the last step.
        self._writes.append(self._last_beat)
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
            case "released" if self._outgrown is not None:
                why = self._outgrown
                self._writes.append(lambda: self._ledger.release(StopReason.MEMORY_LIMIT, why))
            case "released":
                self._writes.append(lambda: self._ledger.release("released", finished.detail or "handed back"))
            case "lost":
                detail = finished.detail or ""
                self._writes.append(lambda: self._ledger.event("trainer_lost", detail, level="error"))
                self._writes.append(lambda: self._ledger.release("trainer_lost", detail))
            case _:
                assert_never(finished.outcome)

    def _settle(self) -> None:
        """Write everything that waits, as long as the database is waited for."""
        deadline = time.monotonic() + self._settings.outage_seconds
        while self._writes:
            try:
                self._writes[0]()
                self._writes.popleft()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise LeaseLost(self._claim.run_id, self._claim.epoch) from None
                time.sleep(RETRY_SECONDS)

    def _publish_log(self, *, last: bool = False) -> None:
        """Publish what is new of the trainer's log, one copy at a time; the `last` one is waited for."""
        if self._log_copy is not None:
            if not last and not self._log_copy.done():
                return
            self._enter_log(self._log_copy)
        self._log_copy = self._copier.submit(self._copy_log)
        if last:
            self._enter_log(self._log_copy)
            self._log_copy = None

    def _copy_log(self) -> list[tuple[str, str, int]]:
        """Copy the parts of the log that have changed; return their names, paths and sizes."""
        folder = f"runs/{self._claim.run_id}/{self._claim.epoch}/logs"
        return [
            (name, f"{folder}/{name}", self._store.publish(file, f"{folder}/{name}")[0].size)
            for name, file in self._log.due()
        ]

    def _enter_log(self, copy: Future[list[tuple[str, str, int]]]) -> None:
        """Write down what was copied."""
        try:
            parts = self._keeping_lease(copy)
        except (StorageFull, StorageRefused, StorageUnavailable) as error:
            self._log_refused(error)
            return
        self._log_trouble = ""
        self._writes += [partial(self._ledger.log, *part) for part in parts]

    def _log_refused(self, error: LudusError) -> None:
        """Tell the run's owner early, and once, that the store is out of use: checkpoints will fare no better."""
        log.warning("log_not_stored", error=str(error))
        if self._log_trouble != error.code:
            self._log_trouble = error.code
            self._writes.append(
                lambda: self._ledger.event("log_not_stored", str(error), level="warning", data={"code": error.code})
            )


def _lost(detail: str) -> Finished:
    """Conclude that another attempt has to go on."""
    return Finished(outcome="lost", detail=detail)


def _amendment(amendment: AmendmentRef) -> Amendment:
    """Return an amendment as the trainer takes it."""
    return Amendment(seq=amendment.seq, changes=[ChangedKey(**change) for change in amendment.changes])


def played(match: Match) -> PlayedMatch:
    """Return a match as the ledger takes it."""
    seats = tuple(PlayedSeat(**seat.model_dump()) for seat in match.seats)
    return PlayedMatch(
        number=match.number,
        behavior=match.behavior,
        simulator=match.simulator,
        at=match.at,
        step=match.step,
        seats=seats,
        outcome=match.outcome,
        truncated=match.truncated,
        rated=match.rated,
        elo=match.elo,
    )
