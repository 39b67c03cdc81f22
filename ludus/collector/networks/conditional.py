"""Goal conditioning in numpy: a hypernetwork makes the last hidden layer (`worker.learning.networks.conditional`)."""

from collections.abc import Callable

from ludus.collector.activations import FloatArray
from ludus.collector.layout import HYPER_LAYERS
from ludus.collector.networks.dense import Dense, DenseBody, Sections, layer_norm


class ConditionalBody:
    """Hidden layers of which a hypernetwork makes the last. Dimensions: `B` rows, `I` inputs, `K` goal, `U` units."""

    def __init__(
        self, sections: Sections, name: str, num_layers: int, activate: Callable[[FloatArray], FloatArray]
    ) -> None:
        self._before = DenseBody(sections, f"{name}.before", num_layers - 1, activate)
        self._hyper = DenseBody(sections, f"{name}.hyper", HYPER_LAYERS, activate)
        self._weights = Dense.of(sections, f"{name}.weights")
        self._bias = sections[f"{name}.bias"]
        self._activate = activate

    def __call__(self, inputs: FloatArray, goal: FloatArray) -> FloatArray:
        """Return `(B, U)` of inputs `(B, I)` under their goals `(B, K)`."""
        hidden = self._before(inputs)
        weights = self._weights(layer_norm(self._hyper(goal)))  # (B, inputs * U)
        weights = weights.reshape(len(inputs), hidden.shape[1], len(self._bias))
        linear: FloatArray = (hidden[:, None] @ weights)[:, 0]
        linear += self._bias
        return self._activate(linear)
