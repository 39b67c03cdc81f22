"""Values that change with the policy's step: constant, or linear down to a floor at `max_steps`.

Source: ML-Agents 1.1.0, `DecayedValue`: `(v0 - floor) * (1 - min(step, max_steps) / max_steps) + floor`.
"""

from dataclasses import dataclass
from typing import Literal

LEARNING_RATE_FLOOR = 1e-10
"""Where a linear learning rate ends."""
EPSILON_FLOOR = 0.1
"""Where a linear clip range ends. An initial value below it *rises* to it, as in ML-Agents."""
BETA_FLOOR = 1e-5
"""Where a linear entropy weight ends."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One value over the steps of a run."""

    kind: Literal["constant", "linear"]
    initial: float
    floor: float
    """The value from `max_steps` on, if linear."""
    max_steps: int

    def at(self, step: int) -> float:
        """Return the value at `step`; steps past `max_steps` count as `max_steps`."""
        if self.kind == "constant":
            return self.initial
        remaining = 1.0 - min(step, self.max_steps) / self.max_steps
        return (self.initial - self.floor) * remaining + self.floor
