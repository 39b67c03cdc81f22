"""Activations of hidden layers. Each is described once, as an expression of its input `x`.

Acting in numpy (`ludus.collector.policy`), torch (`worker.learning.networks.dense`) and ONNX (`worker.onnx.graph`)
evaluate the expression, each with its own operations; gradients are autograd's. Where one of them has a faster form of
a whole expression it may use that (`FUSED` there): a test holds both equal.

To add an activation, add a line to `ACTIVATIONS`, and its name to `ludus.config.network.Activation`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Expression:
    """An operation on other expressions; the input itself is the operation `x`."""

    operation: str
    operands: "tuple[Expression, ...]" = ()

    def __mul__(self, other: "Expression") -> "Expression":
        """Return the product."""
        return Expression("mul", (self, other))

    def evaluate(self, x: T, operations: "Mapping[str, Callable[..., T]]") -> T:
        """Return the value for an input, by operations of any kind of value."""
        if self.operation == "x":
            return x
        return operations[self.operation](*(operand.evaluate(x, operations) for operand in self.operands))


def tanh(operand: Expression) -> Expression:
    """Return the hyperbolic tangent."""
    return Expression("tanh", (operand,))


def sigmoid(operand: Expression) -> Expression:
    """Return `1 / (1 + exp(-x))`."""
    return Expression("sigmoid", (operand,))


def relu(operand: Expression) -> Expression:
    """Return `max(x, 0)`."""
    return Expression("relu", (operand,))


x = Expression("x")
ACTIVATIONS: Mapping[str, Expression] = {
    "swish": x * sigmoid(x),  # Ramachandran et al. 2017
    "tanh": tanh(x),
    "relu": relu(x),
    "sigmoid": sigmoid(x),
}
"""By `network_settings.activation`."""

HALF, ONE = np.float32(0.5), np.float32(1.0)


def numpy_function(activation: str) -> Callable[[FloatArray], FloatArray]:
    """Return an activation in numpy. It may overwrite its argument."""
    expression = ACTIVATIONS[activation]
    return FUSED.get(expression, lambda linear: expression.evaluate(linear, NUMPY))


def _sigmoid(linear: FloatArray) -> FloatArray:
    """Return `(1 + tanh(x / 2)) / 2`: it takes half the time of the definition and cannot overflow."""
    result: FloatArray = np.tanh(linear * HALF)
    result += ONE
    result *= HALF
    return result


def _swish(linear: FloatArray) -> FloatArray:
    """Return `x * sigmoid(x)` in place of its argument."""
    linear *= HALF
    factor = np.tanh(linear)
    factor += ONE
    linear *= factor
    return linear


NUMPY: Mapping[str, Callable[..., FloatArray]] = {
    "mul": np.multiply,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "relu": lambda linear: np.maximum(linear, np.float32(0.0)),
}
FUSED: Mapping[Expression, Callable[[FloatArray], FloatArray]] = {ACTIVATIONS["swish"]: _swish}
