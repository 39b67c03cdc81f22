"""The heads of acting networks: how the columns of the last layer become actions. Each is described once.

A head has a description for continuous columns and one for discrete branches, written with operations that numpy
(`NumpyOperations`), torch (`worker.learning.networks.head_operations`) and ONNX (`worker.onnx.head_operations`)
implement. Collectors, opponents, learners and exported models evaluate the same descriptions. To add a kind of head,
describe it here and name it in `HEADS`, or in a plug-in (`ludus.explorers`).

Dimensions: `B` rows, `C` continuous columns, `H` columns of the last layer, `N` choices of a branch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from ludus.collector.activations import FloatArray
from ludus.plugins import Kind, PluginError, installed, load

HALF_LOG_TWO_PI = 0.9189385332046727
LOG_TWO = 0.6931471805599453
FORBIDDEN = -1e30
"""The logit of a forbidden choice, below any that a network gives: its probability is exactly 0."""
LIMIT = 3.0
"""Samples of `Gaussian` are clipped to `[-LIMIT, LIMIT]`, then divided by it."""
LOG_SIGMA_LIMITS = (-20.0, 2.0)
"""Of the logarithm of the standard deviation of `Squashed`."""


class Array(Protocol):
    """An array of any library. Numbers on either side of an operator are allowed."""

    def __getitem__(self, key: tuple[slice, slice], /) -> Any: ...
    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...


A = TypeVar("A", bound=Array)


class Operations(Protocol[A]):
    """The operations of descriptions beside `+ - * /` and columns, by one library. Arrays are `(B, n)`."""

    def exp(self, values: A) -> A:
        """Return `e` to the power of each value."""

    def log(self, values: A) -> A:
        """Return natural logarithms."""

    def log1p(self, values: A) -> A:
        """Return the logarithms of `1 + x`."""

    def tanh(self, values: A) -> A:
        """Return hyperbolic tangents."""

    def absolute(self, values: A) -> A:
        """Return values without their sign."""

    def clip(self, values: A, least: float, most: float) -> A:
        """Return values limited to `[least, most]`."""

    def largest(self, values: A) -> A:
        """Return the largest value of each row, `(B, 1)`."""

    def total(self, values: A) -> A:
        """Return the sum of each row, `(B, 1)`."""

    def at_least(self, values: A, least: Any) -> A:
        """Return 1.0 where a value is `least` or more, else 0.0."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Numbers of a head that are no outputs of the last layer. They follow it in the flat vector of weights."""

    name: str
    size: int
    learned: bool = True
    """Whether gradients change it; else the learner sets it."""


class ContinuousHead(Protocol):
    """How columns of the last layer become `C` continuous actions: a Gaussian, and a function of its samples."""

    outputs: ClassVar[int]
    """Columns of the last layer for each action."""
    explores: ClassVar[bool]
    """Whether chance serves exploration alone: exported models then take the mean always."""

    def parameters(self, size: int) -> tuple[Parameter, ...]:
        """Return the parameters for `size` actions."""

    def moments(self, on: Operations[A], outputs: A, parameters: Mapping[str, A], size: int) -> tuple[A, A]:
        """Return mean and logarithm of the standard deviation, `(B, C)` or `(C,)`."""

    def recorded(self, on: Operations[A], sample: A) -> A:
        """Return the value of a Gaussian sample that the learner gets."""

    def sample(self, on: Operations[A], recorded: A) -> A:
        """Return the Gaussian sample that a recorded value was made of, within (-1, 1) where its range has an end."""

    def action(self, on: Operations[A], recorded: A) -> A:
        """Return the value that the environment gets, within [-1, 1]."""

    def log_prob(self, on: Operations[A], sample: A, log_sigma: A, noise: A) -> A:
        """Return the log-density of the recorded value of each column; `sample` is `mean + sigma * noise`."""


class DiscreteHead(Protocol):
    """How columns of the last layer, one for each choice, become the choice of a branch."""

    explores: ClassVar[bool]
    """Whether chance serves exploration alone: exported models then take the best choice always."""
    parameters: ClassVar[tuple[Parameter, ...]]

    def logits(self, on: Operations[A], values: A, parameters: Mapping[str, A]) -> A:
        """Return the logits with which choices are drawn, `(B, N)`; the best choice has the largest value.

        `values` are the columns of a branch, where forbidden choices have `FORBIDDEN`; so must their logits.
        """


@dataclass(frozen=True, slots=True)
class Head:
    """One kind of head."""

    continuous: ContinuousHead | None
    """None: behaviors with continuous actions are refused."""
    discrete: DiscreteHead

    def parameters(self, size: int) -> tuple[Parameter, ...]:
        """Return all parameters for `size` continuous actions, in the order of the flat vector."""
        continuous = self.continuous.parameters(size) if self.continuous is not None and size else ()
        return (*continuous, *self.discrete.parameters)


