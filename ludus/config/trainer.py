"""The parents of trainers' configurations. The keys and defaults are ML-Agents' 1.1.0."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from ludus.config.divergence import DivergenceSettings
from ludus.config.hyperparameters import (
    MAX_STEPS,
    Hyperparameters,
    OffPolicyHyperparameters,
    OnPolicyHyperparameters,
)
from ludus.config.imitation import BehavioralCloningConfig, FromDemonstrations
from ludus.config.network import NetworkSettings
from ludus.config.rewards import ExtrinsicConfig, RewardSignals
from ludus.config.selfplay import SelfPlaySettings
from ludus.config.values import CheckpointId, Flag, Own, Section, Steps, Text, Whole, config_error

SECTION: Final = frozenset({"max_steps", "checkpoint_interval", "keep_checkpoints"})
"""The keys of every trainer that may change while a run goes on."""
GAMMAS: Final = {"values": [0.9, 0.95, 0.98, 0.99, 0.995, 0.999]}
"""Discount factors that are worth a try: an episode's length decides which."""
RATE: Final = frozenset({"learning_rate", "learning_rate_schedule"})
"""Hyperparameters of every trainer that may."""
_LIMITS: Final = frozenset(f"divergence.{key}" for key in DivergenceSettings.model_fields)


def amendable(*hyperparameters: str) -> frozenset[str]:
    """Return the keys of a trainer that learns from rewards that may change in a live run, with `hyperparameters`."""
    return SECTION | _LIMITS | {f"hyperparameters.{key}" for key in RATE | {*hyperparameters}}


