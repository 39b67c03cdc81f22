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
from dataclasses import asdict
from pathlib import Path
from typing import assert_never

import structlog

from ludus.collector.messages import SimulatorConnected, SimulatorLeft, SimulatorStarted
from ludus.config.run import RunConfig
from ludus.schemas.states import RunState, StopReason
from server.kit.artifacts.store import ArtifactStore
from server.kit.errors import LeaseLost, StorageFull, StorageRefused, Unavailable
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.metrics.points import MetricPoint
from worker.collectors.events import EdgeReaderFailed
from worker.host.process import TrainerProcess, WarmTrainer
from worker.host.resources import ResourceMeter, kernel_kills
from worker.host.supervisor.followed import FollowedRuns
from worker.host.supervisor.job import ConfigUnreadable, NoGoodCheckpoint, configuration, prepare
from worker.host.supervisor.lease import Lease, Writes
from worker.host.supervisor.logs import LogPublisher, Profiles
from worker.host.supervisor.recordings import RecordingPublisher
from worker.host.supervisor.scratch import PortTaken, Scratch, hold_port
from worker.host.supervisor.transfers import (
    ArtifactTransfer,
    CheckpointCommits,
    CheckpointUnusable,
    DemonstrationUnusable,
    Unwanted,
)
from worker.trainer import messages
from worker.trainer.connection import ConnectionClosed, SupervisorConnection

log = structlog.get_logger()


class UserRequests:
    """Sends each request once; the trainer leaves out those that its checkpoint knows."""

    def __init__(self, claim: Claim, ledger: AttemptLedger, profiles: Profiles) -> None:
        self._ledger = ledger
        self._profiles = profiles
        self._served: int | None = None
        """`Renewal.requests` when the requests were read last; None before the first time."""
        self._edit = self._request = 0
        """Numbers of the newest edit of environment parameters, and request for a checkpoint, that were sent."""
        self._amendment = max((amendment.seq for amendment in claim.amendments), default=0)
        """That of the newest amendment of the configuration."""
        places = claim.config.get("simulators", {}).get("collectors", {})
        self._opens_places = bool(places.get("edge")) and places.get("local") != 0
        """Whether the trainer opens places for edge collectors when it is told to, and has not been told."""

    def serve(self, trainer: TrainerProcess, number: int) -> None:
        """Read the requests to the trainer if there may be new ones: `number` has moved (`Renewal.requests`)."""
        if number == self._served:
            return
        try:
            self._send(trainer.connection)
            self._profiles.begin(trainer.pid)
        except Unavailable as error:  # the next renewal has them read again
            log.warning("requests_not_read", error=str(error))
        else:
            self._served = number

    def _send(self, connection: SupervisorConnection) -> None:
        with suppress(ConnectionClosed):  # the next `receive` raises it
            if amendments := self._ledger.amendments.after(self._amendment):
                connection.send(messages.Amend(amendments=list(amendments)))
                self._amendment = amendments[-1].seq
            request = self._ledger.checkpoints.requested()
            if request is not None and request > self._request:
                connection.send(messages.SaveCheckpoint(request=request))
                self._request = request
            if self._opens_places and self._ledger.collectors.places_asked():
                connection.send(messages.OpenPlaces())
                self._opens_places = False
            edits = [
                messages.ParameterEdit(seq=seq, parameter=parameter, **change)
                for seq, parameter, change in self._ledger.parameters.edits(self._edit)
            ]
            if edits:
                connection.send(messages.EditParameters(edits=edits))
                self._edit = edits[-1].seq


