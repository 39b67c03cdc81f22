"""DQN's configuration (`worker.learning.plugins.dqn` learns, `ludus.collector.epsilon_greedy` explores)."""

from typing import ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from ludus.config.hyperparameters import MAX_STEPS, TargetHyperparameters
from ludus.config.imitation import BehavioralCloningConfig
from ludus.config.network import NetworkSettings
from ludus.config.trainer import OffPolicyConfig, amendable
from ludus.config.values import Flag, Own, Real, Schedule, Whole, config_error


class DQNHyperparameters(TargetHyperparameters):
    """Deep Q-learning (Mnih et al. 2015). The keys of exploration and target are those of ML-Agents' plug-in."""

    exploration_schedule: Schedule = "linear"
    """How the share of random choices changes; linear goes from `exploration_initial_eps` to `exploration_final_eps`.
    """
    exploration_initial_eps: Real = Field(default=1.0, ge=0, le=1)
    """Share of random choices at first, until gradient steps begin. Typical: 1."""
    exploration_final_eps: Real = Field(default=0.05, ge=0, le=1)
    """Share of random choices at the end of the schedule. Typical: 0.01 to 0.1."""
    exploration_steps: Own[Whole | None] = Field(default=None, ge=1, le=MAX_STEPS)
    """Agent steps until a linear schedule reaches `exploration_final_eps`; null = `max_steps`. Typical: a tenth to a
    half of `max_steps`.
    """
    target_update_interval: Whole = Field(default=1, ge=1, le=MAX_STEPS)
    """Gradient steps after which the target network moves by `tau`. Typical: 1 with a small `tau`; 10 to 10,000 with
    `tau: 1`, which copies.
    """
    double: Own[Flag] = True
    """The network chooses the best next choice and the target network values it (van Hasselt et al. 2016):
    overestimates less.
    """
    dueling: Own[Flag] = False
    """A value and advantages in place of a value for each choice (Wang et al. 2016)."""
    n_step: Own[Whole] = Field(default=1, ge=1, le=1000)
    """Steps whose rewards are added up before the target network stands for the rest: more learns faster from late
    rewards, and is noisier. Typical: 1 to 5.
    """
    prioritized: Own[Flag] = False
    """Draw steps with large errors more often (Schaul et al. 2016)."""
    priority_exponent: Own[Real] = Field(default=0.6, ge=0, le=1)
    """With `prioritized`: how much more often; 0 draws all steps alike. Typical: 0.4 to 0.7."""
    importance_exponent: Own[Real] = Field(default=0.4, ge=0, le=1)
    """With `prioritized`: how far the loss makes up for it at first; rises to 1, fully, at `max_steps`. Typical: 0.4 to
    0.6.
    """
    burn_in: Own[Whole] = Field(default=0, ge=0, le=100_000)
    """With `network_settings.memory`: steps at the beginning of each sequence that only bring its memory up to date
    (Kapturowski et al. 2019); below `sequence_length`. Typical: 0 to half of `sequence_length`.
    """


class DQNConfig(OffPolicyConfig):
    """One behavior with discrete actions, trained by DQN (Ludus' own: ML-Agents has it as an example of a plug-in)."""

    head: ClassVar[str] = "epsilon_greedy"
    implementation: ClassVar[str] = "worker.learning.plugins.dqn:DQN"
    amendable: ClassVar[frozenset[str]] = amendable(
        *("exploration_schedule", "exploration_initial_eps", "exploration_final_eps", "exploration_steps"),
        *("tau", "reset_interval", "target_update_interval", "importance_exponent"),
    )
    trainer_type: Own[Literal["dqn"]] = "dqn"
    hyperparameters: DQNHyperparameters = DQNHyperparameters()

    @field_validator("network_settings")
    @classmethod
    def _burn_in_fits(cls, network_settings: NetworkSettings, info: ValidationInfo) -> NetworkSettings:
        hyperparameters, memory = info.data.get("hyperparameters"), network_settings.memory
        burn_in = 0 if hyperparameters is None else hyperparameters.burn_in
        if burn_in == 0 or (memory is not None and burn_in < memory.sequence_length):
            return network_settings
        message = "is for the sequences of a memory, and there is none; remove it, or add network_settings.memory: {}"
        if memory is not None:
            message = (
                f"leaves nothing of network_settings.memory.sequence_length ({memory.sequence_length}) to learn from; "
                f"lower it to at most {memory.sequence_length - 1}, or raise sequence_length"
            )
        raise config_error(
            "contradiction", f"hyperparameters.burn_in ({burn_in}) {message}", at="hyperparameters.burn_in"
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
