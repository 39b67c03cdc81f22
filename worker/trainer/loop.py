"""The trainer's loop: collect, learn, save, report, until the end. No maths in it.

Threads: this loop is the main thread; the connection to the supervisor has two threads of its own, the collector pool
one. Building learners (`worker.trainer.registry`), checkpoints, self-play and environment parameters have modules of
their own.
"""

import time
from collections.abc import Mapping, Sized
from dataclasses import asdict, fields
from pathlib import Path
from typing import assert_never

import numpy as np
import structlog

from ludus.collector import messages
from ludus.protocol.codes import CloseCode
from ludus.schemas.states import StopReason
from worker.collectors import events
from worker.collectors.pool import CollectorPool
from worker.collectors.processes import EDGE_READER, WarmCollector
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.build import choose_device, count_gpus
from worker.trainer.assessment import Assessment
from worker.trainer.attempt import Attempt, EdgeCollectorReports, Learner, WaitingLimits, collector_settings
from worker.trainer.checkpoint import AMENDMENTS, COLLECTORS, ENVIRONMENT_PARAMETERS, load
from worker.trainer.checkpoints import Checkpoints, can_go_on
from worker.trainer.environment_parameters import EnvironmentParameters
from worker.trainer.health.divergence import LimitCrossed
from worker.trainer.health.reports import HealthReports
from worker.trainer.initialization import Sources
from worker.trainer.learner import MAX_ROLLBACKS, BehaviorLearner, InferenceLearner
from worker.trainer.messages import (
    LEARNING_BEGAN,
    Amend,
    CheckpointCommitted,
    CheckpointRefused,
    Command,
    EditParameters,
    Finished,
    Job,
    Listening,
    OpenPlaces,
    Outcome,
    Progress,
    RunAdvanced,
    SaveCheckpoint,
    SupervisorPort,
    describe,
)
from worker.trainer.ranks import available_ranks
from worker.trainer.registry import BehaviorRegistry
from worker.trainer.selfplay import SelfPlayCoordinator
from worker.trainer.time_meter import TimeMeter

log = structlog.get_logger()

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 0.5
LONGEST_COLUMN = 16
"""Most numbers of a column that are logged."""
CLOSE_CODES: Mapping[Outcome, CloseCode] = {
    "succeeded": CloseCode.RUN_FINISHED,
    "failed": CloseCode.RUN_FAILED,
    "cancelled": CloseCode.RUN_CANCELLED,
    "paused": CloseCode.RUN_PAUSED,
    "released": CloseCode.RUN_MOVED,
    "lost": CloseCode.RUN_MOVED,
}
"""The code with which collectors close simulators' sessions, by the outcome of the attempt."""


