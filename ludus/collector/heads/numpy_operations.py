"""The operations of heads in numpy."""

from typing import Any

import numpy as np

from ludus.collector.activations import FloatArray


class NumpyOperations:
    """Implements `head.Operations`."""

    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    tanh = staticmethod(np.tanh)
    absolute = staticmethod(np.absolute)

    @staticmethod
    def columns(values: FloatArray, start: int, stop: int) -> FloatArray:
        """Return some columns, a view."""
        return values[:, start:stop]

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
