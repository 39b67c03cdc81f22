"""Hidden layers in numpy, by `network_settings.hidden_type`. The learner's are in `worker.learning.networks.dense` and
`worker.learning.networks.normed`, which have the sources.

Dimensions: `B` rows. Of several policies: `U` policies, `N` rows of each.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from ludus.collector.activations import FloatArray, numpy_function
from ludus.collector.layout import NORM_EPSILON, BodyLayout

Linear = tuple[FloatArray, FloatArray]
"""Weight `(in, out)` and bias `(1, out)`; of `P` policies with a first dimension of `P`."""
Layers = list[Linear]
Function = Callable[[FloatArray], FloatArray]
Sections = Mapping[str, FloatArray]
"""The parts of a flat vector, by name."""


def hidden_layers(layout: BodyLayout, sections: Sections) -> Function:
    """Return the function from vectors, `(B, O)`, to the features, `(B, U)`."""
    activate, numbers = numpy_function(layout.activation), range(layout.num_layers)
    if layout.hidden_type == "simba":
        embedding, last = linear(sections, "body.hidden.embedding"), norm(sections, "body.hidden.norm")
        blocks = [
            (
                norm(sections, f"body.hidden.blocks.{block}.norm"),
                linear(sections, f"body.hidden.blocks.{block}.widening"),
                linear(sections, f"body.hidden.blocks.{block}.narrowing"),
            )
            for block in numbers
        ]

        def residual(vectors: FloatArray) -> FloatArray:
            hidden = dense(vectors, [embedding])
            for normalize, widening, narrowing in blocks:
                hidden += dense(dense(normalize(hidden), [widening], activate), [narrowing])
            return last(hidden)

        return residual
    layers = [linear(sections, f"body.hidden.layers.{layer}") for layer in numbers]
    if layout.hidden_type == "layer_norm":
        pairs = [(layer, norm(sections, f"body.hidden.norms.{index}")) for index, layer in enumerate(layers)]

        def normed(vectors: FloatArray) -> FloatArray:
            for layer, normalize in pairs:
                vectors = activate(normalize(dense(vectors, [layer])))
            return vectors

        return normed
    return partial(dense, layers=layers, activate=activate)


def linear(sections: Sections, name: str) -> Linear:
    """Return a linear layer of an actor, or of several policies."""
    # Transposed copies: a product with a transposed view costs half as much again for a dozen rows.
    weight = np.ascontiguousarray(np.swapaxes(sections[f"{name}.weight"], -2, -1))
    return weight, sections[f"{name}.bias"][..., None, :]  # one row, for all rows of a batch


def norm(sections: Sections, name: str) -> Function:
    """Return a layer norm over the last dimension (Ba et al. 2016)."""
    scale, shift, epsilon = sections[f"{name}.weight"], sections[f"{name}.bias"], np.float32(NORM_EPSILON)

    def normalize(inputs: FloatArray) -> FloatArray:
        centred: FloatArray = inputs - inputs.mean(-1, keepdims=True)
        centred /= np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon)
        centred *= scale
        centred += shift
        return centred

    return normalize


def dense(inputs: FloatArray, layers: Layers, activate: Function | None = None) -> FloatArray:
    """Return what layers make of `(B, in)`, or those of `U` policies of `(U, N, in)`; an activation follows each."""
    for weight, bias in layers:
        inputs = inputs @ weight
        inputs += bias
        if activate is not None:
            inputs = activate(inputs)
    return inputs
