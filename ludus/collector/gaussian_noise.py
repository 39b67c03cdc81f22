"""Exploration by noise on the actions of a deterministic policy (Silver et al. 2014; Fujimoto et al. 2018)."""

from collections.abc import Mapping
from typing import ClassVar, Final

from ludus.collector.heads import HALF_LOG_TWO_PI, A, Categorical, Head, Operations, Parameter


class GaussianNoise:
    """Continuous actions: `clip(tanh(column) + sigma * noise, -1, 1)`.

    The logarithm of `sigma` is a parameter that the learner sets and publishes with the weights, one for each column.
    """

    outputs: ClassVar[int] = 1
    explores: ClassVar[bool] = True

    def parameters(self, size: int) -> tuple[Parameter, ...]:
        """Return `noise_log_sigma`, one for each column."""
        return (Parameter("noise_log_sigma", size, learned=False),)

    def moments(self, on: Operations[A], outputs: A, parameters: Mapping[str, A], size: int) -> tuple[A, A]:
        """Return the policy's action `(B, C)` and log-sigma `(C,)`, or `(B, C)` with a policy of each row."""
        return on.tanh(outputs[:, :size]), parameters["noise_log_sigma"]

    def recorded(self, on: Operations[A], sample: A) -> A:
        """Return the sample within the range of actions."""
        return on.clip(sample, -1.0, 1.0)

    def sample(self, on: Operations[A], recorded: A) -> A:
        """Return the recorded value: the sample, unless it was clipped."""
        del on
        return recorded

    def action(self, on: Operations[A], recorded: A) -> A:
        """Return the recorded value."""
        del on
        return recorded

    def log_prob(self, on: Operations[A], sample: A, log_sigma: A, noise: A) -> A:
        """Return the Gaussian's, before the sample is clipped."""
        del on, sample
        log_prob: A = -0.5 * noise * noise - (log_sigma + HALF_LOG_TWO_PI)
        return log_prob


GAUSSIAN_NOISE: Final = Head(GaussianNoise(), Categorical())
