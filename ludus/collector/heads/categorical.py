"""Discrete choices in proportion to the exponentials of the last layer's columns."""

from typing import Any, ClassVar

from ludus.collector.heads.head import A, Operations, Parameter


class Categorical:
    """The columns are the logits."""

    explores: ClassVar[bool] = False
    parameters: ClassVar[tuple[Parameter, ...]] = ()

    def logits(self, on: Operations[A], values: A, parameters: Any) -> A:
        """Return the columns."""
        del on, parameters
        return values
