"""The parts of a head, and the operations that its description may use.

Dimensions: `B` rows, `C` continuous columns, `H` columns of the last layer, `N` choices of a branch.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

HALF_LOG_TWO_PI = 0.9189385332046727
FORBIDDEN = -1e30
"""The logit of a forbidden choice, below any that a network gives: its probability is exactly 0."""


class Array(Protocol):
    """An array of any library. Numbers on either side of an operator are allowed."""

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...


A = TypeVar("A", bound=Array)


class Operations(Protocol[A]):
    """The operations of descriptions beside `+ - * /`, by one library. Arrays are `(B, n)`."""

    def columns(self, values: A, start: int, stop: int) -> A:
        """Return some columns."""

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

    def parameters(self, size: int) -> tuple[Parameter, ...]:
        """Return the parameters for `size` actions."""

    def moments(self, on: Operations[A], outputs: A, parameters: Any, size: int) -> tuple[A, A]:
        """Return mean and logarithm of the standard deviation, `(B, C)` or `(C,)`."""

    def recorded(self, on: Operations[A], sample: A) -> A:
        """Return the value of a Gaussian sample that the learner gets."""

    def action(self, on: Operations[A], recorded: A) -> A:
        """Return the value that the environment gets, within [-1, 1]."""

    def log_prob(self, on: Operations[A], sample: A, log_sigma: A, noise: A) -> A:
        """Return the log-density of the recorded value of each column; `sample` is `mean + sigma * noise`."""


class DiscreteHead(Protocol):
    """How columns of the last layer, one for each choice, become the choice of a branch."""

    explores: ClassVar[bool]
    """Whether chance serves exploration alone: exported models then take the best choice always."""
    parameters: ClassVar[tuple[Parameter, ...]]

    def logits(self, on: Operations[A], values: A, parameters: Any) -> A:
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