class Gaussian:
    """Continuous actions of PPO: Gaussian samples, clipped. Means are columns, `log_sigma` is a parameter.

    The environment gets `clip(sample, -3, 3) / 3`, as in ML-Agents (`ActionModel`).
    """

    outputs: ClassVar[int] = 1
    explores: ClassVar[bool] = False

    def parameters(self, size: int) -> tuple[Parameter, ...]:
        """Return `log_sigma`, one for each column."""
        return (Parameter("log_sigma", size),)

    def moments(self, on: Operations[A], outputs: A, parameters: Mapping[str, A], size: int) -> tuple[A, A]:
        """Return mean `(B, C)` and log-sigma `(C,)`, or `(B, C)` where rows have policies of their own."""
        del on
        return outputs[:, :size], parameters["log_sigma"]

    def recorded(self, on: Operations[A], sample: A) -> A:
        """Return the sample."""
        del on
        return sample

    def sample(self, on: Operations[A], recorded: A) -> A:
        """Return the recorded value."""
        del on
        return recorded

    def action(self, on: Operations[A], recorded: A) -> A:
        """Return the clipped and scaled sample."""
        action: A = on.clip(recorded, -LIMIT, LIMIT) / LIMIT
        return action

    def log_prob(self, on: Operations[A], sample: A, log_sigma: A, noise: A) -> A:
        """Return the Gaussian's."""
        del on, sample
        log_prob: A = -0.5 * noise * noise - (log_sigma + HALF_LOG_TWO_PI)
        return log_prob


class Squashed:
    """Continuous actions of SAC: Gaussian samples that pass through tanh (Haarnoja et al. 2018, appendix C).

    Means and log-sigmas are columns of the last layer.
    """

    outputs: ClassVar[int] = 2
    explores: ClassVar[bool] = False

    def parameters(self, size: int) -> tuple[Parameter, ...]:
        """Return none."""
        del size
        return ()

    def moments(self, on: Operations[A], outputs: A, parameters: Mapping[str, A], size: int) -> tuple[A, A]:
        """Return mean and limited log-sigma, `(B, C)`."""
        del parameters
        return outputs[:, :size], on.clip(outputs[:, size : 2 * size], *LOG_SIGMA_LIMITS)

    def recorded(self, on: Operations[A], sample: A) -> A:
        """Return the sample after tanh."""
        return on.tanh(sample)

    def sample(self, on: Operations[A], recorded: A) -> A:
        """Return the inverse of tanh."""
        sample: A = (on.log1p(recorded) - on.log1p(-1.0 * recorded)) * 0.5
        return sample

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


class Categorical:
    """Discrete choices in proportion to the exponentials of their columns, the logits."""

    explores: ClassVar[bool] = False
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def logits(self, on: Operations[A], values: A, parameters: Mapping[str, A]) -> A:
        """Return the columns."""
        del on, parameters
        return values


HEADS: Mapping[str, Head] = {
    "gaussian": Head(Gaussian(), Categorical()),  # PPO, POCA, clones
    "squashed": Head(Squashed(), Categorical()),  # SAC
}
"""By the name that `ActorLayout.head` and messages to collectors have; plug-ins add others (`ludus.explorers`)."""


@cache
def head_of(name: str) -> Head:
    """Return the head of a name. Raises PluginError where its plug-in is not installed, or is broken."""
    if name in HEADS:
        return HEADS[name]
    plugin = installed(Kind.EXPLORERS).get(name)
    if plugin is None:
        raise PluginError(f"the explorer {name!r} is not installed here; install the plug-in that has it")
    head: Head = load(plugin, Head)
    return head


class NumpyOperations:
    """Implements `Operations` in numpy."""

    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    tanh = staticmethod(np.tanh)
    absolute = staticmethod(np.absolute)

    @staticmethod
    def clip(values: FloatArray, least: float, most: float) -> FloatArray:
        """Return values limited to `[least, most]`; for a few rows `np.clip` takes twice as long."""
        return np.minimum(np.maximum(values, least), most)

    @staticmethod
    def largest(values: FloatArray) -> FloatArray:
        """Return the largest value of each row, `(B, 1)`."""
        largest: FloatArray = np.maximum.reduce(values, axis=1, keepdims=True)
        return largest

    @staticmethod
    def total(values: FloatArray) -> FloatArray:
        """Return the sum of each row, `(B, 1)`."""
        total: FloatArray = np.add.reduce(values, axis=1, keepdims=True)
        return total

    @staticmethod
    def at_least(values: FloatArray, least: Any) -> FloatArray:
        """Return 1.0 where a value is `least` or more, else 0.0."""
        result: FloatArray = (values >= least).astype(np.float32)
        return result


NUMPY = NumpyOperations()
