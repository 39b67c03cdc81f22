"""Continuous actions of PPO: Gaussian samples, clipped, with deviations that do not depend on observations.

The environment gets `clip(sample, -3, 3) / 3`, as in ML-Agents (`ActionModel`).
"""

from typing import Any, ClassVar

from ludus.collector.heads.head import HALF_LOG_TWO_PI, A, Operations, Parameter

LIMIT = 3.0
"""Samples are clipped to `[-LIMIT, LIMIT]`, then divided by it."""


class Gaussian:
    """Means are columns of the last layer, `log_sigma` is a parameter."""

    outputs: ClassVar[int] = 1

    def parameters(self, size: int) -> tuple[Parameter, ...]:
        """Return `log_sigma`, one for each column."""
        return (Parameter("log_sigma", size),)

    def moments(self, on: Operations[A], outputs: A, parameters: Any, size: int) -> tuple[A, A]:
        """Return mean `(B, C)` and log-sigma `(C,)`, or `(B, C)` where rows have policies of their own."""
        return on.columns(outputs, 0, size), parameters["log_sigma"]

    def recorded(self, on: Operations[A], sample: A) -> A:
        """Return the sample."""
        del on
        return sample

    def action(self, on: Operations[A], recorded: A) -> A:
        """Return the clipped and scaled sample."""
        action: A = on.clip(recorded, -LIMIT, LIMIT) / LIMIT
        return action

    def log_prob(self, on: Operations[A], sample: A, log_sigma: A, noise: A) -> A:
        """Return the Gaussian's."""
        del on, sample
        log_prob: A = -0.5 * noise * noise - (log_sigma + HALF_LOG_TWO_PI)
        return log_prob
