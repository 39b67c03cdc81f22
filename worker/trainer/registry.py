"""The registry of behaviors: each that is announced, or needs no simulator, gets its learner or is refused."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from ludus.collector.arena import Arena
from ludus.collector.commands import PolicySpec
from ludus.collector.spec_checks import UnsupportedSpec
from ludus.config.behavior import BehaviorConfig, POCAConfig
from ludus.config.hyperparameters import OffPolicyHyperparameters
from ludus.config.problems import join_path
from ludus.config.rewards import GAILConfig
from ludus.config.trainer import DemonstratedConfig, ReinforcementConfig
from ludus.demonstrations import DemonstrationError
from ludus.plugins import PluginError
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import spec_from_message
from worker.experience.state import State
from worker.learning.algorithms.algorithm import Algorithm, Learning
from worker.learning.build import (
    Demonstrations,
    build_algorithm,
    build_demonstrated,
    choose_collector_device,
    choose_device,
    count_gpus,
)
from worker.onnx.graph import acting_graph
from worker.selfplay.ghost import Ghost
from worker.trainer.attempt import Attempt, Learner
from worker.trainer.checkpoint import behavior_states
from worker.trainer.compilation import BackgroundCompilation
from worker.trainer.demonstrated import DemonstratedLearner
from worker.trainer.environment_parameters import EnvironmentParameters
from worker.trainer.health.monitor import HealthMonitor, whole_lengths
from worker.trainer.initialization import InitializationError, Sources, initialize, resume
from worker.trainer.learner import BehaviorLearner, InferenceLearner, LearnerOptions, Progress, arena_steps
from worker.trainer.messages import Finished, Level
from worker.trainer.ranks import Build, Ranks
from worker.trainer.recorder import Recorder
from worker.trainer.selfplay import SelfPlayCoordinator


class BehaviorRegistry:
    """Builds the learners of one attempt."""

    def __init__(self, attempt: Attempt, parameters: EnvironmentParameters, selfplay: SelfPlayCoordinator) -> None:
        """Raise `DeviceMissing` where the configuration names a device that this worker does not have."""
        settings = attempt.config.torch_settings
        self._attempt = attempt
        self._parameters = parameters
        self._selfplay = selfplay
        self._sources = Sources(attempt.job.checkpoints)
        self._demonstrations = Demonstrations(attempt.job.demonstrations, attempt.job.demonstration_labels)
        self._device = choose_device(settings, count_gpus())
        self._bf16 = settings.bf16 and self._device.type == "cuda"
        self._collector_device = str(choose_collector_device(settings, count_gpus()))
        self._ranks: Ranks | None = None
        self.unusable: Finished | None = None
        """Set when the configuration can't be trained as it is."""

    def register(self, spec: BehaviorSpec) -> None:
        """Give an announced behavior its learner, or refuse it."""
        config = self._attempt.config.behavior(spec.behavior)
        if config is None:
            names = ", ".join(sorted(self._attempt.config.behaviors))
            reason = f"the run's configuration has no behavior {spec.behavior!r}, only: {names}"
            self._attempt.refuse(spec, CloseCode.BEHAVIOR_NOT_CONFIGURED, reason)
            return
        try:
            if isinstance(config, DemonstratedConfig):
                learner = self._attempt.learners.get(spec.behavior) or self._begin_demonstrated(spec.behavior, config)
                assert isinstance(learner, DemonstratedLearner)
                learner.register(spec, self._collector_device)
            else:
                self._begin_learning(config, spec)
        except UnsupportedSpec as error:
            self._attempt.refuse(spec, CloseCode.BAD_SPEC, str(error))
        except (DemonstrationError, InitializationError, PluginError) as error:
            reason = self._sentence(spec.behavior, error)
            self._attempt.refuse(spec, CloseCode.BAD_SPEC, reason)
            if spec.behavior not in self._attempt.learners:
                self.unusable = Finished.invalid_config(reason)

    def register_finished(self) -> None:
        """Give the behaviors that nobody has announced their learners, for the last checkpoint: it has all models."""
        for name, state in behavior_states(self._attempt.restored).items():
            if self._attempt.config.behavior(name) is not None:
                self.register(spec_from_message(pb.BehaviorSpec.FromString(bytes.fromhex(state["spec"]))))

    def _begin_learning(self, config: ReinforcementConfig, spec: BehaviorSpec) -> None:
        """Build the learner of a behavior that learns from simulators, and start it."""
        attempt, is_inference = self._attempt, self._attempt.is_inference
        algorithm = build_algorithm(config, spec, self._device, attempt.job.seed, self._demonstrations)
        progress = Progress()
        saved = attempt.restored.get(spec.behavior)
        if saved is None:
            self._initialize(algorithm, config, spec)
        else:
            resume(algorithm, spec, saved["algorithm"])
            progress = Progress(**saved["progress"])
            if isinstance(config.hyperparameters, OffPolicyHyperparameters) and not is_inference:
                saves = config.hyperparameters.save_replay_buffer
                self._report_replay(spec.behavior, saved["algorithm"]["replay"], saves=saves)
            del attempt.restored[spec.behavior]
        steps = arena_steps(config, attempt.ranks * algorithm.round_steps())
        arena = Arena.create(spec, steps, memory_size=algorithm.actor.memory_size)
        extrinsic = config.reward_signals.extrinsic
        recorder = Recorder(
            spec.behavior,
            config.summary_freq,
            attempt.supervisor.post,
            progress.step,
            None if extrinsic is None or isinstance(config, POCAConfig) else extrinsic.strength,  # POCA measures it
            groups=isinstance(config, POCAConfig),
            state_metrics=lambda: self._parameters.metrics | self._selfplay.ghosts.metrics(spec.behavior),
        )
        in_selfplay = config.self_play is not None and not is_inference
        if in_selfplay:
            self._begin_self_play(config, algorithm, recorder, progress.step, saved)
        policy = PolicySpec(
            network_settings=config.network_settings,
            weights_size=algorithm.flat_weights().size,
            time_horizon=config.time_horizon,
            head=algorithm.actor.layout.head,
            pink_noise=self._is_pink(config, spec),
            device=self._collector_device,
            graph=acting_graph(algorithm.actor),
            self_play=in_selfplay,
        )
        if attempt.ranks > 1:
            self._build_in_ranks(algorithm, config, arena)
        attempt.pool.admit(spec, policy, arena)
        learner: BehaviorLearner | InferenceLearner
        if is_inference:
            learner = InferenceLearner(config, spec, algorithm, recorder, attempt.pool, progress.step)
        else:
            learner = BehaviorLearner(
                config,
                spec,
                algorithm,
                arena,
                recorder,
                attempt.pool,
                progress,
                LearnerOptions(
                    bf16=self._bf16,
                    compilation=self._compilation(algorithm, config, spec),
                    team=self._selfplay.ghosts if in_selfplay else None,
                    health=self._health_monitor(config, spec, progress.step, saved),
                    fresh=self._fresh(config, spec) if in_selfplay else None,
                    ranks=self._ranks,
                ),
            )
            goes_on = saved is not None and not config.threaded and attempt.ranks == 1
            collection = saved.get("collection") if saved is not None and goes_on else None
            if collection is not None:
                recorder.restore(collection["recorder"])
                learner.restore(collection)
        attempt.learners[spec.behavior] = learner
        learner.start()
        self._report_registered(learner)

    def _health_monitor(
        self, config: ReinforcementConfig, spec: BehaviorSpec, step: int, saved: State | None
    ) -> HealthMonitor:
        """Return the monitor of a behavior; it has seen the demonstrations of GAIL."""
        has_lessons = any(len(lessons) > 1 for lessons in self._attempt.config.lessons().values())
        monitor = HealthMonitor(config, spec, step, has_lessons=has_lessons)
        if saved is not None and "played" in saved.get("health", {}):  # older checkpoints have none
            monitor.load_state_dict(saved["health"])
        for _, signal in config.reward_signals.active():
            if isinstance(signal, GAILConfig):
                for demonstration in self._demonstrations.of(signal):
                    monitor.demonstrated(whole_lengths(demonstration))
        return monitor

    def _begin_self_play(
        self,
        config: ReinforcementConfig,
        algorithm: Algorithm,
        recorder: Recorder,
        step: int,
        saved: State | None,
    ) -> None:
        """Create the opponents of a behavior, or restore them. Raise `InitializationError` for one that can't be."""
        assert config.self_play is not None
        behavior = recorder.behavior
        ghost = Ghost(behavior, config.self_play, self._attempt.job.seed, step, algorithm.flat_weights, recorder)
        ghost.done = step >= config.max_steps
        restored = None if saved is None else saved.get("self_play")
        if restored is None:
            ghost.begin()
        else:
            ghost.load_state_dict(restored["ghost"])
        ghost.add_external(self._sources, algorithm.actor, self._section(behavior))
        self._selfplay.ghosts.join(ghost, restored)
        self._selfplay.catch_up(ghost, algorithm.actor)

    def _fresh(self, config: ReinforcementConfig, spec: BehaviorSpec) -> Callable[[int], State] | None:
        """Return what gives an exploiter the state of a new algorithm, of another seed after each reset."""
        if config.self_play is None or config.self_play.exploiter is None:
            return None

        def fresh(resets: int) -> State:
            seed = int(np.random.SeedSequence([self._attempt.job.seed, resets]).generate_state(1)[0])
            algorithm = build_algorithm(config, spec, self._device, seed, self._demonstrations)
            self._initialize(algorithm, config, spec)
            return algorithm.state_dict()

        return fresh

    def _is_pink(self, config: ReinforcementConfig, spec: BehaviorSpec) -> bool:
        """Whether the behavior explores with pink noise; report where it has no effect."""
        if getattr(config.hyperparameters, "exploration_noise", "white") != "pink":  # a key of some trainers
            return False
        if not spec.actions.continuous_size:
            key = f"{self._section(spec.behavior)}.hyperparameters.exploration_noise"
            self._attempt.report(
                "exploration_noise_not_used",
                f"{key}: pink has no effect, since {spec.behavior} has no continuous actions; remove it",
                level="warning",
                behavior=spec.behavior,
            )
        return spec.actions.continuous_size > 0

    def _report_replay(self, behavior: str, saved: State | None, *, saves: bool) -> None:
        """Report whether a resumed behavior has the replay buffer that it was learning from; in ML-Agents' words."""
        if saved is not None and saves:
            count = len(saved["steps"][0])
            message = f"{behavior}: Replay buffer loaded; it has {count:,} experiences"
            self._attempt.report("replay_buffer_loaded", message, behavior=behavior, experiences=count)
            return
        key = f"{self._section(behavior)}.hyperparameters.save_replay_buffer"
        why = "The checkpoint holds none" if saves or saved is None else f"{key} is false"
        message = (
            f"{behavior}: Replay buffer was unable to load, starting from scratch. {why}: learning waits until the "
            f"new buffer holds a batch, and knows nothing from before. With {key}: true checkpoints hold it"
        )
        self._attempt.report("replay_buffer_not_loaded", message, level="warning", behavior=behavior)

    def report_unused(self) -> None:
        """Report what was asked for and has no effect: bfloat16, and ranks for which there are no GPUs."""
        processes, ranks = self._attempt.config.torch_settings.processes, self._attempt.ranks
        if self._device.type == "cuda" and processes > ranks:
            message = (
                f"torch_settings.processes is {processes}, but this worker has GPUs for {ranks} from {self._device} "
                f"on: {ranks} learn, each update from fewer steps"
            )
            self._attempt.report("processes_not_used", message, level="warning")
        if self._attempt.config.torch_settings.bf16 and not self._bf16:
            message = f"torch_settings.bf16 has no effect on {self._device.type}: pictures are encoded in float32"
            self._attempt.report("bf16_not_used", message, level="warning")

    def _compilation(
        self, algorithm: Algorithm, config: ReinforcementConfig, spec: BehaviorSpec
    ) -> BackgroundCompilation | None:
        """Return the compiler of a behavior's updates, if it is asked for."""
        if not self._attempt.config.torch_settings.compile:
            return None

        def report(name: str, message: str) -> None:
            level: Level = "info" if name == "compiled" else "warning"
            self._attempt.report(name, f"{spec.behavior}: {message}", level=level, behavior=spec.behavior)

        seed = self._attempt.job.seed
        twin = partial(build_algorithm, config, spec, self._device, seed, self._demonstrations)
        return BackgroundCompilation(algorithm, twin, report)

    def _build_in_ranks(self, algorithm: Algorithm, config: ReinforcementConfig, arena: Arena) -> None:
        """Build an algorithm like this one in the other ranks; start them at the first call. Raise `RankLost`."""
        attempt, job, settings = self._attempt, self._attempt.job, self._attempt.config.torch_settings
        if self._ranks is None:
            scratch = Path(job.scratch)
            scratch.mkdir(parents=True, exist_ok=True)
            timeout = settings.rank_timeout_seconds
            self._ranks = Ranks(attempt.ranks, self._device, scratch, timeout, bf16=self._bf16)
        state = algorithm.state_dict()
        build = Build(config, arena.layout, job.seed, job.demonstrations, state, settings.compile)
        self._ranks.build(build, arena)

    def check_ranks(self) -> None:
        """Raise `RankLost` if a rank has ended or is silent."""
        if self._ranks is not None:
            self._ranks.check()

    def begin_demonstrated(self) -> None:
        """Make the learners that need no simulator."""
        for name, config in self._attempt.config.behaviors.items():
            if isinstance(config, DemonstratedConfig):
                try:
                    self._begin_demonstrated(name, config)
                except (DemonstrationError, InitializationError, UnsupportedSpec) as error:
                    reason = self._sentence(name, error)
                    self._attempt.report("behavior_refused", reason, level="error", behavior=name)
                    self.unusable = Finished.invalid_config(reason)

    def _begin_demonstrated(self, name: str, config: DemonstratedConfig) -> DemonstratedLearner:
        """Make the learner of a behavior that learns from demonstrations alone."""
        attempt = self._attempt
        algorithm, spec, demonstrations = build_demonstrated(
            config, name, self._device, attempt.job.seed, self._demonstrations
        )
        saved = attempt.restored.get(name)
        step = 0
        if saved is None:
            self._initialize(algorithm, config, spec)
        else:
            resume(algorithm, spec, saved["algorithm"])
            step = saved["progress"]["step"]
            del attempt.restored[name]

        post, metrics = attempt.supervisor.post, lambda: self._parameters.metrics
        learner = DemonstratedLearner(
            spec,
            algorithm,
            demonstrations,
            Recorder(name, config.summary_freq, post, step, strength=None, state_metrics=metrics),
            attempt.pool,
            simulators=attempt.config.simulators,
            is_played=lambda: attempt.simulators.is_played(name),
            report=partial(attempt.report, level="warning", behavior=name),
        )
        self._attempt.learners[name] = learner
        self._report_registered(learner)
        return learner

    def _initialize(self, algorithm: Learning, config: BehaviorConfig, spec: BehaviorSpec) -> None:
        """Give a new algorithm the networks that its configuration names, if any. Raise `InitializationError`."""
        source = self._sources.of(config)
        if source is None:
            return
        name, path = source
        began = initialize(algorithm, config, spec, name, path)
        new = f"; new are {', '.join(began.new)}" if began.new else ""
        self._attempt.report(
            "behavior_initialized",
            f"Behavior {spec.behavior} begins with checkpoint {name}, which had learned for {began.step} steps{new}",
            behavior=spec.behavior,
            checkpoint=name,
            origin=began.origin,
            step=began.step,
            fresh=list(began.new),
        )

    def _report_registered(self, learner: Learner) -> None:
        does = "plays without learning" if self._attempt.is_inference else "trains"
        self._attempt.report(
            "behavior_admitted",
            f"Behavior {learner.name} {does} from step {learner.learned}",
            behavior=learner.name,
            name=learner.spec.name,
        )

    def _sentence(self, behavior: str, error: Exception) -> str:
        """Return the error with its place: of demonstrations the whole path of their key."""
        return f"{self._section(behavior)}.{error}" if isinstance(error, DemonstrationError) else str(error)

    def _section(self, behavior: str) -> str:
        """Return the path of the section that a behavior is trained by."""
        return join_path(["behaviors", behavior]) if behavior in self._attempt.config.behaviors else "default_settings"

    def close(self) -> None:
        """End the other ranks."""
        if self._ranks is not None:
            self._ranks.close()
