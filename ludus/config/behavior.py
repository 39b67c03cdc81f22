"""The configuration of a behavior: trainer, hyperparameters, network, rewards.

The keys and defaults are ML-Agents' 1.1.0.

The set of trainers is a union discriminated by `trainer_type`, the set of reward signals the fields of `RewardSignals`;
a new variant is a class here, an arm in `worker.learning.build` and its maths. The sections are in the modules beside
this one.

Differences from ML-Agents, all of them refusals: values that it takes and that make no sense (a batch larger than its
buffer never learns, `summary_freq: 0` divides by zero, a negative learning rate climbs down) are refused here.
"""

from typing import Annotated, ClassVar, Final, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, StringConstraints, ValidationInfo, field_validator

from ludus.config.divergence import DivergenceSettings
from ludus.config.hyperparameters import (
    MAX_STEPS,
    CloneHyperparameters,
    DQNHyperparameters,
    Hyperparameters,
    POCAHyperparameters,
    PPOHyperparameters,
    SACHyperparameters,
)
from ludus.config.imitation import BehavioralCloningConfig, FromDemonstrations
from ludus.config.network import NetworkSettings
from ludus.config.rewards import ExtrinsicConfig, RewardSignals
from ludus.config.selfplay import SelfPlaySettings
from ludus.config.values import CheckpointId, Flag, Own, Section, Steps, Text, Whole, config_error

ATTENTION_HEADS = 4
"""Of POCA's critic (`worker.learning.networks.attention`), which share its hidden units."""


class TrainerConfig(Section):
    """Parent of all trainers: what each of them has."""

    head: ClassVar[str] = "gaussian"
    """How the columns of the policy's last layer become actions: a key of `ludus.collector.heads.HEADS`."""
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


class ReinforcementConfig(TrainerConfig):
    """Parent of the trainers that learn from rewards by playing (`LearningConfig`)."""

    reward_signals: RewardSignals = RewardSignals(extrinsic=ExtrinsicConfig())
    """The reward signals. If given, only the listed signals exist."""
    behavioral_cloning: BehavioralCloningConfig | None = None
    """Imitation of demonstrations beside the trainer's own objective; null = none."""
    time_horizon: Whole = Field(default=64, ge=1, le=1_000_000)
    """Maximum number of steps of one agent in a segment, before it bootstraps: longer is less biased and noisier; it
    should cover events that depend on each other. Typical: 32 to 2,048. Under `sac` it does not change the result (see
    "PPO, SAC or DQN?").
    """
    threaded: Flag = False
    """Collect experience while learning, at most one buffer ahead. False = lockstep, reproducible."""
    divergence: Own[DivergenceSettings] = DivergenceSettings()
    """When to warn, or to end the run, because the policy has stopped learning."""
    self_play: SelfPlaySettings | None = None
    """Teams learn in turns, against earlier versions of the policy; null = all at once."""


class PPOConfig(ReinforcementConfig):
    """One behavior, trained by PPO."""

    trainer_type: Literal["ppo"] = "ppo"
    hyperparameters: PPOHyperparameters = PPOHyperparameters()


class SACConfig(ReinforcementConfig):
    """One behavior, trained by SAC."""

    head: ClassVar[str] = "squashed"
    trainer_type: Literal["sac"] = "sac"
    hyperparameters: SACHyperparameters = SACHyperparameters()


class POCAConfig(ReinforcementConfig):
    """One behavior whose agents act in groups, trained by POCA."""

    trainer_type: Literal["poca"] = "poca"
    hyperparameters: POCAHyperparameters = POCAHyperparameters()

    @field_validator("network_settings")
    @classmethod
    def _heads_fit(cls, network_settings: NetworkSettings) -> NetworkSettings:
        units = network_settings.hidden_units
        if not units % ATTENTION_HEADS:
            return network_settings
        near = sorted(
            {max(units // ATTENTION_HEADS, 1) * ATTENTION_HEADS, -(-units // ATTENTION_HEADS) * ATTENTION_HEADS}
        )
        raise config_error(
            "contradiction",
            f"network_settings.hidden_units ({units}) is no multiple of the {ATTENTION_HEADS} attention heads of "
            f"trainer_type poca's critic; take {' or '.join(map(str, near))}",
            at="network_settings.hidden_units",
        )


class DQNConfig(ReinforcementConfig):
    """One behavior with discrete actions, trained by DQN (Ludus' own: ML-Agents has it as an example of a plug-in)."""

    head: ClassVar[str] = "epsilon_greedy"
    trainer_type: Own[Literal["dqn"]] = "dqn"
    hyperparameters: DQNHyperparameters = DQNHyperparameters()

    @field_validator("network_settings")
    @classmethod
    def _no_memory(cls, network_settings: NetworkSettings) -> NetworkSettings:
        if network_settings.memory is None:
            return network_settings
        raise config_error(
            "contradiction",
            "trainer_type dqn has no memory; remove network_settings.memory, or take trainer_type sac or ppo",
            at="network_settings.memory",
        )

    @field_validator("behavioral_cloning")
    @classmethod
    def _no_cloning(cls, behavioral_cloning: BehavioralCloningConfig | None) -> BehavioralCloningConfig | None:
        if behavioral_cloning is None:
            return None
        raise config_error(
            "contradiction",
            "trainer_type dqn learns values of choices, not their probabilities, which behavioral_cloning imitates; "
            "reward what was demonstrated by reward_signals.gail, or take trainer_type sac or ppo",
        )


class CloneConfig(FromDemonstrations, TrainerConfig):
    """One behavior that imitates demonstrations alone (Ludus' own): simulators are not needed, but evaluate it."""

    trainer_type: Own[Literal["clone"]] = "clone"
    hyperparameters: CloneHyperparameters = CloneHyperparameters()
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


LearningConfig: TypeAlias = PPOConfig | SACConfig | POCAConfig | DQNConfig
"""The trainers that learn from a simulator."""
TRAINERS: Final[dict[str, type[TrainerConfig]]] = {
    trainer.model_fields["trainer_type"].default: trainer for trainer in (*get_args(LearningConfig), CloneConfig)
}
"""All trainers by `trainer_type`."""


def _named(value: object) -> object:
    """Give a section its trainer where none is named: PPO, as in ML-Agents."""
    if isinstance(value, dict) and "trainer_type" not in value:
        return {"trainer_type": "ppo", **value}
    return value


BehaviorConfig: TypeAlias = Annotated[
    Annotated[LearningConfig | CloneConfig, Field(discriminator="trainer_type")], BeforeValidator(_named)
]
"""The union of all trainers' sections, discriminated by `trainer_type`."""