def write(ledger: AttemptLedger, report: messages.Report) -> None:
    """Write a report. Raises LeaseLost, and Unavailable with nothing written."""
    match report:
        case messages.Listening():
            ledger.listening([asdict(endpoint) for endpoint in report.endpoints])
        case messages.EdgeCollectors():
            ledger.collectors.publish(report.collectors)
        case EdgeReaderFailed():
            ledger.collectors.unavailable(report.reason)
        case messages.EventRecord():
            ledger.event(report.name, report.message, level=report.level, data=report.data)
        case messages.Amended():
            ledger.amendments.applied(report.amendment.seq, report.amendment.changes, report.step)
        case messages.CheckpointDeclined():
            ledger.checkpoints.decline(report.request, report.detail)
        case messages.Findings():
            ledger.health.publish(report.findings)
        case messages.ParameterStates():
            ledger.parameters.publish(report.parameters, report.edit)
        case messages.SelfPlayStatus():
            ledger.self_play(report.learning_team, report.elo)
        case SimulatorConnected(session_id, number, collector, peer, client, behaviors):
            ledger.simulators.connected(
                session_id, number=number, collector=collector, behaviors=behaviors, peer=peer, client=client
            )
        case SimulatorStarted(session_id, behaviors, agents):
            ledger.simulators.plays(session_id, behaviors, agents)
        case SimulatorLeft(session_id, _, code, reason, steps, peer):
            ledger.simulators.left(session_id, code=code, reason=reason, steps=steps, peer=peer)
        case messages.MatchesResumed():
            ledger.matches.resume(report.newest)
        case messages.MatchesPlayed():
            ledger.matches.append(report.matches)
        case messages.Assessed():
            ledger.assessment.store(report.games, report.result, report.state)
        case _:
            assert_never(report)


LEARNER_IDLE, COLLECTORS_IDLE = "Performance/Learner Idle Share", "Performance/Collectors Idle Share"
"""Of the newest half minute, as beside the bottleneck (`server.runs.diagnosis.TimeSpent`)."""


