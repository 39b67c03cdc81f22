"""The numbers of each trainer."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from ludus.config.values import Flag, Own, Real, Schedule, Section, Steps, Whole, config_error

MAX_STEPS = 10**12
"""Largest number of steps: counters stay exact and within the database's types."""
MAX_BUFFER = 100_000_000
"""Largest number of experiences in a buffer."""


def _learning_rate_schedule(section: Mapping[str, Schedule]) -> Schedule:
    """Return what a schedule that isn't given copies; both default to linear."""
    return section["learning_rate_schedule"]


def _steps_per_update(section: Mapping[str, float]) -> float:
    """Return what `reward_signal_steps_per_update` copies if it isn't given."""
    return section["steps_per_update"]


class Hyperparameters(Section):
    """Parent of all trainers' numbers."""

    batch_size: Whole = Field(default=1024, ge=1, le=MAX_BUFFER)
    """Experiences per gradient step; several times smaller than `buffer_size`. Typical: 512 to 5,120 with continuous
    actions, 32 to 512 with discrete ones.
    """
    learning_rate: Real = Field(default=3.0e-4, gt=0, le=1)
    """Adam's step size; lower it when the reward does not rise steadily. Typical: 1e-5 to 1e-3."""
    learning_rate_schedule: Schedule = "linear"
    """How `learning_rate` changes; linear ends at 1e-10."""


class _Buffered(Hyperparameters):
    """Parent of the trainers that keep experience."""

    buffer_size: Whole = Field(default=10240, ge=1, le=MAX_BUFFER)

    @field_validator("buffer_size")
    @classmethod
    def _holds_a_batch(cls, buffer_size: int, info: ValidationInfo) -> int:
        batch_size = info.data.get("batch_size", 0)
        if batch_size > buffer_size:
            raise config_error(
                "contradiction",
                f"batch_size ({batch_size}) is larger than buffer_size ({buffer_size}), so nothing would ever be "
                "learned; lower batch_size or raise buffer_size (best to a multiple of batch_size)",
                at="batch_size",
            )
        return buffer_size


