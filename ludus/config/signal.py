"""The parents of reward signals' configurations."""

from typing import ClassVar

from pydantic import Field, field_validator

from ludus.config.network import NetworkSettings
from ludus.config.values import Flag, Own, Real, Section, config_error


class RewardSignalConfig(Section):
    """Parent of all signals."""

    implementation: ClassVar[str] = ""
    """Of a plug-in: `module:class` of the `worker.learning.rewards.signal.RewardSignal` that workers build, as
    `Reward(config, spec, device, generator)`.
    """
    gamma: Real = Field(default=0.99, ge=0, le=1)
    """Discount factor per decision; higher if rewards come late. Typical: 0.8 to 0.995."""
    strength: Real = 1.0
    """Factor on this signal's rewards."""
    normalize_reward: Own[Flag] = False
    """Divide rewards by the running deviation of their discounted return, and clip them to [-10, 10], before `strength`
    (as Gymnasium's NormalizeReward, Stable-Baselines3's VecNormalize; Engstrom et al. 2020). For rewards far from 1
    in size, or whose size changes while a policy learns. Values and losses are in these units, reported rewards are
    not.
    """


class IntrinsicConfig(RewardSignalConfig):
    """Parent of the signals that learn."""

    learning_rate: Real = Field(default=3.0e-4, gt=0, le=1)
    """Adam's step size for the signal's own networks; lower it when their losses jump. Typical: 1e-5 to 1e-3."""
    network_settings: NetworkSettings = NetworkSettings()
    """The signal's own network, without memory."""

    @field_validator("network_settings")
    @classmethod
    def _sees_everything(cls, network_settings: NetworkSettings) -> NetworkSettings:
        if not network_settings.privileged_observations:
            return network_settings
        raise config_error(
            "contradiction",
            "a reward signal has no policy to hide observations from, and sees all of them; remove "
            "privileged_observations here, and set it in the behavior's network_settings",
            at="network_settings.privileged_observations",
        )