class ResourceRecorder:
    """Writes a point of each metric of resources, and of both idle shares, after a summary of the trainer, at the run's
    step. One thread uses it.

    So there are about as many points as summaries, fewer where summaries come faster than samples, and none of a run
    that stands still.
    """

    def __init__(self, lease: Lease, ledger: AttemptLedger, writes: Writes, gpus: Sequence[str]) -> None:
        """Points up to the lease's present step are those of earlier attempts: the first one lies beyond it."""
        self._lease = lease
        self._ledger = ledger
        self._writes = writes
        self.meter = ResourceMeter(gpus)
        self._recorded = lease.step
        """Step of the newest point."""
        self._due = False

    def record(self, *, summary: bool) -> None:
        """Queue points of the means since the last ones, if they are due.

        That is once after a summary, when the run has made a step and something was measured since then. Call it after
        each summary (`summary`) and after each report of the run's step: these come in any order.
        """
        self._due |= summary
        step = self._lease.step
        if not self._due or step <= self._recorded or not (means := self.meter.take()):
            return
        if (spent := self._lease.time_spent) is not None:
            means |= {LEARNER_IDLE: spent.learner_idle, COLLECTORS_IDLE: spent.collectors_idle}
        self._due, self._recorded, moment = False, step, time.time()
        points = [MetricPoint(behavior="", key=key, step=step, at=moment, value=value) for key, value in means.items()]
        self._writes.add_points(self._ledger.metrics.append, points)


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
        self._recordings = RecordingPublisher(claim, ledger, self._transfer, self._writes, scratch)
        self._state = RunState.STARTING
        self._requests = UserRequests(claim, ledger, self._profiles)
        self._begun_with: int | None = None
        """The run's step when the trainer began."""
        self._command: messages.Action | None = None
        self._deadline = math.inf
        self._finished: messages.Finished | None = None
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
                then = "" if ending.outcome == "released" else f" Then {ending.detail}."
                detail = self._over_memory + then
                ending = ending.model_copy(update={"reason": StopReason.MEMORY_LIMIT, "detail": detail})
            self._conclude(ending)
            self._flush_all()
            log.info("attempt_ended", outcome=ending.outcome, reason=ending.reason, detail=ending.detail)
        except LeaseLost as lost:
            log.warning("lease_lost", reason=str(lost))
        finally:
            self._transfer.close()
            self._scratch.remove()

    def _executed(self, warm: WarmTrainer) -> messages.Finished:
        """Execute the attempt; return how it has ended, or why it can't be executed here. Raises LeaseLost."""
        try:
            config = configuration(self._claim)
            port = config.simulators.unity_port
            with nullcontext() if port is None else hold_port(port):
                return self._execute(warm, config)
        except (DemonstrationUnusable, PortTaken) as error:
            return _ended("failed", error, StopReason.TRAINER_ERROR)
        except ConfigUnreadable as error:  # a worker of the api's release may take the run next
            return _ended("lost", error, StopReason.TRAINER_ERROR)
        except (CheckpointUnusable, NoGoodCheckpoint) as error:
            return _ended("failed", error, StopReason.CHECKPOINT_DAMAGED)
        except StorageFull as error:
            return _ended("failed", error, StopReason.STORAGE_FULL)
        except StorageRefused as error:  # counts against the restart budget: waiting does not help
            return _ended("lost", error, StopReason.STORAGE_UNAVAILABLE)
        except (Unavailable, Unwanted) as error:
            return _ended("released", error, None)
        except OSError as error:  # no room for a log, no right to the folder, no processes left
            log.exception("host_failed")
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            reason = StopReason.STORAGE_FULL if full else StopReason.TRAINER_LOST
            return _ended("lost", f"the worker's host fails: {error}", reason)
        except ConnectionClosed as error:
            return _ended("lost", f"the trainer ended before it had its job: {error}")

    def _execute(self, warm: WarmTrainer, config: RunConfig) -> messages.Finished:
        if self._claim.attempt > 1:
            self._writes.add(self._ledger.rewind_metrics)  # the first write: before any metric of this attempt
            with self._writing():
                self._writes.flush(FLUSH_SECONDS)
        self._scratch.make()
        folder = self._scratch.folder
        job = prepare(self._claim, config, self._ledger, self._transfer, self._settings, folder, self._gateway)
        followed = FollowedRuns(config.followed_runs(), self._ledger, self._transfer, self._writes, folder)
        trainer = warm.take(job)
        log.info("trainer_started", pid=trainer.pid, attempt=self._claim.attempt)
        try:
            with trainer.heartbeat(self._settings.heartbeat_seconds), self._resources.meter.measuring(trainer.pid):
                ending = self._watch(trainer, followed)
            if self._finished is not None:
                self._await_exit(trainer)
        finally:
            self._profiles.close()
            trainer.end()
        self._log.publish(last=True)
        self._recordings.publish(last=True)
        return ending

    def _watch(self, trainer: TrainerProcess, followed: FollowedRuns) -> messages.Finished:
        """Serve the trainer until it has finished or has died. Raises `LeaseLost`."""
        settings, started, next_log = self._settings, time.monotonic(), 0.0
        last_message = started
        while True:
            now = time.monotonic()
            renewal = self.lease.keep()
            if renewal is not None:
                self._apply_intent(trainer, renewal.intent)
                self._requests.serve(trainer, renewal.requests)
                self._check_memory(trainer, settings.trainer_memory_bytes)
            try:
                if self._receive(trainer):
                    last_message = now
            except ConnectionClosed:
                return self._trainer_gone(trainer)
            with suppress(ConnectionClosed):  # the next `_receive` raises it
                followed.poll(trainer.connection)
            self._profiles.poll()
            self._flush(trainer)
            if now >= next_log:
                next_log = now + LOG_SECONDS
                self._log.publish()
                self._recordings.publish()
            if self._finished is not None and not self._writes and not self._checkpoints:
                return self._finished
            if self._checkpoints and self._command != "cancel" and not self._stopping():
                # The trainer has done its part, and waits for the answer to its checkpoint.
                self._deadline = max(self._deadline, now + EXIT_GRACE_SECONDS)
            if now > self._deadline and self._finished is None:
                if self._command == "cancel":
                    return _ended("cancelled", None, StopReason.USER)
                why = f"took more than {settings.stop_seconds:g} s for its last checkpoint (LUDUS_WORKER__STOP_SECONDS)"
                return _ended("lost", f"the trainer {why}")
            if not self._listens and now - started > settings.startup_seconds:
                why = f"took more than {settings.startup_seconds:g} s to start (LUDUS_WORKER__STARTUP_SECONDS)"
                return _ended("lost", f"the trainer {why}")
            if self._listens and now - last_message > settings.silence_seconds:
                why = f"reported nothing for {settings.silence_seconds:g} s (LUDUS_WORKER__SILENCE_SECONDS)"
                return _ended("lost", f"the trainer {why}")

    def _apply_intent(self, trainer: TrainerProcess, intent: Intent) -> None:
        with suppress(ConnectionClosed):  # `receive` raises it next, when all that the trainer has sent is read
            match intent:
                case Intent.STOP if self._command != "stop":
                    self._move(RunState.STOPPING)
                    self._send_command(trainer, "stop")
                case Intent.CANCEL if self._command != "cancel":
                    self._send_command(trainer, "cancel", CANCEL_GRACE_SECONDS)
                case _ if self._command is not None:
                    pass
                case Intent.PAUSE:
                    self._move(RunState.PAUSING, StopReason.USER, "A user asked to pause the run.")
                    self._send_command(trainer, "pause")
                case Intent.RELEASE:
                    self._send_command(trainer, "release", why="it was asked to hand its slot back")
                case Intent.NONE if self._stopping():
                    self._send_command(trainer, "release")

    def _check_memory(self, trainer: TrainerProcess, limit: int | None) -> None:
        """Make a trainer that uses more memory than it may save a checkpoint and hand the run back."""
        if limit is None or self._resources.meter.memory <= limit or self._command is not None:
            return
        used, mebibyte = self._resources.meter.memory, 2**20
        self._over_memory = f"The trainer holds {used / mebibyte:,.0f} MiB, and may hold {limit / mebibyte:,.0f} MiB."
        message = f"{self._over_memory} It saves a checkpoint and is replaced."
        data = {"bytes": used, "limit_bytes": limit, "step": self.lease.step}
        self._writes.add(self._ledger.event, "trainer_over_memory_limit", message, level="warning", data=data)
        log.warning("trainer_over_memory_limit", **data)
        with suppress(ConnectionClosed):  # `receive` raises it next
            self._send_command(trainer, "release", why=self._over_memory)

    def _send_command(
        self, trainer: TrainerProcess, action: messages.Action, seconds: float | None = None, why: str | None = None
    ) -> None:
        """Send a command that the trainer has `seconds`, by default `stop_seconds`, to carry out; `why` of a
        release."""
        self._command = action
        self._deadline = time.monotonic() + (self._settings.stop_seconds if seconds is None else seconds)
        trainer.connection.send(
            messages.Command(action=action) if why is None else messages.Command(action=action, detail=why)
        )

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

    def _handle(self, message: messages.ToSupervisor) -> None:
        match message:
            case messages.Metrics():
                self._writes.add_points(self._ledger.metrics.append, message.points)
                self._resources.record(summary=True)
            case messages.Progress():
                self.lease.step, self.lease.time_spent = message.step, message.time_spent
                self._begun_with = message.step if self._begun_with is None else self._begun_with
                if message.step > self._begun_with:
                    self._begin()  # clones learn without a simulator
                self._resources.record(summary=False)
            case messages.CheckpointWritten():
                self._checkpoints.begin(message)
            case messages.Finished():
                self._finished = message
            case _:
                self._listens |= isinstance(message, messages.Listening)
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

    def _trainer_gone(self, trainer: TrainerProcess) -> messages.Finished:
        """Return the end of a trainer whose connection has closed: it has finished, or it died."""
        self._flush_all()
        while self._checkpoints:  # that are still being copied
            self.lease.keep()
            self._checkpoints.wait(0.1)
            self._flush(trainer)
        if self._finished is not None:
            return self._finished
        if self._command == "cancel":
            return _ended("cancelled", None, StopReason.USER)
        status = self._await_exit(trainer)
        reason = self._log.log.last_error() or trainer.last_line() or "its log says more"
        if status == f"signal {signal.SIGKILL.name}":
            if kernel_kills() > self._kernel_kills:
                detail = "the kernel killed the trainer for want of memory (SIGKILL; oom_kill has risen); give its "
                detail += "worker more memory, or have the run hold less (buffer_size, the models' sizes)"
                return _ended("lost", detail, StopReason.MEMORY_LIMIT)
            status += ", not sent by Ludus"
        return _ended("lost", f"the trainer ended unexpectedly ({status or 'its link closed'}): {reason}")

    def _await_exit(self, trainer: TrainerProcess) -> str | None:
        """Wait a while for the trainer to end, and keep the lease; return how it ended, None if it still lives."""
        deadline = time.monotonic() + EXIT_GRACE_SECONDS
        while (status := trainer.exit_status()) is None and time.monotonic() < deadline:
            self.lease.keep()
            time.sleep(0.02)
        return status

    def _conclude(self, finished: messages.Finished) -> None:
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


def _ended(
    outcome: messages.Outcome, detail: object, reason: StopReason | None = StopReason.TRAINER_LOST
) -> messages.Finished:
    """Return the end of an attempt; one that is `lost` has to be continued by another one."""
    return messages.Finished(outcome=outcome, reason=reason, detail=None if detail is None else str(detail))
