"""The configuration of the effort signal."""

from typing import ClassVar

from ludus.config.signal import RewardSignalConfig
from ludus.config.values import Real


class EffortConfig(RewardSignalConfig):
    """Cost of continuous actions: minus the mean of their squares, so that calm policies earn more."""

    implementation: ClassVar[str] = "tutorial_plugin.learning:Effort"
    strength: Real = 0.01
    """Factor on this signal's rewards."""
