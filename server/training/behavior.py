"""How one behavior is trained: trainer, hyperparameters, network, rewards. The keys and defaults are ML-Agents' 1.1.0.

The set of trainers is a union discriminated by `trainer_type`, the set of reward signals the fields of `RewardSignals`;
a new variant is a class here, an arm in `worker.build` and its maths.

Differences from ML-Agents, all of them refusals: values that it takes and that make no sense (a batch larger than its
buffer never learns, `summary_freq: 0` divides by zero, a negative learning rate climbs down) are mistakes here.
"""

from typing import Any, Literal, TypeAlias

from pydantic import Field, ValidationInfo, field_validator

from server.training.values import OWN, Flag, Real, Schedule, Section, Steps, Whole, mistake

MAX_STEPS = 10**12
"""Largest number of steps: counters stay exact and within the database's types."""
MAX_BUFFER = 100_000_000
"""Largest number of experiences in a buffer."""


def _learning_rate_schedule(section: dict[str, Any]) -> Any:
    """Return what a schedule that isn't given copies; both default to linear."""
    return section["learning_rate_schedule"]


class PPOHyperparameters(Section):
    """Proximal Policy Optimization (Schulman et al. 2017)."""

    batch_size: Whole = Field(default=1024, ge=1, le=MAX_BUFFER, description="Experiences per gradient step.")
    buffer_size: Whole = Field(
        default=10240,
        ge=1,
        le=MAX_BUFFER,
        description="Experiences per update of the policy: collected, learnt from `num_epoch` times, then dropped. "
        "At least `batch_size`.",
    )
    learning_rate: Real = Field(default=3.0e-4, gt=0, le=1, description="Adam's step size.")
    beta: Real = Field(default=5.0e-3, ge=0, description="Weight of the entropy bonus; 0 = none.")
    epsilon: Real = Field(
        default=0.2, gt=0, description="Clip range: the probability ratio counts within 1 - epsilon to 1 + epsilon."
    )
    lambd: Real = Field(
        default=0.95, ge=0, le=1, description="λ of generalised advantage estimation (Schulman et al. 2016)."
    )
    num_epoch: Whole = Field(default=3, ge=1, le=1000, description="Passes over the buffer per update.")
    shared_critic: Flag = Field(default=False, description="One body for policy and value function.")
    max_grad_norm: Real | None = Field(
        default=None,
        gt=0,
        description="Longer gradients are scaled to this length before each step; null = never, as in ML-Agents.",
        json_schema_extra=OWN,
    )
    clip_value_loss: Flag = Field(
        default=False,
        description="Clip values around those before the update by `epsilon` in the critic's loss. ML-Agents means to, "
        "but its clip never acts (ml-agents#6281).",
        json_schema_extra=OWN,
    )
    learning_rate_schedule: Schedule = Field(
        default="linear", description="How `learning_rate` changes; linear ends at 1e-10."
    )
    beta_schedule: Schedule = Field(
        default_factory=_learning_rate_schedule,
        description="How `beta` changes; linear ends at 1e-5. Not given, it copies `learning_rate_schedule`.",
    )
    epsilon_schedule: Schedule = Field(
        default_factory=_learning_rate_schedule,
        description="How `epsilon` changes; linear ends at 0.1. Not given, it copies `learning_rate_schedule`.",
    )

    @field_validator("buffer_size")
    @classmethod
    def _holds_a_batch(cls, buffer_size: int, info: ValidationInfo) -> int:
        batch_size = info.data.get("batch_size", 0)
        if batch_size > buffer_size:
            raise mistake(
                "contradiction",
                f"batch_size ({batch_size}) is larger than buffer_size ({buffer_size}), so nothing would ever be "
                "learnt; lower batch_size or raise buffer_size (best to a multiple of batch_size)",
                at="batch_size",
            )
        return buffer_size

    @property
    def minibatches_per_epoch(self) -> int:
        """Full minibatches in one pass over a full buffer."""
        return self.buffer_size // self.batch_size