class Trainer:
    """Executes one attempt of a run."""

    def __init__(self, job: Job, supervisor: SupervisorPort, warm: list[WarmCollector]) -> None:
        """Raise `DeviceMissing` or `CheckpointDamaged` where the job cannot begin. `warm` are collectors to use."""
        config = job.config
        folder = Path(job.resume_from) if job.resume_from else Sources(job.checkpoints).resumed(config)
        restored = {} if folder is None else load(folder)
        parameters = restored.pop(ENVIRONMENT_PARAMETERS, None)
        amended = int(restored.pop(AMENDMENTS, {"made": 0})["made"])
        collectors = restored.pop(COLLECTORS, [])
        if not job.resume_from:  # the checkpoint is another run's: its users' edits have numbers of their own
            amended, parameters = 0, None if parameters is None else {**parameters, "edit": 0}
        learns = config.assessment is None and not config.checkpoint_settings.inference
        torch_settings = config.torch_settings
        device = choose_device(torch_settings, count_gpus())
        ranks = available_ranks(torch_settings, device) if learns else 1
        pool = CollectorPool(collector_settings(job, config, ranks), warm, ranks=ranks)
        pool.restore(collectors if can_go_on(config, collectors, ranks) else [])
        self.attempt = attempt = Attempt(job, config, supervisor, pool, restored, ranks=ranks, amended=amended)
        self._health = HealthReports(attempt)
        self._selfplay = SelfPlayCoordinator(attempt, self._health)
        self._parameters = EnvironmentParameters(attempt, self._selfplay.ghosts.rating, parameters)
        self.registry = BehaviorRegistry(attempt, self._parameters, self._selfplay)
        self._assessment = None if config.assessment is None else Assessment(attempt, config.assessment)
        """Of a run that evaluates policies instead of training them."""
        self.checkpoints = Checkpoints(attempt, self._parameters, self._selfplay, self._handle)
        self._limits = WaitingLimits(attempt)
        self._time_meter = TimeMeter()
        self._edge_collectors = EdgeCollectorReports(attempt)
        self._endpoints: dict[int, events.Endpoint] = {}
        self._next_progress = 0.0
        self._learns = False
        """Whether an update was made in this attempt."""
        if job.attempt > 1:
            (self._assessment or self._selfplay).resumed()

    def run(self) -> Finished:
        """Train until the end; return how the attempt ended."""
        attempt, pool = self.attempt, self.attempt.pool
        try:
            self._report_progress(at_once=True)
            attempt.begin_amended()
            self.registry.report_unused()
            if self._assessment is None:
                self.registry.begin_demonstrated()
            self._endpoints = {endpoint.index: endpoint for endpoint in pool.start()}
            self._report_endpoints()
            attempt.simulators.absent_since = time.monotonic()
            finished = self._loop()
            self._report(at_once=True)
            code = CLOSE_CODES[finished.outcome]
            pool.close(code, finished.detail or code.sentence, rejoin=code.rejoin)
            for event in pool.poll(0.0):
                if isinstance(event, messages.SimulatorLeft):
                    self._simulator_left(event)
        finally:
            pool.close(CloseCode.COLLECTOR_CLOSING, "the trainer ended; join again", rejoin=True)
            self.registry.close()
        return finished

    def _loop(self) -> Finished:
        while True:
            self.registry.check_ranks()
            # wait for the first event unless a behavior can learn
            can_learn = any(learner.ready for learner in self.attempt.learners.values())
            for event in self.attempt.pool.poll(0.0 if can_learn else POLL_SECONDS):
                self._handle(event)
            finished = (
                self.registry.unusable
                or self.apply_commands()
                or (self._learn() if self._assessment is None else self._assessment.finished())
            )
            limits = self._limits
            ending = limits.without_simulators() or limits.without_ranks() or limits.without_behaviors()
            if finished is None and ending is not None:
                finished = self.checkpoints.finish(*ending)
            if finished is not None:
                return finished
            with self._time_meter.counting("checkpoints"):
                self.checkpoints.poll()
            self._report()

    def _handle(self, event: events.CollectorEvent) -> None:
        if self.attempt.config.debug:
            log.debug("collector_event", kind=type(event).__name__, **_facts(event))
        attempt = self.attempt
        match event:
            case events.SegmentsDelivered():
                self._learner(event.behavior).add(event)
            case events.RoundCollected():
                self._learner(event.behavior).collected(event.round)
            case events.EpisodesEnded():
                attempt.learners[event.behavior].episodes_ended(event)
            case messages.StatsReported():
                for learner in attempt.learners.values():
                    learner.recorder.reported(event)
            case messages.TimesMeasured():
                self._time_meter.collected(event)
            case messages.StepsPlayed():
                learner = attempt.learners[event.behavior]
                if isinstance(learner, InferenceLearner):
                    learner.played(event.steps)
                else:
                    self._selfplay.opponents_played(event)
            case messages.MatchesEnded():
                self._selfplay.ended(event)
            case messages.BehaviorAnnounced():
                (self._assessment or self.registry).register(event.spec)
            case events.TeamAnnounced():
                self._selfplay.team_announced(event)
            case messages.SimulatorConnected():
                attempt.simulators.connected(event.session_id)
                attempt.supervisor.post(event)
            case messages.SimulatorStarted():
                attempt.simulators.started(event.session_id, event.behaviors)
                self._selfplay.started(event.session_id, event.behaviors)
                attempt.supervisor.post(event)
                if self._assessment is not None:
                    self._assessment.started(event)
            case messages.SimulatorLeft():
                self._simulator_left(event)
            case messages.EvaluationEnded():
                assert self._assessment is not None, "only an assessment gives simulators batches of games"
                self._assessment.batch_ended(event)
            case messages.SimulatorProblem():
                facts = {"session_id": event.session_id, "number": event.number, "code": event.code}
                message = f"Simulator {event.number}: {event.sentence}"
                attempt.report("simulator_problem", message, level="warning", **facts)
            case events.Endpoint():
                self._endpoints[event.index] = event
                self._report_endpoints()
            case events.CollectorDied():
                self._endpoints.pop(event.index, None)
                who = "The edge reader" if event.index == EDGE_READER else f"Collector {event.index}"
                message = f"{who} died ({event.reason}); {event.lost_steps} steps are lost"
                attempt.report("collector_died", message, level="warning", **asdict(event))
            case (
                events.EdgeCollectorJoined()
                | events.EdgeCollectorLeft()
                | messages.CollectorLags()
                | events.EdgeReaderFailed()
            ):
                self._edge_collectors.handle(event)
            case events.HandedOver():
                pass  # too late for its checkpoint (`worker.trainer.checkpoints`)
            case _:
                assert_never(event)
        self._parameters.handle(event)

    def _learner(self, behavior: str) -> BehaviorLearner:
        """Return the learner that asked for experience."""
        learner = self.attempt.learners[behavior]
        assert isinstance(learner, BehaviorLearner), "only learners of this class ask for experience"
        return learner

    def _simulator_left(self, event: messages.SimulatorLeft) -> None:
        if self.attempt.simulators.left(event):
            self._selfplay.ghosts.left(event.session_id)
            if self._assessment is not None:
                self._assessment.left(event.session_id)
        self.attempt.supervisor.post(event)

    def _learn(self) -> Finished | None:
        """Update every behavior whose round is complete, save where that is due, and finish when all are done."""
        learners = self.attempt.learners
        for learner in learners.values():
            if not learner.ready:
                continue
            try:
                with self._time_meter.counting("learning"):
                    rolled_back = learner.learn()
            except Diverged as error:  # the weights are those before the update: to look at, or to go on from
                self._report_rollback(learner, str(error))
                return self._ended("failed", StopReason.DIVERGED, f"{learner.name}: {error} ({MAX_ROLLBACKS} in a row)")
            except LimitCrossed as error:
                return self._ended("failed", StopReason.DIVERGED, f"{learner.name}: {error}")
            if rolled_back is not None:
                self._report_rollback(learner, rolled_back)
            elif not self._learns:
                self._learns = True
                attempt = self.attempt
                attempt.report(LEARNING_BEGAN, f"{learner.name} made its first update", behavior=learner.name)
            self._parameters.advanced(learner.name)
        self._selfplay.take_turns()
        if not self.attempt.unfinished():
            # The attempt before may have ended between its last checkpoint and its last word: nobody need play then.
            self.registry.register_finished()
            detail = "every behavior reached its max_steps"
            return self.registry.unusable or self._ended("succeeded", StopReason.COMPLETED, detail)
        if any(learner.checkpoint_due for learner in learners.values()):
            with self._time_meter.counting("checkpoints"):
                self.checkpoints.begin()
        return None

    def _report_rollback(self, learner: Learner, reason: str) -> None:
        message = f"{learner.name}: {reason}"
        self.attempt.report("update_rolled_back", message, level="warning", behavior=learner.name)

    def _ended(self, outcome: Outcome, reason: StopReason, detail: str) -> Finished:
        """Say what the run's health is at its end, and finish."""
        self._health.conclude()
        return self.checkpoints.finish(outcome, reason, detail)

    def apply_commands(self) -> Finished | None:
        """Carry out the supervisor's messages; return the end of the attempt where one ends it."""
        for message in self.attempt.supervisor.commands():
            log.debug("command_received", command=describe(message))
            match message:
                case Command(action="stop"):
                    attempt = self.attempt
                    trained = attempt.learners or attempt.job.resume_from or self._assessment is not None
                    if attempt.refusals and not trained:
                        refusals = "; ".join(attempt.refusals.values())
                        detail = f"stopped on request before any behavior was trained: {refusals}"
                        return Finished(outcome="failed", reason=StopReason.BEHAVIOR_REFUSED, detail=detail)
                    return self._ended("succeeded", StopReason.USER, "stopped on request")
                case Command(action="pause"):
                    return self.checkpoints.finish("paused", StopReason.USER, "paused on request")
                case Command(action="cancel"):
                    return Finished(outcome="cancelled", reason=StopReason.USER, detail="cancelled on request")
                case Command(action="release"):
                    return self.checkpoints.finish("released", None, message.detail)
                case EditParameters():
                    self._parameters.edit(message)
                case SaveCheckpoint():
                    self.checkpoints.request(message.request)
                case OpenPlaces():
                    self.attempt.pool.open_places()
                case Amend():
                    if restart := [name for amendment in message.amendments for name in self.attempt.amend(amendment)]:
                        detail = f"{' and '.join(restart)} had ended and is to learn on, which takes a new attempt"
                        return self.checkpoints.finish("released", StopReason.USER, detail)
                case RunAdvanced():
                    self._selfplay.run_advanced(message)
                case CheckpointCommitted() | CheckpointRefused() | Command():
                    pass
                case _:
                    assert_never(message)
        with self._time_meter.counting("checkpoints"):
            self.checkpoints.write_requested()
        return None

    def _report(self, *, at_once: bool = False) -> None:
        """Send the supervisor all changes since the last report, each kind at its own pace."""
        self._report_progress(at_once=at_once)
        self._parameters.report(at_once=at_once)
        self._selfplay.report(at_once=at_once)
        self._health.report()
        if self._assessment is not None:
            self._assessment.report(at_once=at_once)

    def _report_progress(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            attempt = self.attempt
            spent = self._time_meter.spent(attempt.step) if self._assessment is None else None
            progress = Progress(step=attempt.step, simulators=len(attempt.simulators), time_spent=spent)
            attempt.supervisor.post(progress)

    def _report_endpoints(self) -> None:
        self.attempt.supervisor.post(Listening(endpoints=list(self._endpoints.values())))


def _facts(event: events.CollectorEvent) -> dict[str, object]:
    """Return the fields of an event for the log: columns of few records as lists, of longer values the length."""
    facts: dict[str, object] = {}
    for field in fields(event):
        value = getattr(event, field.name)
        if isinstance(value, np.ndarray) and value.dtype.names and len(value) <= LONGEST_COLUMN:
            facts |= {name: value[name].tolist() for name in value.dtype.names}
        elif isinstance(value, Sized) and not isinstance(value, str):
            facts[field.name] = f"{len(value)} entries"
        else:
            facts[field.name] = value
    return facts
