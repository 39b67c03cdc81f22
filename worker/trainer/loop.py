"""The loop: collect, learn, record, checkpoint, until the end. No maths in it.

Threads: this loop is the main thread; the link to the supervisor has two threads of its own, the collector pool one.
Nothing here waits for the supervisor, except the last checkpoint for its acknowledgement.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, assert_never

import structlog
import torch

from ludus.demonstrations import DemonstrationError
from ludus.spec import BehaviorSpec, file_name
from ludus.wire.codes import CloseCode
from ludus.wire.side_channels import EngineConfiguration
from server.runs.states import StopReason
from server.training.config import BehaviorConfig, CloneConfig, POCAConfig, RunConfig, SACConfig
from server.training.problems import join_path
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
from worker.checkpoint import ENVIRONMENT_PARAMETERS, load, save
from worker.collector.notices import (
    BehaviorAnnounced,
    CollectorDied,
    CollectorListening,
    Endpoint,
    EpisodesEnded,
    GhostStepsPlayed,
    MatchesEnded,
    Notice,
    RoundCollected,
    SegmentsDelivered,
    SimulatorConnected,
    SimulatorLeft,
    SimulatorStarted,
    SimulatorTrouble,
    StatsReported,
    TeamAnnounced,
)
from worker.collector.pool import CollectorPool, PolicyProgram, WarmCollector
from worker.collector.settings import CollectorSettings
from worker.experience.arena import Arena
from worker.experience.rollout import Rollout
from worker.export import ExportMismatch
from worker.initialization import InitializationError, Sources, Stateful, initialize, resume
from worker.learner import MAX_ROLLBACKS, BehaviorLearner, Learner, arena_steps
from worker.learner import Progress as LearnerProgress
from worker.link import (
    CheckpointCommitted,
    CheckpointReason,
    CheckpointRefused,
    CheckpointWritten,
    Command,
    EditParameters,
    EventRecord,
    Finished,
    Job,
    Level,
    Listening,
    Match,
    MatchesPlayed,
    Message,
    Order,
    Outcome,
    Progress,
    SimulatorDown,
    SimulatorPlays,
    SimulatorUp,
)
from worker.link import Endpoint as LinkEndpoint
from worker.networks.layout import UnsupportedSpec
from worker.recorder import Recorder
from worker.selfplay.controller import GhostController
from worker.selfplay.ghost import Ghost
from worker.trainer.clone import CloneLearner
from worker.trainer.compilation import BackgroundCompilation
from worker.trainer.inference import InferenceLearner
from worker.trainer.lessons import Lessons
from worker.trainer.parallel import Build, Group
from worker.trainer.precision import bf16_pictures

log = structlog.get_logger()

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 0.5
MATCHES_SECONDS = 0.5
COMMIT_SECONDS = 60.0
"""How long the last checkpoint may take to be acknowledged."""


class Superior(Protocol):
    """Whoever gives the job: a supervisor's link, or a person's console."""

    def post(self, message: Message) -> None:
        """Report something. Never blocks."""

    def commands(self) -> list[Order]:
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
        self._sources = Sources(job.checkpoints)
        self._learners: dict[str, Learner] = {}
        self._unusable: Finished | None = None
        """Set when the configuration can't be trained as it is."""
        resumed = Path(job.resume_from) if job.resume_from else self._sources.resumed(self._config)
        self._resume = {} if resumed is None else load(resumed)
        """The states of a checkpoint, until their behaviors come; others go on into the next one as they are."""
        self._plays = self._config.checkpoint_settings.inference
        """Whether nothing is learnt."""
        lessons = self._resume.pop(ENVIRONMENT_PARAMETERS, None)
        self._lessons = Lessons(self._config, job.seed, self._learners, superior.post, self._rating, lessons)
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
        self._ghosts = GhostController(self._pool, self._reset, lambda: len(self._simulators), self._tell_event)
        self._teams: dict[str, set[int]] = {}
        """Of each behavior, as simulators brought them."""
        self._matches: list[Match] = []
        """Those that the superior has not been told of."""
        self._next_matches = 0.0

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
            self._lessons.tell(at_once=True)
            self._tell_matches(at_once=True)
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
            environment_parameters=self._lessons.samplers,
            step_timeout=simulators.step_timeout_seconds,
            startup_timeout=simulators.startup_timeout_seconds,
            max_message_bytes=self._job.max_message_bytes,
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
                self._handle(notice)
                self._lessons.handle(notice, self._pool)
            finished = self._unusable or self._commanded() or self._learn() or self._forsaken()
            if finished is not None:
                return finished
            self._tell_progress()
            self._lessons.tell()
            self._tell_matches()

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
            case GhostStepsPlayed():
                self._ghosts.played(notice.behavior, notice.steps)
            case MatchesEnded():
                step = self._learners[notice.behavior].step
                self._matches += self._ghosts.ended(notice, step, time.time())
            case BehaviorAnnounced():
                self._admit(notice.spec)
            case TeamAnnounced():
                self._team_announced(notice)
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
                if any(self._ghosts.ghost(behavior) for behavior in behaviors):
                    self._ghosts.begin()
                self._superior.post(
                    SimulatorPlays(
                        incarnation=notice.incarnation, behaviors=list(notice.behaviors), agents=notice.agents
                    )
                )
            case SimulatorLeft():
                self._simulator_left(notice)
            case SimulatorTrouble():
                self._event(
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
                self._event(
                    "collector_died",
                    f"Collector {notice.index} died ({notice.exit_code}); {notice.lost_steps} steps are lost",
                    level="warning",
                    data={"index": notice.index, "exit_code": notice.exit_code, "lost_steps": notice.lost_steps},
                )
            case _:
                assert_never(notice)

    def _team_announced(self, notice: TeamAnnounced) -> None:
        """Let a team take part in self-play; tell where several teams train one policy together."""
        teams = self._teams.setdefault(notice.behavior, set())
        teams.add(notice.team)
        if self._ghosts.ghost(notice.behavior) is not None:
            self._ghosts.team_announced(notice.behavior, notice.team)
            if any(notice.behavior in behaviors for behaviors in self._simulators.values()):
                self._ghosts.begin()
        elif len(teams) == 2 and isinstance(self._learners.get(notice.behavior), BehaviorLearner):
            self._event(
                "teams_train_together",
                f"Simulators have brought several teams of {notice.behavior}, which has no self_play: all of them "
                "train one policy together. Enable self_play to train adversarial games",
                level="warning",
                data={"behavior": notice.behavior},
            )

    def _rating(self, behavior: str) -> float | None:
        return self._ghosts.rating(behavior)

    def _reset(self) -> None:
        """Make every simulator begin anew."""
        self._pool.reset(self._lessons.samplers)

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
        except (DemonstrationError, InitializationError) as error:
            reason = self._mistake(spec.behavior, error)
            self._refuse(spec, CloseCode.BAD_SPEC, reason)
            if spec.behavior not in self._learners:
                self._unusable = _unusable(reason)

    def _begin_learning(self, config: LearningConfig, spec: BehaviorSpec) -> None:
        """Make the learner of a behavior that learns from simulators."""
        algorithm = build_algorithm(config, spec, self._device, self._job.seed, self._demonstrations)
        if self._config.torch_settings.processes > 1 and not self._plays:
            algorithm = self._shared(algorithm, config, spec)
        progress = LearnerProgress()
        saved = self._resume.get(spec.behavior)
        if saved is not None:
            resume(algorithm, spec, saved["algorithm"])
            progress = LearnerProgress(**saved["progress"])
            del self._resume[spec.behavior]
        else:
            self._initialize(algorithm, config, spec)
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
            standing=lambda: self._lessons.metrics,
        )
        program = PolicyProgram(
            network_settings=config.network_settings.model_dump(mode="json"),
            weights_size=algorithm.flat_weights().size,
            time_horizon=config.time_horizon,
            squashed=algorithm.actor.layout.squashed,
            pink_noise=self._is_pink(config, spec),
            device=self._collector_device,
            self_play=config.self_play is not None and not self._plays,
        )
        self._pool.admit(spec, program, arena)
        learner: BehaviorLearner | InferenceLearner
        if self._plays:
            learner = InferenceLearner(config, spec, algorithm, recorder, self._pool, progress.step)
        else:
            if config.self_play is not None:
                self._begin_self_play(config, spec.behavior, algorithm, recorder, progress.step, saved)
            learner = self._teacher(config, spec, algorithm, arena, recorder, progress)
        self._learners[spec.behavior] = learner
        learner.start()
        self._admitted(learner)

    def _teacher(
        self,
        config: LearningConfig,
        spec: BehaviorSpec,
        algorithm: Algorithm,
        arena: Arena,
        recorder: Recorder,
        progress: LearnerProgress,
    ) -> BehaviorLearner:
        return BehaviorLearner(
            config,
            spec,
            algorithm,
            arena,
            recorder,
            self._pool,
            progress,
            precision=lambda: bf16_pictures(self._bf16),
            before_update=self._compilation(algorithm, config, spec),
            turns=None if config.self_play is None else self._ghosts,
        )

    def _begin_self_play(
        self,
        config: LearningConfig,
        behavior: str,
        algorithm: Algorithm,
        recorder: Recorder,
        step: int,
        saved: dict[str, Any] | None,
    ) -> None:
        """Make the opponents of a behavior, or bring them back."""
        assert config.self_play is not None
        ghost = Ghost(behavior, config.self_play, self._job.seed, step, algorithm.flat_weights, recorder)
        ghost.done = step >= config.max_steps
        self._ghosts.join(ghost, None if saved is None else saved.get("self_play"))

    def _is_pink(self, config: LearningConfig, spec: BehaviorSpec) -> bool:
        """Whether the behavior explores with pink noise; tell where it was asked for in vain."""
        if not isinstance(config, SACConfig) or config.hyperparameters.exploration_noise != "pink":
            return False
        if not spec.actions.continuous_size:
            key = f"{self._section(spec.behavior)}.hyperparameters.exploration_noise"
            self._event(
                "exploration_noise_not_used",
                f"{key}: pink has no effect, since {spec.behavior} has no continuous actions; remove it",
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
            message = (
                f"torch_settings.processes is {processes}: on {self._device} and those that follow it {needed} GPUs "
            )
            message += f"are needed, this worker has {torch.cuda.device_count()}; {spec.behavior} learns in one process"
            self._event("processes_not_used", message, level="warning")
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
                except (DemonstrationError, InitializationError, UnsupportedSpec) as error:
                    reason = self._mistake(name, error)
                    self._event("behavior_refused", reason, level="error", data={"behavior": name})
                    self._unusable = _unusable(reason)

    def _begin_clone(self, name: str, config: CloneConfig) -> CloneLearner:
        """Make the learner of a behavior that only imitates."""
        algorithm, spec, shown = build_clone(config, name, self._device, self._job.seed, self._demonstrations)
        saved = self._resume.get(name)
        if saved is None:
            self._initialize(algorithm, config, spec)
            step = 0
        else:
            resume(algorithm, spec, saved["algorithm"])
            step = saved["progress"]["step"]
            del self._resume[name]
        learner = CloneLearner(
            config,
            spec,
            algorithm,
            shown,
            Recorder(
                name,
                config.summary_freq,
                self._superior.post,
                step,
                strength=None,
                standing=lambda: self._lessons.metrics,
            ),
            self._pool,
            patience=self._config.simulators.grace_seconds,
            is_played=lambda: any(name in behaviors for behaviors in self._simulators.values()),
            tell=lambda event, message: self._event(event, message, level="warning", data={"behavior": name}),
            collector_device=self._collector_device,
        )
        self._learners[name] = learner
        self._admitted(learner)
        return learner

    def _initialize(self, algorithm: Stateful, config: BehaviorConfig, spec: BehaviorSpec) -> None:
        """Give a new algorithm the networks that its configuration names, if any. Raise `InitializationError`."""
        source = self._sources.of(config)
        if source is None:
            return
        name, path = source
        began = initialize(algorithm, config, spec, name, path)
        anew = f"; new are {', '.join(began.fresh)}" if began.fresh else ""
        self._event(
            "behavior_initialized",
            f"Behavior {spec.behavior} begins with checkpoint {name}, which had learnt for {began.step} steps{anew}",
            data={
                "behavior": spec.behavior,
                "checkpoint": name,
                "origin": began.origin,
                "step": began.step,
                "fresh": list(began.fresh),
            },
        )

    def _admitted(self, learner: Learner) -> None:
        does = "plays without learning" if self._plays else "trains"
        self._event(
            "behavior_admitted",
            f"Behavior {learner.name} {does} from step {learner.learnt}",
            data={"behavior": learner.name, "name": learner.spec.name},
        )

    def _mistake(self, behavior: str, error: DemonstrationError | InitializationError | UnsupportedSpec) -> str:
        """Say what is wrong, and where: demonstrations with the whole path of their key, others with their behavior."""
        return f"{self._section(behavior)}.{error}" if isinstance(error, DemonstrationError) else str(error)

    def _section(self, behavior: str) -> str:
        """Return the path of the section that a behavior is trained by."""
        return join_path(["behaviors", behavior]) if behavior in self._config.behaviors else "default_settings"

    def _refuse(self, spec: BehaviorSpec, code: str, reason: str) -> None:
        self._pool.refuse(spec.behavior, code, reason)
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
            self._lessons.advanced(learner.name, self._pool)
        for learner in self._learners.values():
            if isinstance(learner, BehaviorLearner):
                learner.take_turn()
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
        if not self._learners or self._plays:
            return None
        self._checkpoints += 1
        folder = self._scratch / f"checkpoint-{self._checkpoints}"
        try:
            folder.mkdir(parents=True)
            save(folder, self._state())
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
        self._tell_matches(at_once=True)  # those that the checkpoint counts
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

    def _state(self) -> dict[str, object]:
        """Return what a checkpoint must hold to go on from here."""
        states = {**self._resume, **{name: learner.state() for name, learner in self._learners.items()}}
        return states | ({ENVIRONMENT_PARAMETERS: self._lessons.state()} if self._lessons.samplers else {})

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
                case EditParameters():
                    self._lessons.edit(message, self._pool)
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
        if self._plays:
            return self._finish(
                "succeeded", StopReason.COMPLETED, "nobody plays any more, and nothing was to be learnt"
            )
        return self._finish("paused", StopReason.SIMULATORS_LOST, f"all simulators have been gone for {grace:g} s")

    def _tell_progress(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now >= self._next_progress:
            self._next_progress = now + PROGRESS_SECONDS
            step = sum(learner.step for learner in self._learners.values())
            self._superior.post(Progress(step=step, simulators=len(self._simulators)))

    def _tell_matches(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._matches and (at_once or now >= self._next_matches):
            self._next_matches = now + MATCHES_SECONDS
            self._superior.post(MatchesPlayed(matches=self._matches))
            self._matches = []

    def _tell_endpoints(self) -> None:
        endpoints = [LinkEndpoint(index=one.index, address=one.address) for one in self._endpoints.values()]
        self._superior.post(Listening(endpoints=endpoints))

    def _event(self, name: str, message: str, *, level: Level = "info", data: dict[str, object] | None = None) -> None:
        getattr(log, level)(name, message=message)
        self._superior.post(EventRecord(name=name, level=level, message=message, data=data or {}))

    def _tell_event(self, event: EventRecord) -> None:
        self._event(event.name, event.message, level=event.level, data=event.data)


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


def _unusable(reason: str) -> Finished:
    """Say that a run can't be trained as it is configured."""
    return Finished(outcome="failed", reason=StopReason.INVALID_CONFIG, detail=reason)
