"""What the learner hands to `CollectorPool` about policies: how a behavior's is built, which ones others play."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class FrozenProgram:
    """One policy of an assessment: how a collector builds it, and what it does."""

    network_settings: Mapping[str, Any]
    """`NetworkSettings.model_dump(mode="json")`."""
    squashed: bool
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PolicyProgram:
    """How a collector builds the acting policy of a behavior."""

    network_settings: Mapping[str, Any]
    """`NetworkSettings.model_dump(mode="json")`."""
    weights_size: int
    """Length of the flat weight vector."""
    time_horizon: int
    """Longest segment."""
    squashed: bool = False
    """Whether continuous actions are squashed samples (SAC)."""
    pink_noise: bool = False
    """Whether the noise of continuous actions is pink (`ludus.collector.exploration`)."""
    device: str = "cpu"
    """Where policies act that need torch: `cpu`, `cuda` or `cuda:N`."""
    self_play: bool = False
    """Whether one team learns and the others play frozen policies: nobody acts before `CollectorPool.oppose`."""
    assessment: Sequence[FrozenProgram] = ()
    """The policies of an assessment, which answer all agents: the candidate, then the champion. Weights are not
    published, steps are not granted; simulators play for nothing until `CollectorPool.sit`."""


@dataclass(frozen=True, slots=True)
class Opposition:
    """Which team of a behavior learns, and which policies the others play. Keys as in `ludus.collector.opponents`."""

    learning: int | None
    """None: no team of this behavior."""
    teams: Mapping[int, Sequence[int]]
    """The draws of each team: simulator `n` plays draw `n mod k`."""
    others: Sequence[int]
    """Draws of teams that are not among them."""

    @property
    def keys(self) -> set[int]:
        """All policies that are named."""
        return {key for keys in (*self.teams.values(), self.others) for key in keys}
