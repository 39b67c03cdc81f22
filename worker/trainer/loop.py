"""The loop: collect, learn, record, checkpoint, until the end. No maths in it.

Threads: this loop is the main thread; the link to the supervisor has two threads of its own, the collector pool one.
Nothing here waits for the supervisor, except the last checkpoint for its acknowledgement.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, assert_never

import structlog
import torch

from ludus.demonstrations import DemonstrationError
from ludus.spec import BehaviorSpec
from ludus.wire.codes import CloseCode
from server.runs.states import StopReason
from server.training.config import CloneConfig, POCAConfig, RunConfig, SACConfig
from worker.algorithms.algorithm import Algorithm
from worker.algorithms.guards import Diverged
from worker.build import (
    Demonstrations,
    LearningConfig,
    build_algorithm,
    build_clone,
    choose_collector_device,
    choose_device,
    count_gpus,
)
from worker.checkpoint import load, save
from worker.collector.notices import (
    BehaviorAnnounced,
    CollectorDied,
    CollectorListening,
    Endpoint,
    EpisodesEnded,
    Notice,
    RoundCollected,
    SegmentsDelivered,
    SimulatorConnected,
    SimulatorLeft,
    SimulatorStarted,
    StatsReported,
)
from worker.collector.pool import CollectorPool, PolicyProgram, WarmCollector
from worker.collector.settings import CollectorSettings
from worker.experience.arena import Arena
from worker.experience.rollout import Rollout
from worker.export import ExportMismatch
from worker.learner import MAX_ROLLBACKS, BehaviorLearner, Learner, arena_steps
from worker.learner import Progress as LearnerProgress
from worker.link import (
    CheckpointCommitted,
    CheckpointReason,
    CheckpointRefused,
    CheckpointWritten,
    Command,
    EventRecord,
    Finished,
    Job,
    Level,
    Listening,
    Message,
    Outcome,
    Progress,
    SimulatorDown,
    SimulatorUp,
)
from worker.link import Endpoint as LinkEndpoint
from worker.networks.layout import UnsupportedSpec
from worker.recorder import Recorder
from worker.trainer.clone import CloneLearner
from worker.trainer.compilation import BackgroundCompilation
from worker.trainer.parallel import Build, Group
from worker.trainer.precision import bf16_pictures

log = structlog.get_logger()

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 0.5
COMMIT_SECONDS = 60.0
"""How long the last checkpoint may take to be acknowledged."""


class Superior(Protocol):
    """Whoever gives the job: a supervisor's link, or a person's console."""

    def post(self, message: Message) -> None:
        """Report something. Never blocks."""

    def commands(self) -> list[Command | CheckpointCommitted | CheckpointRefused]:
        """Return what came in since the last call."""


class Trainer:
    """One attempt of a run."""

    def __init__(self, job: Job, superior: Superior, warm: list[WarmCollector]) -> None:
        """Raise `DeviceMissing` or `CheckpointDamaged` where the job cannot even begin."""
        self._job = job
        self._config = RunConfig.model_validate(job.config)
        self._superior = superior
        self._scratch = Path(job.scratch)
        self._device = choose_device(self._config.torch_settings, count_gpus())
        self._demonstrations = Demonstrations(job.demonstrations)
        self._learners: dict[str, Learner] = {}
        self._unusable: Finished | None = None
        """Set when the configuration can't be trained as it is."""
        self._resume = load(Path(job.resume_from)) if job.resume_from else {}
        """The states of a checkpoint, until their behaviors come; others go on into the next one as they are."""
        self._simulators: dict[str, set[str]] = {}
        """The behaviors that each connected simulator plays; none before its first step."""
        self._endpoints: dict[int, Endpoint] = {}
        self._checkpoints = 0
        self._awaited: set[str] = set()
        self._refused: CheckpointRefused | None = None
        self._alone_since = time.monotonic()
        self._seen_simulator = False
        self._next_progress = 0.0
        self._group: Group | None = None
        self._bf16 = self._config.torch_settings.bf16 and self._device.type == "cuda"
        self._collector_device = str(choose_collector_device(self._config.torch_settings, count_gpus()))
        self._pool = CollectorPool(self._collector_settings(), warm)

    def run(self) -> Finished:
        """Train until the end, whatever it is, and say which."""
        try:
            self._tell_of_bf16()
            self._begin_clones()
            for endpoint in self._pool.start():
                self._endpoints[endpoint.index] = endpoint
            self._tell_endpoints()
            finished = self._loop()
            self._tell_progress(at_once=True)
            code = _farewell(finished)
            self._pool.close(code, finished.detail or code.sentence, rejoin=code.rejoin)
            for notice in self._pool.poll(0.0):
                if isinstance(notice, SimulatorLeft):
                    self._simulator_left(notice)
        finally:
            self._pool.close(CloseCode.COLLECTOR_CLOSING, "the trainer ended; join again", rejoin=True)
            if self._group is not None:
                self._group.close()
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
            environment_parameters=self._config.environment_parameters,
            step_timeout=simulators.step_timeout_seconds,
            startup_timeout=simulators.startup_timeout_seconds,
            max_message_bytes=self._job.max_message_bytes,
        )

    def _loop(self) -> Finished:
        while True:
            busy = any(learner.ready for learner in self._learners.values())
            for notice in self._pool.poll(0.0 if busy else POLL_SECONDS):
                self._handle(notice)
            finished = self._unusable or self._commanded() or self._learn() or self._forsaken()
            if finished is not None:
                return finished
            self._tell_progress()

    # what collectors report ---------------------------------------------------------------------------------------

    def _handle(self, notice: Notice) -> None:
        match notice:
            case SegmentsDelivered():
                self._collecting(notice.behavior).add(notice.segments, notice.steps)
            case RoundCollected():
                self._collecting(notice.behavior).collected(notice.round)
            case EpisodesEnded():
                self._learners[notice.behavior].episodes_ended(notice)
            case StatsReported():
                for learner in self._learners.values():
                    learner.recorder.reported(notice)
            case BehaviorAnnounced():
                self._admit(notice.spec)
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
                self._simulators[notice.incarnation] = {name.partition("?")[0] for name in notice.behaviors}
            case SimulatorLeft():
                self._simulator_left(notice)
            case CollectorListening():
                self._endpoints[notice.endpoint.index] = notice.endpoint
                self._tell_endpoints()
            case CollectorDied():
                self._endpoints.pop(notice.index, None)
                self._event(
                    "collector_died",
                    f"Collector {notice.index} died ({notice.exit_code}); {notice.lost_steps} steps are lost",
                    level="warning",
                    data={"index": notice.index, "exit_code": notice.exit_code, "lost_steps": notice.lost_steps},
                )
            case _:
                assert_never(notice)

    def _collecting(self, behavior: str) -> BehaviorLearner:
        """Return the learner that asked for experience."""
        learner = self._learners[behavior]
        assert isinstance(learner, BehaviorLearner), "nothing is granted for a behavior that only imitates"
        return learner

    def _admit(self, spec: BehaviorSpec) -> None:
        """Give an announced behavior its learner, or refuse it."""
        config = self._config.behavior(spec.behavior)
        if config is None:
            names = ", ".join(sorted(self._config.behaviors))
            self._refuse(
                spec,
                CloseCode.BEHAVIOR_NOT_CONFIGURED,
                f"the run's configuration has no behavior {spec.behavior!r}, only: {names}",
            )
            return
        try:
            if isinstance(config, CloneConfig):
                learner = self._learners.get(spec.behavior) or self._begin_clone(spec.behavior, config)
                assert isinstance(learner, CloneLearner)
                learner.admit(spec)
            else:
                self._begin_learning(config, spec)
        except UnsupportedSpec as error:
            self._refuse(spec, CloseCode.BAD_SPEC, str(error))
        except DemonstrationError as error:
            self._refuse(spec, CloseCode.BAD_SPEC, str(error))
            if spec.behavior not in self._learners:
                self._unusable = _unusable(spec.behavior, error)

    def _begin_learning(self, config: LearningConfig, spec: BehaviorSpec) -> None:
        """Make the learner of a behavior that learns from simulators."""
        algorithm = build_algorithm(config, spec, self._device, self._job.seed, self._demonstrations)
        if self._config.torch_settings.processes > 1:
            algorithm = self._shared(algorithm, config, spec)
        progress = LearnerProgress()
        saved = self._resume.pop(spec.behavior, None)
        if saved is not None:
            algorithm.load_state_dict(saved["algorithm"])
            progress = LearnerProgress(**saved["progress"])
        steps = arena_steps(config, algorithm.round_steps())
        arena = Arena.create(spec, steps, memory_size=algorithm.actor.memory_size)
        extrinsic = config.reward_signals.extrinsic
        recorder = Recorder(
            spec.behavior,
            config.summary_freq,
            self._superior.post,
            progress.step,
            None if extrinsic is None or isinstance(config, POCAConfig) else extrinsic.strength,  # POCA measures it
            groups=isinstance(config, POCAConfig),
        )
        program = PolicyProgram(
            network_settings=config.network_settings.model_dump(mode="json"),
            weights_size=algorithm.flat_weights().size,
            time_horizon=config.time_horizon,
            squashed=algorithm.actor.layout.squashed,
            pink_noise=self._is_pink(config, spec),
            device=self._collector_device,
        )
        self._pool.admit(spec, program, arena)
        learner = BehaviorLearner(
            config,
            spec,
            algorithm,
            arena,
            recorder,
            self._pool,
            progress,
            precision=lambda: bf16_pictures(self._bf16),
            before_update=self._compilation(algorithm, config, spec),
        )
        self._learners[spec.behavior] = learner
        learner.start()
        self._admitted(learner)

    def _is_pink(self, config: LearningConfig, spec: BehaviorSpec) -> bool:
        """Whether the behavior explores with pink noise; tell where it was asked for in vain."""
        if not isinstance(config, SACConfig) or config.hyperparameters.exploration_noise != "pink":
            return False
        if not spec.actions.continuous_size:
            reason = "exploration_noise: pink has no effect: there are no continuous actions"
            self._event(
                "exploration_noise_not_used",
                f"{spec.behavior}: {reason}",
                level="warning",
                data={"behavior": spec.behavior},
            )
        return spec.actions.continuous_size > 0

    def _tell_of_bf16(self) -> None:
        """Tell if bfloat16 was asked for in vain."""
        if self._config.torch_settings.bf16 and not self._bf16:
            message = f"torch_settings.bf16 has no effect on {self._device.type}: pictures are encoded in float32"
            self._event("bf16_not_used", message, level="warning")

    def _compilation(
        self, algorithm: Algorithm, config: LearningConfig, spec: BehaviorSpec
    ) -> Callable[[Rollout, int], None] | None:
        """Return what compiles a behavior's updates in the background, if that is asked for."""
        if not self._config.torch_settings.compile:
            return None

        def twin() -> Algorithm:
            return build_algorithm(config, spec, self._device, self._job.seed, self._demonstrations)

        def tell(name: str, message: str) -> None:
            level: Level = "info" if name == "compiled" else "warning"
            self._event(name, f"{spec.behavior}: {message}", level=level, data={"behavior": spec.behavior})

        return BackgroundCompilation(algorithm, twin, tell).before_update

    def _shared(self, algorithm: Algorithm, config: LearningConfig, spec: BehaviorSpec) -> Algorithm:
        """Let the processes of `torch_settings` share an algorithm's updates, started when they are first needed."""
        processes = self._config.torch_settings.processes
        needed = (self._device.index or 0) + processes
        if self._device.type == "cuda" and torch.cuda.device_count() < needed:
            reason = f"{needed} GPUs are needed, this worker has {torch.cuda.device_count()}; it learns in one process"
            self._event("processes_not_used", f"{spec.behavior}: {reason}", level="warning")
            return algorithm
        if self._group is None:
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._group = Group(processes, self._device, self._scratch, bf16=self._bf16)
        return self._group.share(algorithm, Build(config, spec, self._job.seed, self._job.demonstrations))

    def _begin_clones(self) -> None:
        """Make the learners that need no simulator."""
        for name, config in self._config.behaviors.items():
            if isinstance(config, CloneConfig):
                try:
                    self._begin_clone(name, config)
                except (DemonstrationError, UnsupportedSpec) as error:
                    self._event("behavior_refused", str(error), level="error", data={"behavior": name})
                    self._unusable = _unusable(name, error)

    def _begin_clone(self, name: str, config: CloneConfig) -> CloneLearner:
        """Make the learner of a behavior that only imitates."""
        algorithm, spec, shown = build_clone(config, name, self._device, self._job.seed, self._demonstrations)
        saved = self._resume.pop(name, None)
        step = 0 if saved is None else saved["progress"]["step"]
        learner = CloneLearner(
            config,
            spec,
            algorithm,
            shown,
            Recorder(name, config.summary_freq, self._superior.post, step, strength=None),
            self._pool,
            patience=self._config.simulators.grace_seconds,
            is_played=lambda: any(name in behaviors for behaviors in self._simulators.values()),
            tell=lambda event, message: self._event(event, message, level="warning", data={"behavior": name}),
            collector_device=self._collector_device,
        )
        if saved is not None:
            learner.load_state(saved)
        self._learners[name] = learner
        self._admitted(learner)
        return learner

    def _admitted(self, learner: Learner) -> None:
        self._event(
            "behavior_admitted",
            f"Behavior {learner.name} trains from step {learner.learnt}",
            data={"behavior": learner.name},
        )

    def _refuse(self, spec: BehaviorSpec, code: str, reason: str) -> None:
        self._pool.refuse(spec.name, code, reason)
        self._event("behavior_refused", reason, level="error", data={"behavior": spec.name, "code": code})

    def _simulator_left(self, notice: SimulatorLeft) -> None:
        if notice.incarnation in self._simulators:
            del self._simulators[notice.incarnation]
            self._alone_since = time.monotonic()
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
            if taken_back is not None:
                self._rolled_back(learner, taken_back)
        if self._learners.keys() >= self._config.behaviors.keys() and all(one.done for one in self._learners.values()):
            return self._finish("succeeded", StopReason.COMPLETED, "every behavior reached its max_steps")
        if any(learner.checkpoint_due for learner in self._learners.values()):
            self._checkpoint("interval")
        return None

    def _rolled_back(self, learner: Learner, reason: str) -> None:
        self._event("update_rolled_back", f"{learner.name}: {reason}", level="warning", data={"behavior": learner.name})

    def _diverged(self, learner: Learner, error: Diverged) -> Finished:
        """Give up, and leave the weights of before: to look at, or to go on from with other hyperparameters."""
        self._rolled_back(learner, str(error))
        detail = f"{learner.name}: {error} ({MAX_ROLLBACKS} in a row)"
        return self._finish("failed", StopReason.DIVERGED, detail)

    def _checkpoint(self, reason: CheckpointReason, *, models_optional: bool = False) -> str | None:
        """Write a checkpoint of all behaviors to the scratch folder; return the folder.

        Raise `ExportMismatch` where a model does not do what its policy does, unless it may be left out.
        """
        if not self._learners:
            return None
        self._checkpoints += 1
        folder = self._scratch / f"checkpoint-{self._checkpoints}"
        try:
            folder.mkdir(parents=True)
            save(folder, {**self._resume, **{name: learner.state() for name, learner in self._learners.items()}})
            for learner in self._learners.values():
                try:
                    learner.export(folder / f"{file_name(learner.name)}.onnx")
                except ExportMismatch as error:
                    if not models_optional:
                        raise
                    self._event("model_left_out", f"{learner.name}: {error}", level="warning")
        except OSError as error:
            self._event(
                "checkpoint_failed",
                f"The checkpoint could not be written: {error}",
                level="error",
                data={"code": "storage_full"},
            )
            self._refused = CheckpointRefused(folder=str(folder), code="storage_full", detail=str(error))
            for learner in self._learners.values():
                learner.checkpointed()
            return None
        steps = {name: state["progress"]["step"] for name, state in self._resume.items()}
        steps |= {name: learner.learnt for name, learner in self._learners.items()}
        self._superior.post(
            CheckpointWritten(
                folder=str(folder),
                step=sum(steps.values()),
                steps=steps,
                reason=reason,
                keep=max(learner.config.keep_checkpoints for learner in self._learners.values()),
                metrics={name: learner.recorder.take_checkpoint_return() for name, learner in self._learners.items()},
            )
        )
        for learner in self._learners.values():
            learner.checkpointed()
        return str(folder)

    def _finish(self, outcome: Outcome, reason: StopReason, detail: str) -> Finished:
        """Write the final checkpoint, wait for its acknowledgement, and say how the attempt ended."""
        self._refused = None
        failed = outcome == "failed"
        folder = self._checkpoint(
            "final" if failed or outcome == "succeeded" else "requested",
            models_optional=failed,  # what made updates fail (observations of 1e30) may spoil the check of a model, too
        )
        deadline = time.monotonic() + COMMIT_SECONDS
        committed = folder is None
        while not committed and self._refused is None and time.monotonic() < deadline:
            for message in self._superior.commands():
                match message:
                    case CheckpointCommitted():
                        committed = committed or message.folder == folder
                    case CheckpointRefused() if message.folder == folder:
                        self._refused = message
            time.sleep(0.01)
        if not committed and self._refused is None:
            log.warning("final_checkpoint_not_acknowledged", folder=folder)
        if failed:  # for its own reason, whatever became of the checkpoint: another attempt would fail alike
            lost = "" if self._refused is None else f"; its last checkpoint could not be stored: {self._refused.detail}"
            return Finished(outcome=outcome, reason=reason, detail=detail + lost)
        if self._refused is not None:
            return Finished(outcome="failed", reason=StopReason.STORAGE_FULL, detail=self._refused.detail)
        if not committed:
            return Finished(outcome="released", detail="the final checkpoint was not acknowledged in time")
        return Finished(outcome=outcome, reason=reason, detail=detail)

    # what the superior wants --------------------------------------------------------------------------------------

    def _commanded(self) -> Finished | None:
        for message in self._superior.commands():
            match message:
                case Command(action="stop"):
                    return self._finish("succeeded", StopReason.USER, "stopped on request")
                case Command(action="cancel"):
                    return Finished(outcome="cancelled", reason=StopReason.USER, detail="cancelled on request")
                case Command(action="release"):
                    return self._finish("released", StopReason.USER, "the worker is shutting down")
                case CheckpointCommitted() | CheckpointRefused() | Command():
                    pass
                case _:
                    assert_never(message)
        return None

    def _forsaken(self) -> Finished | None:
        """Pause the run when nobody plays any more, unless something can be learnt all the same."""
        if self._simulators or any(learner.ready for learner in self._learners.values()):
            return None
        grace = self._config.simulators.grace_seconds
        if not self._seen_simulator or time.monotonic() - self._alone_since < grace:
            return None  # the first simulator may come whenever it likes: somebody may have to press Play
        return self._finish("paused", StopReason.SIMULATORS_LOST, f"all simulators have been gone for {grace:g} s")

    def _tell_progress(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            step = sum(learner.step for learner in self._learners.values())
            self._superior.post(Progress(step=step, simulators=len(self._simulators)))

    def _tell_endpoints(self) -> None:
        endpoints = [LinkEndpoint(index=one.index, address=one.address) for one in self._endpoints.values()]
        self._superior.post(Listening(endpoints=endpoints))

    def _event(self, name: str, message: str, *, level: Level = "info", data: dict[str, object] | None = None) -> None:
        log.info(name, message=message)
        self._superior.post(EventRecord(name=name, level=level, message=message, data=data or {}))


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


def _unusable(behavior: str, error: Exception) -> Finished:
    """Say that a run can't be trained as it is configured."""
    return Finished(outcome="failed", reason=StopReason.INVALID_CONFIG, detail=f"behavior {behavior}: {error}")


def file_name(behavior: str) -> str:
    """Return a behavior's name as it may stand in a file name: other characters become `=` and their UTF-8 bytes."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda match: "".join(f"={byte:02X}" for byte in match[0].encode()), behavior)
