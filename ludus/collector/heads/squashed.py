"""Continuous actions of SAC: Gaussian samples that pass through tanh (Haarnoja et al. 2018, appendix C).

`log_sigma` is an output of the network, limited to [-20, 2].
"""

from typing import Any, ClassVar

from ludus.collector.heads.head import HALF_LOG_TWO_PI, A, Operations, Parameter

LOG_SIGMA_LIMITS = (-20.0, 2.0)
"""Of the logarithm of the standard deviation."""
LOG_TWO = 0.6931471805599453


class Squashed:
    """Means and log-sigmas are columns of the last layer."""

    outputs: ClassVar[int] = 2

    def parameters(self, size: int) -> tuple[Parameter, ...]:
        """Return none."""
        del size
        return ()

    def moments(self, on: Operations[A], outputs: A, parameters: Any, size: int) -> tuple[A, A]:
        """Return mean and limited log-sigma, `(B, C)`."""
        del parameters
        return on.columns(outputs, 0, size), on.clip(on.columns(outputs, size, 2 * size), *LOG_SIGMA_LIMITS)

    def recorded(self, on: Operations[A], sample: A) -> A:
        """Return the sample after tanh."""
        return on.tanh(sample)

    def action(self, on: Operations[A], recorded: A) -> A:
        """Return the recorded value."""
        del on
        return recorded

    def log_prob(self, on: Operations[A], sample: A, log_sigma: A, noise: A) -> A:
        """Return the Gaussian's minus the logarithm of the derivative of tanh, `log(1 - tanh(u)^2)`."""
        size = on.absolute(sample)
        # 2 (log 2 - |u| - log(1 + exp(-2 |u|))) stays exact where tanh is 1 in float32.
        log_derivative = (LOG_TWO - size - on.log1p(on.exp(-2.0 * size))) * 2.0
        log_prob: A = -0.5 * noise * noise - (log_sigma + HALF_LOG_TWO_PI) - log_derivative
        return log_prob
