"""The loop: collect, learn, record, checkpoint, until the end. No maths in it.

Threads: this loop is the main thread; the link to the supervisor has two threads of its own, the collector pool one.
Making learners (`worker.trainer.admission`), checkpoints, self-play and lessons have modules of their own.
"""

import time
from collections.abc import Sized
from dataclasses import fields
from pathlib import Path
from typing import assert_never

import numpy as np
import structlog

from ludus.collector.settings import CollectorSettings
from ludus.protocol.codes import CloseCode
from ludus.protocol.side_channels import EngineConfiguration
from server.config.config import RunConfig
from server.runs.states import StopReason
from worker.collectors.children import WarmCollector
from worker.collectors.notices import (
    BehaviorAnnounced,
    CollectorDied,
    CollectorListening,
    Endpoint,
    EpisodesEnded,
    GhostStepsPlayed,
    HandedOver,
    MatchesEnded,
    Notice,
    RoundCollected,
    SegmentsDelivered,
    SimulatorConnected,
    SimulatorLeft,
    SimulatorStarted,
    SimulatorTrouble,
    SittingEnded,
    StatsReported,
    TeamAnnounced,
)
from worker.collectors.pool import CollectorPool
from worker.learning.algorithms.guards import Diverged
from worker.learning.build import choose_device, count_gpus
from worker.trainer.admission import Admission
from worker.trainer.amendments import Amendments, saved_number
from worker.trainer.assessment import Assessment
from worker.trainer.checkpoint import AMENDMENTS, COLLECTORS, ENVIRONMENT_PARAMETERS, behavior_states, load
from worker.trainer.checkpoints import Checkpoints
from worker.trainer.clone import CloneLearner
from worker.trainer.contest import Contest
from worker.trainer.divergence import LimitCrossed
from worker.trainer.initialization import Sources
from worker.trainer.learner import MAX_ROLLBACKS, BehaviorLearner, Learner
from worker.trainer.lessons import Lessons
from worker.trainer.link import (
    Amend,
    CheckpointCommitted,
    CheckpointRefused,
    Command,
    EditParameters,
    Finished,
    Job,
    Listening,
    Progress,
    SaveCheckpoint,
    SimulatorDown,
    SimulatorPlays,
    SimulatorUp,
)
from worker.trainer.link import Endpoint as LinkEndpoint
from worker.trainer.rest import Rest, can_go_on
from worker.trainer.superior import Events, Superior

log = structlog.get_logger()

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 0.5
LONGEST_COLUMN = 16
"""Most numbers of a column that are logged."""