class TrainerConfig(Section):
    """Parent of all trainers: what each of them has."""

    head: ClassVar[str] = "gaussian"
    """How the columns of the policy's last layer become actions: a key of `ludus.collector.heads.HEADS`, or a plug-in.
    """
    implementation: ClassVar[str] = ""
    """Of a plug-in: `module:class` of the `worker.learning.algorithms.algorithm.Algorithm` that workers build, as
    `Trainer(config, spec, device, seed, signals, expert)`.
    """
    asymmetric: ClassVar[bool] = False
    """Whether the critic takes `network_settings.privileged_observations`, which the policy does not see."""
    amendable: ClassVar[frozenset[str]] = SECTION
    """The keys that may change while a run goes on: numbers that are read again for every update."""
    tuning: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "hyperparameters.learning_rate": {"min": 1e-5, "max": 3e-3, "scale": "log"}
    }
    """The keys that an experiment varies where it names none, with the parameters of an experiment: those that decide
    most often, in the ranges of their descriptions.
    """
    trainer_type: str
    """The algorithm."""
    hyperparameters: Hyperparameters
    """The algorithm's numbers."""
    network_settings: NetworkSettings = NetworkSettings()
    """The policy's network."""
    max_steps: Steps = Field(default=500_000, ge=1, le=MAX_STEPS)
    """Agent steps after which training of this behavior ends; linear schedules reach their floor there. A fraction is
    cut. Typical: 500,000 to 10,000,000.
    """
    summary_freq: Whole = Field(default=50_000, ge=1, le=MAX_STEPS)
    """Agent steps between points of the metrics."""
    keep_checkpoints: Whole = Field(default=5, ge=1, le=100_000)
    """Number of newest periodic checkpoints to keep; a large number keeps all."""
    even_checkpoints: Flag = False
    """Spread `keep_checkpoints` checkpoints evenly over `max_steps`."""
    checkpoint_interval: Whole = Field(default=500_000, ge=1, le=MAX_STEPS)
    """Agent steps between checkpoints; `max_steps` // `keep_checkpoints` if `even_checkpoints`."""
    init_path: Annotated[Text, StringConstraints(min_length=1, max_length=4096)] | None = None
    """As `initialize_from`, but a path on the disk of a trainer that runs alone (`python -m worker.trainer CONFIG`): a
    `checkpoint.pt` of ML-Agents, or the folder of a checkpoint. A server refuses it: upload the file, and name it in
    `initialize_from`.
    """
    initialize_from: Own[CheckpointId | None] = None
    """Begin, at step 0, with the networks and optimizers of this checkpoint: one of any run, or one of ML-Agents that
    was uploaded (`ludus checkpoint upload FILE`). They must have the configured form. Of a run's checkpoint the
    behavior of the same name is used, or the only one.
    """

    @field_validator("initialize_from")
    @classmethod
    def _one_source(cls, initialize_from: str | None, info: ValidationInfo) -> str | None:
        if initialize_from is not None and info.data.get("init_path") is not None:
            raise config_error(
                "contradiction",
                "init_path and initialize_from both say what to begin with; keep one",
                at="initialize_from",
            )
        return initialize_from

    @field_validator("network_settings")
    @classmethod
    def _sequences_fit(cls, network_settings: NetworkSettings, info: ValidationInfo) -> NetworkSettings:
        memory, hyperparameters = network_settings.memory, info.data.get("hyperparameters")
        if memory is None or hyperparameters is None or memory.sequence_length <= hyperparameters.batch_size:
            return network_settings
        raise config_error(
            "contradiction",
            f"network_settings.memory.sequence_length ({memory.sequence_length}) is larger than "
            f"hyperparameters.batch_size ({hyperparameters.batch_size}), so that no sequence fits into a batch; lower "
            "sequence_length or raise batch_size (best to a multiple of sequence_length)",
            at="network_settings.memory.sequence_length",
        )

    @field_validator("network_settings")
    @classmethod
    def _critic_sees_more(cls, network_settings: NetworkSettings, info: ValidationInfo) -> NetworkSettings:
        if not network_settings.privileged_observations:
            return network_settings
        trainer, at = cls.model_fields["trainer_type"].default, "network_settings.privileged_observations"
        if not cls.asymmetric:
            raise config_error(
                "contradiction",
                f"trainer_type {trainer} has no critic that sees more than the policy; remove "
                "network_settings.privileged_observations, or take trainer_type ppo or poca",
                at=at,
            )
        if getattr(info.data.get("hyperparameters"), "shared_critic", False):
            raise config_error(
                "contradiction",
                "with hyperparameters.shared_critic: true policy and critic are one network, and see the same; remove "
                "network_settings.privileged_observations, or set shared_critic to false",
                at=at,
            )
        return network_settings

    @field_validator("checkpoint_interval")
    @classmethod
    def _spread(cls, checkpoint_interval: int, info: ValidationInfo) -> int:
        data = info.data
        if not (data.get("even_checkpoints") and "max_steps" in data and "keep_checkpoints" in data):
            return checkpoint_interval
        max_steps, keep_checkpoints = data["max_steps"], data["keep_checkpoints"]
        if keep_checkpoints > max_steps:
            raise config_error(
                "contradiction",
                f"even_checkpoints spreads keep_checkpoints ({keep_checkpoints}) over max_steps ({max_steps}), which "
                "are fewer; lower keep_checkpoints or set even_checkpoints to false",
                at="keep_checkpoints",
            )
        interval: int = max_steps // keep_checkpoints
        return interval


class DemonstratedConfig(FromDemonstrations, TrainerConfig):
    """Parent of the trainers that learn from demonstrations alone: simulators are not needed, but evaluate them."""

    max_steps: Steps = Field(default=10_000, ge=1, le=MAX_STEPS)
    """Gradient steps after which training ends. All steps of this trainer are gradient steps."""
    summary_freq: Whole = Field(default=100, ge=1, le=MAX_STEPS)
    """Gradient steps between points of the metrics."""
    evaluation_interval: Own[Whole] = Field(default=1000, ge=1, le=MAX_STEPS)
    """Gradient steps between evaluations, in which connected simulators play the policy of that step. Learning waits
    for a simulator (for the first one at most `simulators.startup_grace_seconds`, later `grace_seconds`), and then for
    its episodes (`grace_seconds`).
    """
    evaluation_episodes: Own[Whole] = Field(default=10, ge=0, le=100_000)
    """Episodes per evaluation; 0 = no evaluations."""