class OnPolicyHyperparameters(_Buffered):
    """Parent of PPO's and POCA's numbers."""

    buffer_size: Whole = Field(default=10240, ge=1, le=MAX_BUFFER)
    """Experiences per update of the policy: collected, used `num_epoch` times, then dropped. At least `batch_size`,
    best a multiple of it; larger is more stable. Typical: 2,048 to 409,600.
    """
    beta: Real = Field(default=5.0e-3, ge=0)
    """Weight of the entropy bonus; 0 = none. Raise it when `Policy/Entropy` falls too fast, lower it when it does not
    fall. Typical: 1e-4 to 1e-2.
    """
    beta_schedule: Schedule = Field(default_factory=_learning_rate_schedule)
    """How `beta` changes; linear ends at 1e-5. Default: a copy of `learning_rate_schedule`."""
    epsilon: Real = Field(default=0.2, gt=0)
    """Clip range: the probability ratio is clipped to 1 - epsilon to 1 + epsilon. Smaller is more stable and slower.
    Typical: 0.1 to 0.3.
    """
    epsilon_schedule: Schedule = Field(default_factory=_learning_rate_schedule)
    """How `epsilon` changes; linear ends at 0.1. Default: a copy of `learning_rate_schedule`."""
    lambd: Real = Field(default=0.95, ge=0, le=1)
    """λ of generalised advantage estimation (Schulman et al. 2016): lower relies on the value function (biased), higher
    on the observed rewards (noisy). Typical: 0.9 to 0.95.
    """
    num_epoch: Whole = Field(default=3, ge=1, le=1000)
    """Passes over the buffer per update; fewer are more stable and slower. Typical: 3 to 10."""
    max_grad_norm: Own[Real | None] = Field(default=None, gt=0)
    """Longer gradients are scaled to this length before each step; null = never, as in ML-Agents. Typical: 0.5 to 1."""
    clip_value_loss: Own[Flag] = False
    """Clip values around those before the update by `epsilon` in the critic's loss. ML-Agents intends this, but its
    clip has no effect (ml-agents#6281).
    """
    target_kl: Own[Real | None] = Field(default=None, gt=0)
    """End an update before the first minibatch in which the policy is further than 1.5 x this from the one that acted,
    by an estimate of the KL divergence in nats (as Stable-Baselines3); null = never. Typical: 0.01 to 0.05.
    """
    desired_kl: Own[Real | None] = Field(default=None, gt=0)
    """Adapt the learning rate: behind an update whose `Policy/Approximate KL` is above twice this it is divided by 1.5,
    below half of this multiplied by 1.5, within 1e-5 to 0.01 (as Rudin et al. 2022, who do so for each minibatch);
    null = never. On top of `learning_rate_schedule`, best constant. Typical: 0.005 to 0.02.
    """
    vtrace: Own[Flag] = False
    """Correct returns and advantages for steps that an older policy took (V-trace, Espeholt et al. 2018). Steps of the
    policy that is updated count as without it, so that it changes nothing in lockstep. For `threaded: true` and for
    collectors on slow links, where `Policy/Lag` is above 1.
    """
    decoupled_objective: Own[Flag] = False
    """Clip the ratio to the policy before the update instead of the one that acted, and weight each step by the ratio
    of these two, at most 100 (decoupled PPO, Hilton et al. 2021). Without steps of older policies nothing changes.
    Learns faster from late steps than `vtrace`, and is less stable: lower `learning_rate` where returns fall again.
    """
    max_policy_lag: Own[Whole | None] = Field(default=None, ge=0, le=MAX_STEPS)
    """Do not learn from steps of policies that are more than so many versions older than the one that is updated; null
    = no limit. They count as steps of the run, and in `Policy/Stale Share`. At least 1 with `threaded: true`.
    Typical: 1 to 8.
    """
    late_steps: Own[Literal["drop", "wait"]] = "drop"
    """With `max_policy_lag`: `wait` = an update waits for the steps that would become too old by it, so that none is
    dropped. A slow simulator or collector delays all others. The limit is at least 1, or 2 with `threaded: true`.
    """

    @field_validator("late_steps")
    @classmethod
    def _has_a_limit(cls, late_steps: str, info: ValidationInfo) -> str:
        if late_steps == "wait" and not info.data.get("max_policy_lag"):
            raise config_error(
                "contradiction",
                "late_steps: wait needs a max_policy_lag of 1 or more: where agents take turns a step is always under "
                "way when an update is due, and is a version old afterwards; set it, or leave late_steps out",
                at="max_policy_lag",
            )
        return late_steps


class PPOHyperparameters(OnPolicyHyperparameters):
    """Proximal Policy Optimization (Schulman et al. 2017)."""

    normalize_values: Own[Flag] = False
    """Let the critic learn returns in units of their own running deviation (PopArt, van Hasselt et al. 2016), for
    rewards far from 1 in size. `Losses/Value Loss` and the clip of `clip_value_loss` are in these units, too.
    """
    shared_critic: Flag = False
    """One body for policy and value function."""
    critic_learning_rate: Own[Real | None] = Field(default=None, gt=0, le=1)
    """Adam's step size for the value function, on the schedule of `learning_rate`; null = `learning_rate`. Not with
    `shared_critic`. Typical: 1e-5 to 1e-3.
    """

    @field_validator("critic_learning_rate")
    @classmethod
    def _own_body(cls, critic_learning_rate: float | None, info: ValidationInfo) -> float | None:
        if critic_learning_rate is not None and info.data.get("shared_critic"):
            raise config_error(
                "contradiction",
                f"critic_learning_rate ({critic_learning_rate:g}) needs a critic with a body of its own, but "
                "shared_critic is true; remove critic_learning_rate or set shared_critic to false",
            )
        return critic_learning_rate