class Trainer:
    """One attempt of a run."""

    def __init__(self, job: Job, superior: Superior, warm: list[WarmCollector]) -> None:
        """Raise `DeviceMissing` or `CheckpointDamaged` where the job cannot even begin."""
        self._job = job
        config = RunConfig.model_validate(job.config)
        self._superior = superior
        self._events = Events(superior)
        device = choose_device(config.torch_settings, count_gpus())
        sources = Sources(job.checkpoints)
        resumed = Path(job.resume_from) if job.resume_from else sources.resumed(config)
        waiting = {} if resumed is None else load(resumed)
        lessons = waiting.pop(ENVIRONMENT_PARAMETERS, None)
        made = saved_number(waiting.pop(AMENDMENTS, None))
        collectors = waiting.pop(COLLECTORS, [])
        if not job.resume_from:  # what users have changed in another run is of no concern to this one
            made, lessons = 0, None if lessons is None else {**lessons, "edit": 0}
        self._plays = config.checkpoint_settings.inference
        """Whether nothing is learnt."""
        self._learners: dict[str, Learner] = {}
        self._simulators: dict[str, set[str]] = {}
        """The behaviors that each connected simulator plays; none before its first step."""
        self._endpoints: dict[int, Endpoint] = {}
        self._alone_since = time.monotonic()
        """When the last simulator left; before the first one came, when the attempt began to listen."""
        self._seen_simulator = False
        self._refusal: str | None = None
        """Why the simulator that left last was sent away for good; None if it left otherwise."""
        self._idle_since: float | None = None
        """Since when simulators play, but none plays a behavior that has something left to learn."""
        self._next_progress = 0.0
        self._amendments = Amendments(job, superior, self._learners, made)
        self._lessons = Lessons(config, job.seed, self._learners, superior, self._rating, lessons)
        self._pool = CollectorPool(self._collector_settings(), warm)
        self._pool.restore(collectors if can_go_on(self._config, collectors) else [])
        self._contest = Contest(
            self._pool,
            superior,
            self._learners,
            reset=self._reset,
            simulators=lambda: len(self._simulators),
            patience=self._config.simulators.grace_seconds,
        )
        judged = self._config.assessment
        self._assessment = None if judged is None else Assessment(job, self._config, judged, superior, self._pool)
        """Of a run that judges policies instead of training them."""
        if job.epoch > 1:
            if self._assessment is None:
                self._contest.resumed(waiting)
            else:
                self._assessment.resumed()
        self._admission = Admission(
            job,
            self._amendments,
            superior,
            self._pool,
            device,
            sources,
            self._learners,
            waiting,
            self._lessons,
            self._contest,
            self._is_played,
        )
        self._checkpoints = Checkpoints(
            Path(job.scratch),
            superior,
            self._learners,
            waiting,
            self._lessons,
            self._contest,
            self._amendments,
            Rest(self._pool, self._learners, self._take).hold,
            plays=self._plays or self._assessment is not None,
        )
        self._waiting = waiting
        """States of behaviors that have not come yet."""

    @property
    def _config(self) -> RunConfig:
        """The present configuration."""
        return self._amendments.config

    @property
    def _step(self) -> int:
        """Agent steps of all behaviors, also of those that have not come back yet."""
        waiting = sum(int(state["progress"]["step"]) for state in behavior_states(self._waiting).values())
        return waiting + sum(learner.step for learner in self._learners.values())

    def run(self) -> Finished:
        """Train until the end, whatever it is, and say which."""
        try:
            self._tell_progress(at_once=True)
            self._amendments.begin(self._step)
            self._admission.tell_of_bf16()
            if self._assessment is None:
                self._admission.begin_clones()
            for endpoint in self._pool.start():
                self._endpoints[endpoint.index] = endpoint
            self._tell_endpoints()
            self._alone_since = time.monotonic()
            finished = self._loop()
            self._tell_progress(at_once=True)
            self._lessons.tell(at_once=True)
            self._contest.tell(at_once=True)
            if self._assessment is not None:
                self._assessment.tell(at_once=True)
            code = _farewell(finished)
            self._pool.close(code, finished.detail or code.sentence, rejoin=code.rejoin)
            for notice in self._pool.poll(0.0):
                if isinstance(notice, SimulatorLeft):
                    self._simulator_left(notice)
        finally:
            self._pool.close(CloseCode.COLLECTOR_CLOSING, "the trainer ended; join again", rejoin=True)
            self._admission.close()
        return finished

    def _collector_settings(self) -> CollectorSettings:
        simulators = self._config.simulators
        return CollectorSettings(
            run_id=self._job.run_id,
            epoch=self._job.epoch,
            seed=self._job.seed,
            count=self._job.collectors,
            bind_host=self._job.bind_host,
            advertise_host=self._job.advertise_host,
            port_range=self._job.port_range,
            ticket_key=None if self._job.ticket_key is None else bytes.fromhex(self._job.ticket_key),
            tls_certificate=self._job.tls_certificate,
            tls_key=self._job.tls_key,
            tls_client_ca=self._job.tls_client_ca,
            environment_parameters=self._lessons.samplers,
            parameter_set=self._lessons.number,
            step_timeout=simulators.step_timeout_seconds,
            startup_timeout=simulators.startup_timeout_seconds,
            max_message_bytes=self._job.max_message_bytes,
            log_path=self._job.log_path,
            engine=EngineConfiguration(
                **self._config.engine_settings.model_dump(include=set(EngineConfiguration.__dataclass_fields__))
            ),
            num_areas=self._config.env_settings.num_areas,
            unity_port=simulators.unity_port,
        )

    def _loop(self) -> Finished:
        while True:
            busy = any(learner.ready for learner in self._learners.values())
            for notice in self._pool.poll(0.0 if busy else POLL_SECONDS):
                self._take(notice)
            work = self._learn if self._assessment is None else self._assess
            finished = self._admission.unusable or self._commanded() or work() or self._forsaken() or self._incomplete()
            if finished is not None:
                return finished
            self._checkpoints.poll()
            self._tell_progress()
            self._lessons.tell()
            self._contest.tell()

    # what collectors report ---------------------------------------------------------------------------------------

    def _take(self, notice: Notice) -> None:
        if self._config.debug:
            log.debug("notice_taken", notice=type(notice).__name__, **_facts(notice))
        self._handle(notice)
        self._lessons.handle(notice, self._pool)

    def _handle(self, notice: Notice) -> None:
        match notice:
            case SegmentsDelivered():
                self._collecting(notice.behavior).add(notice)
            case RoundCollected():
                self._collecting(notice.behavior).collected(notice.round)
            case EpisodesEnded():
                self._learners[notice.behavior].episodes_ended(notice)
            case StatsReported():
                for learner in self._learners.values():
                    learner.recorder.reported(notice)
            case GhostStepsPlayed():
                self._contest.played(notice)
            case MatchesEnded():
                self._contest.ended(notice)
            case BehaviorAnnounced():
                (self._assessment or self._admission).admit(notice.spec)
            case TeamAnnounced():
                self._contest.team_announced(notice, is_played=self._is_played(notice.behavior))
            case SimulatorConnected():
                self._simulators[notice.incarnation] = set()
                self._seen_simulator = True
                self._superior.post(
                    SimulatorUp(
                        incarnation=notice.incarnation,
                        number=notice.number,
                        collector=notice.collector,
                        peer=notice.peer,
                        client=notice.client,
                        behaviors=list(notice.behaviors),
                    )
                )
            case SimulatorStarted():
                behaviors = {name.partition("?")[0] for name in notice.behaviors}
                self._simulators[notice.incarnation] = behaviors
                self._contest.started(notice.incarnation, notice.behaviors)
                self._superior.post(
                    SimulatorPlays(
                        incarnation=notice.incarnation, behaviors=list(notice.behaviors), agents=notice.agents
                    )
                )
                if self._assessment is not None:
                    self._assessment.started(notice)
            case SimulatorLeft():
                self._simulator_left(notice)
            case SittingEnded():
                assert self._assessment is not None, "nobody else gives simulators sittings"
                self._assessment.sat(notice)
            case SimulatorTrouble():
                self._events.tell(
                    "simulator_trouble",
                    f"Simulator {notice.number}: {notice.sentence}",
                    level="warning",
                    data={"incarnation": notice.incarnation, "number": notice.number, "code": notice.code},
                )
            case CollectorListening():
                self._endpoints[notice.endpoint.index] = notice.endpoint
                self._tell_endpoints()
            case CollectorDied():
                self._endpoints.pop(notice.index, None)
                self._events.tell(
                    "collector_died",
                    f"Collector {notice.index} died ({notice.reason}); {notice.lost_steps} steps are lost",
                    level="warning",
                    data={
                        "index": notice.index,
                        "exit_code": notice.exit_code,
                        "reason": notice.reason,
                        "lost_steps": notice.lost_steps,
                        "silent_seconds": notice.silent_seconds,
                    },
                )
            case HandedOver():
                pass  # too late for its checkpoint (`worker.trainer.rest`)
            case _:
                assert_never(notice)

    def _is_played(self, behavior: str) -> bool:
        """Whether a simulator has begun to play a behavior."""
        return any(behavior in behaviors for behaviors in self._simulators.values())

    def _rating(self, behavior: str) -> float | None:
        return self._contest.ghosts.rating(behavior)

    def _reset(self) -> None:
        """Make every simulator begin anew."""
        self._pool.reset(self._lessons.samplers)

    def _collecting(self, behavior: str) -> BehaviorLearner:
        """Return the learner that asked for experience."""
        learner = self._learners[behavior]
        assert isinstance(learner, BehaviorLearner), "nothing is granted for a behavior that only imitates"
        return learner

    def _simulator_left(self, notice: SimulatorLeft) -> None:
        if notice.incarnation in self._simulators:
            del self._simulators[notice.incarnation]
            self._contest.left(notice.incarnation)
            self._alone_since = time.monotonic()
            if self._assessment is not None:
                self._assessment.left(notice.incarnation)
        # `left`, `disconnected` and `collector_died` are no codes of refusal: nothing was wrong with the simulator.
        code = CloseCode(notice.code) if notice.code in set(CloseCode) else None
        self._refusal = notice.reason if code is not None and not code.rejoin else None
        self._superior.post(
            SimulatorDown(
                incarnation=notice.incarnation,
                number=notice.number,
                peer=notice.peer,
                code=notice.code,
                reason=notice.reason,
                steps=notice.steps,
            )
        )

    # learning -----------------------------------------------------------------------------------------------------

    def _learn(self) -> Finished | None:
        """Update every behavior whose round is complete, checkpoint where due, and finish when all are done."""
        for learner in self._learners.values():
            if not learner.ready:
                continue
            try:
                taken_back = learner.learn()
            except Diverged as error:
                return self._diverged(learner, error)
            except LimitCrossed as error:
                return self._checkpoints.finish("failed", StopReason.DIVERGED, f"{learner.name}: {error}")
            if taken_back is not None:
                self._rolled_back(learner, taken_back)
            self._lessons.advanced(learner.name, self._pool)
        self._contest.take_turns()
        if self._learners.keys() >= self._config.behaviors.keys() and all(one.done for one in self._learners.values()):
            detail = self._with_signs("every behavior reached its max_steps")
            return self._checkpoints.finish("succeeded", StopReason.COMPLETED, detail)
        if any(learner.checkpoint_due for learner in self._learners.values()):
            self._checkpoints.begin()
        return None

    def _assess(self) -> Finished | None:
        """Report how far the assessment is, and finish when its verdict is known."""
        assert self._assessment is not None
        self._assessment.tell()
        if self._assessment.unusable is not None or self._assessment.verdict is None:
            return self._assessment.unusable
        return self._assessment.finish()

    def _rolled_back(self, learner: Learner, reason: str) -> None:
        self._events.tell(
            "update_rolled_back", f"{learner.name}: {reason}", level="warning", data={"behavior": learner.name}
        )

    def _diverged(self, learner: Learner, error: Diverged) -> Finished:
        """Give up, and leave the weights of before: to look at, or to go on from with other hyperparameters."""
        self._rolled_back(learner, str(error))
        detail = self._with_signs(f"{learner.name}: {error} ({MAX_ROLLBACKS} in a row)")
        return self._checkpoints.finish("failed", StopReason.DIVERGED, detail)

    def _with_signs(self, detail: str) -> str:
        """Add the signs of divergence that behaviors show at the end."""
        watched = [one.health for one in self._learners.values() if isinstance(one, BehaviorLearner)]
        return "; ".join([detail, *(sign for health in watched if health is not None for sign in health.summary())])

    # what the superior wants --------------------------------------------------------------------------------------

    def _commanded(self) -> Finished | None:
        for message in self._superior.commands():
            log.debug("command_taken", command=message.model_dump(mode="json"))
            match message:
                case Command(action="stop"):
                    detail = self._with_signs("stopped on request")
                    return self._checkpoints.finish("succeeded", StopReason.USER, detail)
                case Command(action="pause"):
                    return self._checkpoints.finish("paused", StopReason.USER, "paused on request")
                case Command(action="cancel"):
                    return Finished(outcome="cancelled", reason=StopReason.USER, detail="cancelled on request")
                case Command(action="release"):
                    return self._checkpoints.finish("released", None, message.detail)
                case EditParameters():
                    self._lessons.edit(message, self._pool)
                case SaveCheckpoint():
                    self._checkpoints.ask(message.request)
                case Amend():
                    if begin_anew := [name for each in message.amendments for name in self._amendments.make(each)]:
                        detail = f"{' and '.join(begin_anew)} had ended and is to learn on, which takes a new attempt"
                        return self._checkpoints.finish("released", StopReason.USER, detail)
                case CheckpointCommitted() | CheckpointRefused() | Command():
                    pass
                case _:
                    assert_never(message)
        self._checkpoints.write_wanted()
        return None

    def _forsaken(self) -> Finished | None:
        """Pause the run when it has no simulator for too long, unless something can be learnt all the same."""
        if self._simulators or any(learner.ready for learner in self._learners.values()):
            return None
        if any(isinstance(learner, CloneLearner) and not learner.done for learner in self._learners.values()):
            return None  # its evaluation waits for a simulator, and ends by itself
        simulators = self._config.simulators
        grace = simulators.grace_seconds if self._seen_simulator else simulators.startup_grace_seconds
        if grace is None or time.monotonic() - self._alone_since < grace:
            return None
        if self._plays and self._seen_simulator:
            return self._checkpoints.finish(
                "succeeded", StopReason.COMPLETED, "nobody plays any more, and nothing was to be learnt"
            )
        if self._seen_simulator:
            why = f"all simulators have been gone for {grace:g} s (simulators.grace_seconds)"
        else:
            why = f"no simulator has come within {grace:g} s (simulators.startup_grace_seconds)"
        if self._refusal is not None:
            why += f"; the last one was sent away: {self._refusal}"
        run = self._job.run_id
        start = f"start one (`ludus simulate GAME --run {run}` or `ludus unity {run}`)"
        resume = f"`ludus run resume {run}`"
        if simulators.unity_port is not None:  # the port is closed while the run is paused: no build can wake it
            remedy = f"{resume}, then let the build connect to port {simulators.unity_port} of the worker"
        elif simulators.auto_resume:
            remedy = f"{start}, and the run goes on by itself"
        else:
            remedy = f"{start}, and resume the run: {resume}"
        return self._checkpoints.finish("paused", StopReason.SIMULATORS_LOST, f"{why}; {remedy}")

    def _incomplete(self) -> Finished | None:
        """Pause the run when simulators have brought no behavior that has something left to learn for too long.

        A configured behavior that no simulator plays would otherwise keep the run, and its slot, for ever.
        """
        left = [name for name, learner in self._learners.items() if not learner.done]
        left += [name for name in self._config.behaviors if name not in self._learners]
        idle = (
            bool(left)
            and self._assessment is None
            and not self._plays
            and any(self._simulators.values())
            and not any(self._is_played(name) or isinstance(self._learners.get(name), CloneLearner) for name in left)
        )
        if not idle:
            self._idle_since = None
            return None
        now = time.monotonic()
        names = ", ".join(sorted(left))
        grace = self._config.simulators.startup_grace_seconds
        if self._idle_since is None:
            self._idle_since = now
            then = "without limit" if grace is None else f"for {grace:g} s, and then pauses"
            self._events.tell(
                "behavior_missing",
                f"No simulator plays {names}; all else has been learnt. The run waits for one that does, {then} "
                "(simulators.startup_grace_seconds)",
                level="warning",
                data={"behaviors": sorted(left)},
            )
        if grace is None or now - self._idle_since < grace:
            return None
        run = self._job.run_id
        return self._checkpoints.finish(
            "paused",
            StopReason.BEHAVIOR_MISSING,
            f"no simulator has played {names} for {grace:g} s (simulators.startup_grace_seconds), and all else has "
            f"been learnt; resume the run (`ludus run resume {run}`) and start a simulator that plays it, or end it "
            f"with what it has learnt: `ludus run stop {run}`",
        )

    def _tell_progress(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            self._superior.post(Progress(step=self._step, simulators=len(self._simulators)))

    def _tell_endpoints(self) -> None:
        endpoints = [LinkEndpoint(index=one.index, address=one.address) for one in self._endpoints.values()]
        self._superior.post(Listening(endpoints=endpoints))


def _facts(notice: Notice) -> dict[str, object]:
    """Return what a notice says, for a line of the log: of what is large only how large it is."""
    facts: dict[str, object] = {}
    for each in fields(notice):
        value = getattr(notice, each.name)
        if isinstance(value, np.ndarray) and len(value) <= LONGEST_COLUMN:
            facts[each.name] = value.tolist()
        elif isinstance(value, Sized) and not isinstance(value, str):
            facts[each.name] = f"{len(value)} entries"
        else:
            facts[each.name] = value
    return facts


def _farewell(finished: Finished) -> CloseCode:
    """Return the code that simulators are dismissed with."""
    match finished.outcome:
        case "released" | "lost":
            return CloseCode.RUN_MOVED
        case "paused":
            return CloseCode.RUN_PAUSED
        case "cancelled":
            return CloseCode.RUN_CANCELLED
        case "failed":
            return CloseCode.RUN_FAILED
        case "succeeded":
            return CloseCode.RUN_FINISHED