class ReinforcementConfig(TrainerConfig):
    """Parent of the trainers that learn from rewards by playing."""

    tuning: ClassVar[Mapping[str, Mapping[str, object]]] = {
        **TrainerConfig.tuning,
        "reward_signals.extrinsic.gamma": GAMMAS,
    }
    reward_signals: RewardSignals = RewardSignals(extrinsic=ExtrinsicConfig())
    """The reward signals. If given, only the listed signals exist."""
    behavioral_cloning: BehavioralCloningConfig | None = None
    """Imitation of demonstrations beside the trainer's own objective; null = none."""
    time_horizon: Whole = Field(default=64, ge=1, le=1_000_000)
    """Maximum number of steps of one agent in a segment, before it bootstraps: longer is less biased and noisier; it
    should cover events that depend on each other. Typical: 32 to 2,048. Under `sac` it does not change the result (see
    "Which trainer?").
    """
    threaded: Flag = False
    """Collect experience while learning, at most one buffer ahead. False = lockstep, reproducible."""
    divergence: Own[DivergenceSettings] = DivergenceSettings()
    """When to warn, or to end the run, because the policy has stopped learning."""
    self_play: SelfPlaySettings | None = None
    """Teams learn in turns, against earlier versions of the policy; null = all at once."""

    @property
    def rounds_ahead(self) -> int | None:
        """How many rounds after the one in which it is answered a step may be learned from; None: any number."""
        hyper = self.hyperparameters
        if not isinstance(hyper, OnPolicyHyperparameters) or hyper.max_policy_lag is None or hyper.late_steps == "drop":
            return None
        return hyper.max_policy_lag - self.threaded

    @field_validator("threaded")
    @classmethod
    def _leaves_steps_to_learn_from(cls, threaded: bool, info: ValidationInfo) -> bool:
        hyper = info.data.get("hyperparameters")
        if not threaded or not isinstance(hyper, OnPolicyHyperparameters):
            return threaded
        if hyper.max_policy_lag == 0:
            raise config_error(
                "contradiction",
                "with threaded: true a round is collected while the one before it is learned from, so that its steps "
                "are a version old, and hyperparameters.max_policy_lag: 0 would drop every second round; set "
                "max_policy_lag to 1 or more, or threaded to false",
                at="hyperparameters.max_policy_lag",
            )
        if hyper.max_policy_lag == 1 and hyper.late_steps == "wait":
            raise config_error(
                "contradiction",
                "with threaded: true steps are a version old in any case, and hyperparameters.late_steps: wait takes "
                "one more; set max_policy_lag to 2 or more, or threaded to false",
                at="hyperparameters.max_policy_lag",
            )
        return threaded


class OffPolicyConfig(ReinforcementConfig):
    """Parent of the trainers that learn from a replay buffer."""

    tuning: ClassVar[Mapping[str, Mapping[str, object]]] = {
        **ReinforcementConfig.tuning,
        "hyperparameters.batch_size": {"values": [32, 64, 128, 256]},
        "hyperparameters.steps_per_update": {"values": [1, 2, 4, 8]},
        "hyperparameters.tau": {"min": 1e-3, "max": 5e-2, "scale": "log"},
    }
    hyperparameters: OffPolicyHyperparameters = OffPolicyHyperparameters()


class MemorylessConfig(TrainerConfig):
    """Parent of the trainers that take no memory."""

    @field_validator("network_settings")
    @classmethod
    def _no_memory(cls, network_settings: NetworkSettings) -> NetworkSettings:
        if network_settings.memory is None:
            return network_settings
        raise config_error(
            "contradiction",
            f"trainer_type {cls.model_fields['trainer_type'].default} has no memory; remove network_settings.memory, "
            "or take trainer_type sac or ppo",
            at="network_settings.memory",
        )
