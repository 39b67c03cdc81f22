"""Statistics of a demonstration, for people who check its content."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ludus.demonstrations.demonstration import Demonstration

if TYPE_CHECKING:
    from ludus.schemas import DemonstrationStatistics, Spread

BINS = 20
"""Equal bins over [-1, 1] in the histogram of a continuous action; the last one includes 1."""


def inspect(demonstration: Demonstration) -> "DemonstrationStatistics":
    """Return the statistics of a demonstration."""
    from ludus.schemas import DemonstrationStatistics  # noqa: PLC0415  processes that only record do not need them

    complete = demonstration.complete
    actions = demonstration.spec.actions
    return DemonstrationStatistics(
        transitions=demonstration.steps,
        episodes=int(complete.sum()),
        fragments=int((~complete).sum()),
        terminated=int(demonstration.terminated.sum()),
        truncated=int(demonstration.truncated.sum()),
        returns=_spread(demonstration.returns[complete]),
        lengths=_spread(demonstration.lengths[complete].astype(np.float64)),
        continuous=tuple(
            tuple(np.histogram(column.clip(-1, 1), BINS, (-1.0, 1.0))[0].tolist())
            for column in demonstration.continuous.T
        ),
        discrete=tuple(
            tuple(np.bincount(column, minlength=choices).tolist())
            for column, choices in zip(demonstration.discrete.T, actions.discrete_branches, strict=True)
        ),
    )


def _spread(values: npt.NDArray[np.float64]) -> "Spread | None":
    if not len(values):
        return None
    from ludus.schemas import Spread  # noqa: PLC0415  likewise

    mean, std = float(values.mean()), float(values.std())
    return Spread(mean=mean, std=std, minimum=float(values.min()), maximum=float(values.max()))
