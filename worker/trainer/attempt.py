"""The state that the parts of one attempt share: its configuration, learners, simulators and edge collectors."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import structlog

from ludus.collector.messages import CollectorLags, SimulatorLeft
from ludus.collector.settings import CollectorSettings
from ludus.config.run import RunConfig
from ludus.protocol.codes import CloseCode
from ludus.protocol.side_channels import EngineConfiguration
from ludus.protocol.spec import BehaviorSpec
from ludus.schemas.states import StopReason
from server.config.amendment import apply_changes
from server.runs.refs import AmendmentRef, EdgeCollectorRef
from worker.collectors.events import EdgeCollectorJoined, EdgeCollectorLeft, EdgeReaderFailed
from worker.collectors.pool import CollectorPool
from worker.experience.state import State
from worker.trainer.checkpoint import behavior_states
from worker.trainer.demonstrated import DemonstratedLearner
from worker.trainer.learner import BehaviorLearner, InferenceLearner
from worker.trainer.messages import (
    Amended,
    EdgeCollectors,
    EventRecord,
    Job,
    Level,
    Outcome,
    SupervisorPort,
)

log = structlog.get_logger()

Learner = BehaviorLearner | DemonstratedLearner | InferenceLearner
"""Trains one behavior, or plays it."""


class ConnectedSimulators:
    """Counts the connected simulators; `len` is their number. Only the trainer's main thread uses it."""

    def __init__(self) -> None:
        self._behaviors: dict[str, set[str]] = {}
        """Session id -> the behaviors that the simulator plays; empty before its first step."""
        self.absent_since = time.monotonic()
        """When the last simulator left; before the first one came, when the attempt began to listen."""
        self.any_came = False
        """Whether a simulator has connected in this attempt."""

    def __len__(self) -> int:
        """Return the number of connected simulators."""
        return len(self._behaviors)

    @property
    def any_plays(self) -> bool:
        """Whether a simulator has sent its first step."""
        return any(self._behaviors.values())

    def is_played(self, behavior: str) -> bool:
        """Whether a simulator has begun to play a behavior."""
        return any(behavior in behaviors for behaviors in self._behaviors.values())

    def connected(self, session_id: str) -> None:
        """Add a simulator that has opened its session."""
        self._behaviors[session_id] = set()
        self.any_came = True

    def started(self, session_id: str, names: Sequence[str]) -> None:
        """Set the names of behaviors (`NAME?team=N`) that a simulator has announced by now."""
        self._behaviors[session_id] = {name.partition("?")[0] for name in names}

    def left(self, event: SimulatorLeft) -> bool:
        """Remove a simulator. Return False for one that was refused before it was connected."""
        was_connected = self._behaviors.pop(event.session_id, None) is not None
        if was_connected:
            self.absent_since = time.monotonic()
        return was_connected


@dataclass
class Attempt:
    """One attempt of a run. Only the trainer's main thread uses it."""

    job: Job
    config: RunConfig
    """The present configuration; `amend` replaces it when a user changes it."""
    supervisor: SupervisorPort
    pool: CollectorPool
    restored: State
    """The checkpoint's states of behaviors that no simulator has announced yet, by behavior."""
    learners: dict[str, Learner] = field(default_factory=dict)
    """By behavior, in the order in which the behaviors were announced."""
    simulators: ConnectedSimulators = field(default_factory=ConnectedSimulators)
    refusals: dict[str, str] = field(default_factory=dict)
    """Why behaviors were refused that simulators have announced in this attempt, by behavior."""
    ranks: int = 1
    """How many ranks learn as one (`worker.trainer.ranks`)."""
    amended: int = 0
    """Number of the newest amendment that was reported: a checkpoint contains the effect of all up to it."""

    def report(self, name: str, message: str, /, level: Level = "info", **data: object) -> None:
        """Report an event of the run: its name for programs, a sentence for people, and the facts in the sentence."""
        self.report_event(EventRecord(name=name, level=level, message=message, data=data))

    def report_event(self, event: EventRecord) -> None:
        """Report an event to the supervisor, and in the attempt's log."""
        getattr(log, event.level)(event.name, message=event.message)
        self.supervisor.post(event)

    def refuse(self, spec: BehaviorSpec, code: CloseCode, reason: str) -> None:
        """End the sessions that announce a behavior, and report it."""
        self.refusals[spec.behavior] = reason
        self.pool.refuse(spec.behavior, code, reason)
        self.report("behavior_refused", reason, level="error", behavior=spec.name, code=code)

    @property
    def is_inference(self) -> bool:
        """Whether the run plays without learning (`checkpoint_settings.inference`)."""
        return self.config.checkpoint_settings.inference

    def unfinished(self) -> list[str]:
        """Return the behaviors that have not reached their `max_steps`, sorted; a word where none has a name yet.

        A behavior that no simulator has announced in this attempt is finished if its checkpoint is, and if that has the
        spec by which `BehaviorRegistry.register_finished` builds it.
        """
        saved = behavior_states(self.restored)
        names = sorted({*self.config.behaviors, *saved, *self.learners})
        unfinished = [] if names else ["any behavior"]
        for name in names:
            config = self.config.behavior(name)
            if config is None:
                continue  # the checkpoint of another configuration has it
            if name in self.learners:
                done = self.learners[name].done
            else:
                has_spec = not self.is_inference and name in saved and "spec" in saved[name]
                done = has_spec and saved[name]["progress"]["step"] >= config.max_steps
            if not done:
                unfinished.append(name)
        return unfinished

    @property
    def step(self) -> int:
        """Agent steps of all behaviors, including those that are not announced yet."""
        restored = sum(int(state["progress"]["step"]) for state in behavior_states(self.restored).values())
        return restored + sum(learner.step for learner in self.learners.values())

    def begin_amended(self) -> None:
        """Report users' changes that are in the configuration from the beginning, and that the checkpoint lacks."""
        for amendment in self.job.amendments:
            if amendment.seq > self.amended:
                self._report_amended(amendment, self.step)

    def amend(self, amendment: AmendmentRef) -> list[str]:
        """Change the configuration, once; return the behaviors that were done and need a new attempt to learn on."""
        if amendment.seq <= self.amended:
            return []
        before, learners = self.config, self.learners
        self.config = apply_changes(before, {change["path"]: change["new"] for change in amendment.changes})
        restart = [
            name
            for name, section in self.config.behaviors.items()
            if section != before.behaviors[name] and name in learners and not learners[name].reconfigure(section)
        ]
        if self.config.simulators.record != before.simulators.record:
            self.pool.record(self.config.simulators.record)
        self._report_amended(amendment, sum(learner.learned for learner in learners.values()))
        return restart

    def _report_amended(self, amendment: AmendmentRef, step: int) -> None:
        self.amended = amendment.seq
        log.info("hyperparameters_changed", seq=amendment.seq, paths=[change["path"] for change in amendment.changes])
        self.supervisor.post(Amended(amendment=amendment, step=step))


