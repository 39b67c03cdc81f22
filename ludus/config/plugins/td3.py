"""TD3's configuration (`worker.learning.plugins.td3` learns, `ludus.collector.gaussian_noise` explores)."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from ludus.config.hyperparameters import MAX_STEPS, TargetHyperparameters
from ludus.config.imitation import BehavioralCloningConfig
from ludus.config.trainer import MemorylessConfig, OffPolicyConfig, amendable
from ludus.config.values import Own, Real, Whole, config_error


class TD3Hyperparameters(TargetHyperparameters):
    """Twin Delayed Deep Deterministic policy gradient (Fujimoto et al. 2018). Its defaults are the paper's."""

    exploration_sigma: Own[Real] = Field(default=0.1, gt=0, le=2)
    """Standard deviation of the noise on actions, whose range is -1 to 1. Typical: 0.1 to 0.3."""
    initial_exploration_sigma: Own[Real] = Field(default=1.0, gt=0, le=2)
    """The same until gradient steps begin (`buffer_init_steps`): the untrained policy says nothing about where to look.
    Typical: 0.5 to 1.
    """
    exploration_noise: Own[Literal["white", "pink"]] = "white"
    """Noise over time: independent at each step (white), or with equal power at all time scales up to 512 steps (pink;
    Eberhard et al. 2023).
    """
    policy_delay: Own[Whole] = Field(default=2, ge=1, le=MAX_STEPS)
    """Gradient steps of the critics for each one of the policy and of the target networks. Typical: 1 to 4."""
    target_noise: Own[Real] = Field(default=0.2, ge=0, le=2)
    """Standard deviation of the noise on the target policy's actions, which smooths what the critics learn; 0 = none.
    Typical: 0.1 to 0.3.
    """
    target_noise_clip: Own[Real] = Field(default=0.5, gt=0, le=2)
    """Largest size of that noise. Typical: 0.3 to 0.5."""


class TD3Config(MemorylessConfig, OffPolicyConfig):
    """One behavior with continuous actions, trained by TD3 (Ludus' own)."""

    head: ClassVar[str] = "gaussian_noise"
    implementation: ClassVar[str] = "worker.learning.plugins.td3:TD3"
    amendable: ClassVar[frozenset[str]] = amendable(
        *("tau", "reset_interval", "exploration_sigma", "initial_exploration_sigma"),
        *("policy_delay", "target_noise", "target_noise_clip"),
    )
    trainer_type: Own[Literal["td3"]] = "td3"
    hyperparameters: TD3Hyperparameters = TD3Hyperparameters()

    @field_validator("behavioral_cloning")
    @classmethod
    def _no_cloning(cls, behavioral_cloning: BehavioralCloningConfig | None) -> BehavioralCloningConfig | None:
        if behavioral_cloning is None:
            return None
        raise config_error(
            "contradiction",
            "trainer_type td3 has no behavioral_cloning; reward what was demonstrated by reward_signals.gail, or take "
            "trainer_type tqc, sac or ppo",
        )