class POCAHyperparameters(OnPolicyHyperparameters):
    """Multi-Agent Posthumous Credit Assignment (Cohen et al. 2022): PPO's numbers, with a critic of its own kind."""


class OffPolicyHyperparameters(_Buffered):
    """Parent of the numbers of trainers that learn from a replay buffer."""

    batch_size: Whole = Field(default=128, ge=1, le=MAX_BUFFER)
    """Experiences per gradient step. Typical: 128 to 1,024 with continuous actions, 32 to 512 with discrete ones."""
    learning_rate_schedule: Schedule = "constant"
    buffer_size: Whole = Field(default=50_000, ge=1, le=MAX_BUFFER)
    """Experiences that the replay buffer keeps, the newest. At least `batch_size`, best thousands of times an episode's
    length. Typical: 50,000 to 1,000,000.
    """
    buffer_init_steps: Steps = Field(default=0, ge=0, le=MAX_STEPS)
    """Agent steps before the first gradient step, best several episodes of the untrained policy. Typical: 1,000 to
    10,000.
    """
    save_replay_buffer: Flag = False
    """Save the replay buffer with checkpoints, so that a resumed run continues with it. Each checkpoint then takes
    about 4 bytes per observed number and step: 1,000,000 steps of 100 numbers are 400 MB.
    """
    steps_per_update: Real = Field(default=1.0, gt=0, le=1e9)
    """Agent steps per gradient step: collection and learning keep this ratio. May be below 1. A smaller number needs
    fewer steps and more computing. About the number of agents if steps are fast. Typical: 1 to 20.
    """
    reward_signal_steps_per_update: Real = Field(default_factory=_steps_per_update, gt=0, le=1e9)
    """Agent steps per gradient step of the reward signals' own networks. Default: a copy of `steps_per_update`.
    Typical: 1 to 20, as `steps_per_update`.
    """
    reset_interval: Own[Whole | None] = Field(default=None, ge=1, le=MAX_STEPS)
    """Gradient steps after which networks, optimizers and entropy coefficients begin anew, while the replay buffer
    stays (Nikishin et al. 2022); null = never. For `steps_per_update` below 1, where networks learn the first steps so
    well that they hardly learn later ones. Returns fall at each reset; let the last one be long before `max_steps`.
    Typical: 20,000 to 200,000.
    """


class TargetHyperparameters(OffPolicyHyperparameters):
    """Parent of the numbers of trainers that learn from a replay buffer with target networks."""

    tau: Real = Field(default=0.005, gt=0, le=1)
    """Fraction by which the target network moves towards the network per gradient step; larger is faster and less
    stable. Typical: 0.005 to 0.01.
    """


class EntropyHyperparameters(OffPolicyHyperparameters):
    """Parent of the numbers of trainers that maximise rewards and the policy's entropy."""

    init_entcoef: Real = Field(default=1.0, gt=0)
    """Initial value of the entropy coefficients, which then adapt: one for the continuous actions, one for each
    discrete branch. Higher explores more at first. Typical: 0.5 to 1 with continuous actions, 0.05 to 0.5 with discrete
    ones.
    """
    exploration_noise: Own[Literal["white", "pink"]] = "white"
    """Noise of continuous actions over time: independent at each step as in ML-Agents (white), or with equal power at
    all time scales up to 512 steps (pink; Eberhard et al. 2023). Pink noise reaches goals that white noise, which
    cancels out over time, does not reach (MountainCarContinuous).
    """


class SACHyperparameters(TargetHyperparameters, EntropyHyperparameters):
    """Soft Actor-Critic (Haarnoja et al. 2018)."""


class CloneHyperparameters(Hyperparameters):
    """Behavioral cloning (Pomerleau 1991): supervised learning of the demonstrated actions."""

    batch_size: Whole = Field(default=128, ge=1, le=MAX_BUFFER)
    """Demonstrated steps per gradient step. Typical: 32 to 512."""
    learning_rate_schedule: Schedule = "constant"