def collector_settings(job: Job, config: RunConfig, ranks: int) -> CollectorSettings:
    """Return the settings of the collectors, without environment parameters: the pool sends those.

    Each rank has as many of this host as the configuration says; the places are shared out among them.
    """
    simulators = config.simulators
    places = simulators.collectors
    local = job.collectors if places.local is None else places.local
    shared = Job.model_fields.keys() & {setting.name for setting in fields(CollectorSettings)} - {"ticket_key"}
    return CollectorSettings(
        **job.model_dump(include=set(shared)),
        count=ranks * local + places.edge,
        edge_places=places.edge,
        ticket_key=None if job.ticket_key is None else bytes.fromhex(job.ticket_key),
        record=simulators.record,
        recordings=str(Path(job.scratch) / "recordings"),
        step_timeout=simulators.step_timeout_seconds,
        startup_timeout=simulators.startup_timeout_seconds,
        engine=EngineConfiguration(
            **config.engine_settings.model_dump(include=set(EngineConfiguration.__dataclass_fields__))
        ),
        num_areas=config.env_settings.num_areas,
        unity_port=simulators.unity_port,
    )


class EdgeCollectorReports:
    """Reports the edge collectors of one attempt: events of the run, and the list that the supervisor publishes."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._present: dict[int, EdgeCollectorRef] = {}
        """By place."""

    def handle(self, event: EdgeCollectorJoined | EdgeCollectorLeft | CollectorLags | EdgeReaderFailed) -> None:
        """Report what has happened to one."""
        report, facts = self._attempt.report, asdict(event)
        match event:
            case EdgeCollectorJoined():
                self._present[event.index] = EdgeCollectorRef(event.index, event.host, event.peer, time.time())
                report("collector_joined", f"Edge collector {event.index} collects on {event.host}", **facts)
            case EdgeCollectorLeft():
                self._present.pop(event.index, None)
                report(
                    "collector_left",
                    f"Edge collector {event.index} left ({event.reason}); {event.lost_steps} steps are lost",
                    level="warning",
                    **facts,
                )
            case CollectorLags():
                collector = self._present.get(event.collector)
                if collector is not None:
                    lagging = replace(collector, lagged_at=time.time(), waiting_bytes=event.waiting)
                    self._present[event.collector] = lagging
                report(
                    "collector_lags",
                    f"Edge collector {event.collector} lags: {event.waiting >> 20} MiB wait for its network, which is "
                    "slower than its games. They play on when half of it is sent",
                    level="warning",
                    **facts,
                )
            case EdgeReaderFailed():
                self._attempt.supervisor.post(event)
                return
        self._attempt.supervisor.post(
            EdgeCollectors(collectors=[self._present[place] for place in sorted(self._present)])
        )


UNEVEN_SECONDS = 10.0
"""How long some ranks may lack a simulator before it is said: simulators come one after the other."""
Ending = tuple[Outcome, StopReason, str]
"""How the attempt ends: outcome, reason, sentence."""


class WaitingLimits:
    """When a run pauses for want of simulators: the grace periods of `simulators` in the configuration."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._idle_since: float | None = None
        """Since when simulators play, but none plays a behavior that has something left to learn."""
        self._uneven_since: float | None = None
        """Since when some ranks have simulators, and others have none."""
        self._uneven_reported = False

    def without_simulators(self) -> Ending | None:
        """Return the end after too long without a simulator; None while to wait, or while something can be learned."""
        attempt, simulators = self._attempt, self._attempt.simulators
        learners = attempt.learners.values()
        if simulators or any(learner.ready for learner in learners):
            return None
        if any(isinstance(learner, DemonstratedLearner) and not learner.done for learner in learners):
            return None  # its evaluation waits for a simulator, with a limit of its own
        limits = attempt.config.simulators
        grace = limits.grace_seconds if simulators.any_came else limits.startup_grace_seconds
        if grace is None or time.monotonic() - simulators.absent_since < grace:
            return None
        if attempt.is_inference and simulators.any_came:
            return "succeeded", StopReason.COMPLETED, "no simulator plays any more, and the run does not learn"
        if simulators.any_came:
            why = f"all simulators have been gone for {grace:g} s (simulators.grace_seconds)"
        else:
            why = f"no simulator has come within {grace:g} s (simulators.startup_grace_seconds)"
        run = attempt.job.run_id
        start = f"start one (`ludus simulate GAME --run {run}` or `ludus unity {run}`)"
        resume = f"`ludus run resume {run}`"
        if limits.unity_port is not None:  # the port is closed while the run is paused: no build can wake it
            remedy = f"{resume}, then let the build connect to port {limits.unity_port} of the worker"
        elif limits.auto_resume:
            remedy = f"{start}, and the run goes on by itself"
        else:
            remedy = f"{start}, and resume the run: {resume}"
        return "paused", StopReason.SIMULATORS_LOST, f"{why}; {remedy}"

    def without_ranks(self) -> Ending | None:
        """Return how to end after some ranks have for too long had no simulator, while others had.

        Every rank learns from an equal part of a round. Reports an event when such a wait has lasted.
        """
        attempt, now = self._attempt, time.monotonic()
        idle = attempt.pool.idle_ranks() if attempt.ranks > 1 and attempt.simulators else []
        if not idle or not attempt.unfinished():
            self._uneven_since, self._uneven_reported = None, False
            return None
        self._uneven_since = self._uneven_since or now
        waited, grace = now - self._uneven_since, attempt.config.simulators.startup_grace_seconds
        need = (
            f"torch_settings.processes is {attempt.ranks}, but {len(attempt.simulators)} simulators play, and "
            f"{len(idle)} ranks have none"
        )
        if waited >= UNEVEN_SECONDS and not self._uneven_reported:
            self._uneven_reported = True
            message = f"{need}: no round is complete without their parts; start at least {len(idle)} more"
            attempt.report("rank_without_simulator", message, level="warning", ranks=idle)
        if grace is None or waited < grace:
            return None
        run = attempt.job.run_id
        detail = (
            f"{need} (for {grace:g} s, simulators.startup_grace_seconds); resume the run (`ludus run resume {run}`) "
            f"with at least {attempt.ranks} simulators"
        )
        return "paused", StopReason.SIMULATORS_LOST, detail

    def without_behaviors(self) -> Ending | None:
        """Return how to end after simulators have for too long played only behaviors with nothing left to learn.

        A configured behavior that no simulator plays would otherwise keep the run, and its slot, without end. Reports
        an event when such a wait begins.
        """
        attempt, learners = self._attempt, self._attempt.learners
        unfinished = attempt.unfinished()
        is_idle = (
            bool(unfinished)
            and bool(learners)  # a game with refused behaviors alone plays until it reads so
            and attempt.config.assessment is None
            and not attempt.is_inference
            and attempt.simulators.any_plays
            and not any(
                attempt.simulators.is_played(name) or isinstance(learners.get(name), DemonstratedLearner)
                for name in unfinished
            )
        )
        if not is_idle:
            self._idle_since = None
            return None
        now = time.monotonic()
        names = ", ".join(unfinished)
        grace = attempt.config.simulators.startup_grace_seconds
        if self._idle_since is None:
            self._idle_since = now
            then = "without limit" if grace is None else f"for {grace:g} s, and then pauses"
            attempt.report(
                "behavior_missing",
                f"No simulator plays {names}; all else has been learned. The run waits for one that does, {then} "
                "(simulators.startup_grace_seconds)",
                level="warning",
                behaviors=unfinished,
            )
        if grace is None or now - self._idle_since < grace:
            return None
        run = attempt.job.run_id
        detail = (
            f"no simulator has played {names} for {grace:g} s (simulators.startup_grace_seconds), and all else has "
            f"been learned; resume the run (`ludus run resume {run}`) and start a simulator that plays it, or end it "
            f"with what it has learned: `ludus run stop {run}`"
        )
        return "paused", StopReason.BEHAVIOR_MISSING, detail
