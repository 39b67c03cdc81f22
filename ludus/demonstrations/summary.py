"""Statistics of a demonstration, by which a person can check that it is the right one."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ludus.demonstrations.demonstration import Demonstration

BINS = 20
"""Equal bins over [-1, 1] in the histogram of a continuous action; the last one includes 1."""


@dataclass(frozen=True)
class Spread:
    """Mean and range of a number over complete episodes."""

    mean: float
    std: float
    minimum: float
    maximum: float


@dataclass(frozen=True)
class Summary:
    """Numbers of one demonstration. Renders as JSON with `to_json`."""

    behavior: str
    transitions: int
    episodes: int
    """Complete ones, from the first step to the end: what `returns` and `lengths` speak of."""
    fragments: int
    """Pieces that lack their beginning or their end: cut recordings, sampled transitions."""
    terminated: int
    """Pieces whose task ended."""
    truncated: int
    """Pieces that a limit cut short."""
    returns: Spread | None
    """Undiscounted sum of an agent's own rewards; None without a complete episode."""
    lengths: Spread | None
    """Steps; None without a complete episode."""
    continuous: list[list[int]]
    """For each continuous action how often it lay in each of 20 equal bins over [-1, 1]."""
    discrete: list[list[int]]
    """For each branch how often each choice was taken."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def inspect(demonstration: Demonstration) -> Summary:
    """Count, and describe returns, lengths and actions."""
    complete = demonstration.complete
    actions = demonstration.spec.actions
    return Summary(
        behavior=demonstration.spec.name,
        transitions=demonstration.steps,
        episodes=int(complete.sum()),
        fragments=int((~complete).sum()),
        terminated=int(demonstration.terminated.sum()),
        truncated=int(demonstration.truncated.sum()),
        returns=_spread(demonstration.returns[complete]),
        lengths=_spread(demonstration.lengths[complete].astype(np.float64)),
        continuous=[
            np.histogram(column.clip(-1, 1), BINS, (-1.0, 1.0))[0].tolist() for column in demonstration.continuous.T
        ],
        discrete=[
            np.bincount(column, minlength=choices).tolist()
            for column, choices in zip(demonstration.discrete.T, actions.discrete_branches, strict=True)
        ],
    )


def _spread(values: npt.NDArray[np.float64]) -> Spread | None:
    if not len(values):
        return None
    return Spread(float(values.mean()), float(values.std()), float(values.min()), float(values.max()))