class NetworkSettings(Section):
    """The policy's network; the value function has one of the same form."""

    normalize: Flag = Field(
        default=False, description="Normalise vector observations by their running mean and variance."
    )
    hidden_units: Whole = Field(default=128, ge=1, le=16384, description="Width of each hidden layer.")
    num_layers: Whole = Field(default=2, ge=1, le=64, description="Number of hidden layers after the encoders.")
    activation: Literal["swish", "tanh", "relu"] = Field(
        default="swish",
        description="Nonlinearity of the hidden layers; ML-Agents always takes swish. tanh often learns control from "
        "few numbers in fewer steps (CartPole-v1: half as many).",
        json_schema_extra=OWN,
    )
    deterministic: Flag = Field(
        default=False, description="Act with the most probable action instead of a sample, during training too."
    )


class ExtrinsicConfig(Section):
    """The rewards that the game gives."""

    gamma: Real = Field(default=0.99, ge=0, le=1, description="Discount factor per decision.")
    strength: Real = Field(default=1.0, description="Factor on this signal's rewards.")


class RewardSignals(Section):
    """The sources of reward, each with its own discount factor and value head."""

    extrinsic: ExtrinsicConfig = Field(description="The game's own rewards; `{}` = all defaults.")


class PPOConfig(Section):
    """One behavior, trained by PPO."""

    trainer_type: Literal["ppo"] = Field(default="ppo", description="The algorithm.")
    hyperparameters: PPOHyperparameters = Field(default=PPOHyperparameters(), description="The algorithm's numbers.")
    network_settings: NetworkSettings = Field(default=NetworkSettings(), description="The policy's network.")
    reward_signals: RewardSignals = Field(
        default=RewardSignals(extrinsic=ExtrinsicConfig()),
        description="Where rewards come from. If given, only the signals that it lists exist.",
    )
    max_steps: Steps = Field(
        default=500_000,
        ge=1,
        le=MAX_STEPS,
        description="Agent steps after which training of this behavior ends; linear schedules reach their floor there. "
        "A fraction is cut.",
    )
    time_horizon: Whole = Field(
        default=64,
        ge=1,
        le=1_000_000,
        description="Most steps of one agent in a piece of experience, before it bootstraps.",
    )
    summary_freq: Whole = Field(
        default=50_000, ge=1, le=MAX_STEPS, description="Agent steps between points of the metrics."
    )
    keep_checkpoints: Whole = Field(
        default=5,
        ge=1,
        le=100_000,
        description="Number of periodic checkpoints that are kept, the newest; to keep all, a large number.",
    )
    even_checkpoints: Flag = Field(
        default=False, description="Spread `keep_checkpoints` checkpoints evenly over `max_steps`."
    )
    checkpoint_interval: Whole = Field(
        default=500_000,
        ge=1,
        le=MAX_STEPS,
        description="Agent steps between checkpoints; `max_steps` // `keep_checkpoints` if `even_checkpoints`.",
    )
    threaded: Flag = Field(
        default=False,
        description="Collect experience while learning, at most one buffer ahead. False = lockstep, reproducible.",
    )

    @field_validator("checkpoint_interval")
    @classmethod
    def _spread(cls, checkpoint_interval: int, info: ValidationInfo) -> int:
        given = info.data
        if not (given.get("even_checkpoints") and "max_steps" in given and "keep_checkpoints" in given):
            return checkpoint_interval
        max_steps, keep_checkpoints = given["max_steps"], given["keep_checkpoints"]
        if keep_checkpoints > max_steps:
            raise mistake(
                "contradiction",
                f"even_checkpoints spreads keep_checkpoints ({keep_checkpoints}) over max_steps ({max_steps}), which "
                "are fewer; lower keep_checkpoints or set even_checkpoints to false",
                at="keep_checkpoints",
            )
        interval: int = max_steps // keep_checkpoints
        return interval


BehaviorConfig: TypeAlias = PPOConfig
"""The union of all trainers' sections, discriminated by `trainer_type`."""
