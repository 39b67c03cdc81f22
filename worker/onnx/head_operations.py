"""The operations of heads (`ludus.collector.heads`) as ONNX nodes of opset 9."""

from collections.abc import Callable
from itertools import count
from typing import Any

from worker.onnx.graph import FLOAT, Graph


class Node:
    """A tensor of a graph under construction. Operators add nodes to the graph."""

    def __init__(self, operations: "GraphOperations", name: str) -> None:
        self._operations = operations
        self.name = name

    def __getitem__(self, key: tuple[slice, slice], /) -> "Node":
        """Return some columns."""
        return self._operations.node("Slice", self, axes=[1], starts=[key[1].start or 0], ends=[key[1].stop])

    def __add__(self, other: "Node | float", /) -> "Node":
        """Return the sum."""
        return self._operations.node("Add", self, other)

    def __sub__(self, other: "Node | float", /) -> "Node":
        """Return the difference."""
        return self._operations.node("Sub", self, other)

    def __rsub__(self, other: float, /) -> "Node":
        """Return `other - self`, without a constant on the left of a subtraction."""
        return self._operations.node("Add", self * -1.0, other)

    def __mul__(self, other: "Node | float", /) -> "Node":
        """Return the product."""
        return self._operations.node("Mul", self, other)

    def __rmul__(self, other: "Node | float", /) -> "Node":
        """Return the product."""
        return self._operations.node("Mul", self, other)

    def __truediv__(self, other: "Node | float", /) -> "Node":
        """Return the quotient."""
        return self._operations.node("Div", self, other)


def _unary(operation: str) -> "Callable[[GraphOperations, Node], Node]":
    return lambda on, values: on.node(operation, values)


class GraphOperations:
    """Implements `ludus.collector.heads.Operations`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._numbers = count()

    def node(self, operation: str, *operands: Node | float, **attributes: Any) -> Node:
        """Add a node. Operands are nodes or numbers."""
        inputs = [
            operand.name if isinstance(operand, Node) else self.graph.constant(f"head.number.{operand}", float(operand))
            for operand in operands
        ]
        output = f"head/{operation.lower()}.{next(self._numbers)}"
        return Node(self, self.graph.node(operation, inputs, output, **attributes))

    exp, log, tanh, absolute = (_unary(operation) for operation in ("Exp", "Log", "Tanh", "Abs"))

    def log1p(self, values: Node) -> Node:
        """Return the logarithms of `1 + x`."""
        return self.log(values + 1.0)

    def clip(self, values: Node, least: float, most: float) -> Node:
        """Return values limited to `[least, most]`."""
        return self.node("Clip", values, min=least, max=most)

    def largest(self, values: Node) -> Node:
        """Return the largest value of each row, `(B, 1)`."""
        return self.node("ReduceMax", values, axes=[1], keepdims=1)

    def total(self, values: Node) -> Node:
        """Return the sum of each row, `(B, 1)`."""
        return self.node("ReduceSum", values, axes=[1], keepdims=1)

    def at_least(self, values: Node, least: Node | float) -> Node:
        """Return 1.0 where a value is `least` or more, else 0.0."""
        less = self.node("Cast", self.node("Less", values, least), to=FLOAT)
        return 1.0 - less
