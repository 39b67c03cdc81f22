"""Dense layers and a layer norm. Dimensions: `B` rows, `I` inputs, `U` outputs."""

from collections.abc import Callable, Mapping

import numpy as np

from ludus.collector.activations import FloatArray, numpy_function

Sections = Mapping[str, FloatArray]
"""The parts of a flat vector by name (`ActorLayout.sections`)."""
NORM_EPSILON = np.float32(1e-5)
swish = numpy_function("swish")
"""The activation of encoders, whatever that of the hidden layers is. It may overwrite its argument."""


class Dense:
    """A linear layer."""

    def __init__(self, weight: FloatArray, bias: FloatArray) -> None:
        """`weight` is `(U, I)`, as torch has it."""
        # A transposed copy: a product with a transposed view costs half as much again for a dozen rows.
        self.weight = np.ascontiguousarray(weight.T)
        self.bias = bias

    @classmethod
    def of(cls, sections: Sections, name: str) -> "Dense":
        """Make the layer of a name."""
        return cls(sections[f"{name}.weight"], sections[f"{name}.bias"])

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Return `(..., U)` of `(..., I)`, a new array."""
        outputs: FloatArray = inputs @ self.weight
        outputs += self.bias
        return outputs


class DenseBody:
    """Hidden layers: linear, activation, linear, activation, ..."""

    def __init__(
        self, sections: Sections, name: str, num_layers: int, activate: Callable[[FloatArray], FloatArray]
    ) -> None:
        self._layers = [Dense.of(sections, f"{name}.layers.{layer}") for layer in range(num_layers)]
        self._activate = activate

    def __call__(self, inputs: FloatArray) -> FloatArray:
        """Return `(B, U)` of `(B, I)`."""
        for layer in self._layers:
            inputs = self._activate(layer(inputs))
        return inputs


def layer_norm(inputs: FloatArray) -> FloatArray:
    """Return inputs with mean 0 and variance 1 over the last dimension, a new array."""
    width = np.float32(inputs.shape[-1])
    mean = np.add.reduce(inputs, axis=-1, keepdims=True)
    mean /= width
    normed: FloatArray = inputs - mean
    variance = np.einsum("...i,...i->...", normed, normed)[..., None]  # a third of the time of a square and its sum
    variance /= width
    variance += NORM_EPSILON
    np.sqrt(variance, out=variance)
    normed /= variance
    return normed
