"""The registry of behaviors: each that is announced, or needs no simulator, gets its learner or is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ludus.collector.arena import Arena
from ludus.collector.layout import UnsupportedSpec
from ludus.demonstrations import DemonstrationError
from ludus.protocol.codes import CloseCode
from ludus.protocol.spec import BehaviorSpec
from server.config.config import BehaviorConfig, CloneConfig, GAILConfig, POCAConfig, RunConfig, SACConfig
from server.config.problems import join_path
from server.runs.states import StopReason
from worker.collectors.pool import CollectorPool
from worker.collectors.programs import PolicyProgram
from worker.experience.rollout import Rollout
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.build import (
    Demonstrations,
    LearningConfig,
    build_algorithm,
    build_clone,
    choose_collector_device,
    count_gpus,
)
from worker.selfplay.ghost import Ghost
from worker.trainer.amendments import Amendments
from worker.trainer.clone import CloneLearner
from worker.trainer.compilation import BackgroundCompilation
from worker.trainer.contest import Contest
from worker.trainer.divergence import Health, whole_lengths
from worker.trainer.inference import InferenceLearner
from worker.trainer.initialization import InitializationError, Sources, Stateful, initialize, resume
from worker.trainer.learner import BehaviorLearner, Learner, arena_steps
from worker.trainer.learner import Progress as LearnerProgress
from worker.trainer.lessons import Lessons
from worker.trainer.link import Finished, Job, Level
from worker.trainer.parallel import Build, Group
from worker.trainer.precision import bf16_pictures
from worker.trainer.recorder import Recorder
from worker.trainer.superior import Events, Superior


class Admission:
    """Makes the learners of one attempt."""

    def __init__(
        self,
        job: Job,
        amendments: Amendments,
        superior: Superior,
        pool: CollectorPool,
        device: torch.device,
        sources: Sources,
        learners: dict[str, Learner],
        waiting: dict[str, Any],
        lessons: Lessons,
        contest: Contest,
        is_played: Callable[[str], bool],
    ) -> None:
        """`learners` is filled by behavior. `waiting` are the states of a checkpoint, until their behaviors come.

        `is_played` says whether a simulator plays a behavior.
        """
        self._job = job
        self._amendments = amendments
        config = amendments.config
        self._superior = superior
        self._events = Events(superior)
        self._pool = pool
        self._sources = sources
        self.learners = learners
        self._waiting = waiting
        self._lessons = lessons
        self._contest = contest
        self._is_played = is_played
        self._demonstrations = Demonstrations(job.demonstrations)
        self._plays = config.checkpoint_settings.inference
        """Whether nothing is learnt."""
        self._device = device
        self._bf16 = config.torch_settings.bf16 and self._device.type == "cuda"
        self._collector_device = str(choose_collector_device(config.torch_settings, count_gpus()))
        self._group: Group | None = None
        self.unusable: Finished | None = None
        """Set when the configuration can't be trained as it is."""

    @property
    def _config(self) -> RunConfig:
        """The present configuration."""
        return self._amendments.config

    def admit(self, spec: BehaviorSpec) -> None:
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
                learner = self.learners.get(spec.behavior) or self._begin_clone(spec.behavior, config)
                assert isinstance(learner, CloneLearner)
                learner.admit(spec)
            else:
                self._begin_learning(config, spec)
        except UnsupportedSpec as error:
            self._refuse(spec, CloseCode.BAD_SPEC, str(error))
        except (DemonstrationError, InitializationError) as error:
            reason = self._mistake(spec.behavior, error)
            self._refuse(spec, CloseCode.BAD_SPEC, reason)
            if spec.behavior not in self.learners:
                self.unusable = _unusable(reason)

    def _begin_learning(self, config: LearningConfig, spec: BehaviorSpec) -> None:
        """Make the learner of a behavior that learns from simulators."""
        algorithm = build_algorithm(config, spec, self._device, self._job.seed, self._demonstrations)
        if self._config.torch_settings.processes > 1 and not self._plays:
            algorithm = self._shared(algorithm, config, spec)
        progress = LearnerProgress()
        saved = self._waiting.get(spec.behavior)
        if saved is not None:
            resume(algorithm, spec, saved["algorithm"])
            progress = LearnerProgress(**saved["progress"])
            if isinstance(config, SACConfig) and not self._plays:
                self._tell_of_replay(config, spec.behavior, saved=saved["algorithm"]["replay"] is not None)
            del self._waiting[spec.behavior]
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
            standing=lambda: self._lessons.metrics | self._contest.ghosts.metrics(spec.behavior),
        )
        if config.self_play is not None and not self._plays:
            self._begin_self_play(config, spec.behavior, algorithm, recorder, progress.step, saved)
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
            collected = None if saved is None or config.threaded else saved.get("collection")
            if collected is not None:
                recorder.restore(collected["recorder"])
            health = self._health(config, spec, saved)
            learner = self._teacher(config, spec, algorithm, arena, recorder, progress, collected, health)
        self.learners[spec.behavior] = learner
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
        collected: dict[str, Any] | None,
        health: Health,
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
            turns=None if config.self_play is None else self._contest.ghosts,
            collected=collected,
            health=health,
        )

    def _health(self, config: LearningConfig, spec: BehaviorSpec, saved: dict[str, Any] | None) -> Health:
        """Return what watches whether a behavior still learns; it has seen the demonstrations of GAIL."""
        health = Health(spec, lambda name, message, data: self._events.tell(name, message, level="warning", data=data))
        if saved is not None and "health" in saved:  # older checkpoints have none
            health.load_state_dict(saved["health"])
        for _, signal in config.reward_signals.active():
            if isinstance(signal, GAILConfig):
                for demonstration in self._demonstrations.of(signal):
                    health.episodes_ended(config, whole_lengths(demonstration))
        return health

    def _begin_self_play(
        self,
        config: LearningConfig,
        behavior: str,
        algorithm: Algorithm,
        recorder: Recorder,
        step: int,
        saved: dict[str, Any] | None,
    ) -> None:
        """Make the opponents of a behavior, or bring them back. Raise `InitializationError` for one that can't be."""
        assert config.self_play is not None
        ghost = Ghost(behavior, config.self_play, self._job.seed, step, algorithm.flat_weights, recorder)
        ghost.done = step >= config.max_steps
        self._contest.ghosts.join(
            ghost,
            None if saved is None else saved.get("self_play"),
            invite=lambda: ghost.invite(self._sources, algorithm.actor, self._section(behavior)),
        )

    def _is_pink(self, config: LearningConfig, spec: BehaviorSpec) -> bool:
        """Whether the behavior explores with pink noise; tell where it was asked for in vain."""
        if not isinstance(config, SACConfig) or config.hyperparameters.exploration_noise != "pink":
            return False
        if not spec.actions.continuous_size:
            key = f"{self._section(spec.behavior)}.hyperparameters.exploration_noise"
            self._events.tell(
                "exploration_noise_not_used",
                f"{key}: pink has no effect, since {spec.behavior} has no continuous actions; remove it",
                level="warning",
                data={"behavior": spec.behavior},
            )
        return spec.actions.continuous_size > 0

    def _tell_of_replay(self, config: SACConfig, behavior: str, *, saved: bool) -> None:
        """Tell, with ML-Agents' words, that a resumed SAC has lost what it was learning from."""
        wanted = config.hyperparameters.save_replay_buffer
        if saved and wanted:
            return
        key = f"{self._section(behavior)}.hyperparameters.save_replay_buffer"
        why = "The checkpoint holds none" if wanted or not saved else f"{key} is false"
        message = (
            f"{behavior}: Replay buffer was unable to load, starting from scratch. {why}: learning waits until the "
            f"new buffer holds a batch, and knows nothing from before. With {key}: true checkpoints hold it"
        )
        self._events.tell("replay_buffer_not_loaded", message, level="warning", data={"behavior": behavior})

    def tell_of_bf16(self) -> None:
        """Tell if bfloat16 was asked for in vain."""
        if self._config.torch_settings.bf16 and not self._bf16:
            message = f"torch_settings.bf16 has no effect on {self._device.type}: pictures are encoded in float32"
            self._events.tell("bf16_not_used", message, level="warning")

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
            self._events.tell(name, f"{spec.behavior}: {message}", level=level, data={"behavior": spec.behavior})

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
            self._events.tell("processes_not_used", message, level="warning")
            return algorithm
        if self._group is None:
            scratch = Path(self._job.scratch)
            scratch.mkdir(parents=True, exist_ok=True)
            self._group = Group(processes, self._device, scratch, bf16=self._bf16)
        return self._group.share(algorithm, Build(config, spec, self._job.seed, self._job.demonstrations))

    def begin_clones(self) -> None:
        """Make the learners that need no simulator."""
        for name, config in self._config.behaviors.items():
            if isinstance(config, CloneConfig):
                try:
                    self._begin_clone(name, config)
                except (DemonstrationError, InitializationError, UnsupportedSpec) as error:
                    reason = self._mistake(name, error)
                    self._events.tell("behavior_refused", reason, level="error", data={"behavior": name})
                    self.unusable = _unusable(reason)

    def _begin_clone(self, name: str, config: CloneConfig) -> CloneLearner:
        """Make the learner of a behavior that only imitates."""
        algorithm, spec, shown = build_clone(config, name, self._device, self._job.seed, self._demonstrations)
        saved = self._waiting.get(name)
        if saved is None:
            self._initialize(algorithm, config, spec)
            step = 0
        else:
            resume(algorithm, spec, saved["algorithm"])
            step = saved["progress"]["step"]
            del self._waiting[name]
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
            simulators=self._config.simulators,
            is_played=lambda: self._is_played(name),
            tell=lambda event, message: self._events.tell(event, message, level="warning", data={"behavior": name}),
            collector_device=self._collector_device,
        )
        self.learners[name] = learner
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
        self._events.tell(
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
        self._events.tell(
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
        self._events.tell("behavior_refused", reason, level="error", data={"behavior": spec.name, "code": code})

    def close(self) -> None:
        """End the processes that share updates."""
        if self._group is not None:
            self._group.close()


def _unusable(reason: str) -> Finished:
    """Say that a run can't be trained as it is configured."""
    return Finished(outcome="failed", reason=StopReason.INVALID_CONFIG, detail=reason)
