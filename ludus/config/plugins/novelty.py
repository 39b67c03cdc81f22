"""The configuration of the reward for novelty (`worker.learning.plugins.novelty` counts)."""

from typing import ClassVar

from pydantic import Field

from ludus.config.signal import RewardSignalConfig
from ludus.config.values import Real, Whole


class NoveltyConfig(RewardSignalConfig):
    """Reward for observations that were seldom seen: `1 / sqrt(1 + count)`. For discrete observations."""

    implementation: ClassVar[str] = "worker.learning.plugins.novelty:NoveltyReward"
    strength: Real = 1.0
    """Factor on this signal's rewards: large enough to be felt beside the game's own, and no larger. Typical: 0.001 to
    0.1.
    """
    resolution: Real = Field(default=1.0, gt=0, le=1e6)
    """Numbers of observations are rounded to multiples of it before they are compared. Typical: 1 for cells and
    choices, 0.1 for coordinates.
    """
    table_size: Whole = Field(default=65_536, ge=1_024, le=16_777_216)
    """Counts that are kept; make it ten times the number of different observations."""
