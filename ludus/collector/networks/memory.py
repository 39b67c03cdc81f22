"""The memory of a network: one step of an LSTM (Hochreiter & Schmidhuber 1997). The state is `[h | c]`, half each.

Gates lie in torch's order: input, forget, cell, output. A sigmoid is `(1 + tanh(x / 2)) / 2`, so the weights of three
gates are halved when they are loaded, and one tanh answers all four.
"""

import numpy as np

from ludus.collector.activations import HALF, FloatArray
from ludus.collector.networks.dense import Sections

CELL = 2
"""The place of the gate that is a tanh itself."""


class Memory:
    """An LSTM cell. Dimensions: `B` rows, `I` inputs, `U` width of `h`, `S = 2 U`."""

    def __init__(self, sections: Sections, name: str) -> None:
        inputs, hidden = sections[f"{name}.input_weight"], sections[f"{name}.hidden_weight"]
        self._units = units = hidden.shape[1]
        weight = np.concatenate([inputs, hidden], 1).T.copy()  # (I + U, 4 U)
        bias = sections[f"{name}.input_bias"] + sections[f"{name}.hidden_bias"]
        scale = np.full(4 * units, HALF)
        scale[CELL * units : (CELL + 1) * units] = 1.0
        self._weight: FloatArray = weight * scale  # by powers of two: exact
        self._bias: FloatArray = bias * scale

    def __call__(self, inputs: FloatArray, state: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Return `h` after the step, `(B, U)`, and the whole state, `(B, S)`. `state` None is all zeros."""
        units = self._units
        if state is None:
            state = np.zeros((len(inputs), 2 * units), np.float32)
        gates = np.concatenate([inputs, state[:, :units]], 1) @ self._weight
        gates += self._bias
        np.tanh(gates, out=gates)
        entering, forgetting, candidate, leaving = (gates[:, gate * units : (gate + 1) * units] for gate in range(4))
        after = np.empty((len(inputs), 2 * units), np.float32)
        hidden, cell = after[:, :units], after[:, units:]
        for half in (entering, forgetting, leaving):
            np.multiply(half, HALF, out=half)
            np.add(half, HALF, out=half)
        np.multiply(forgetting, state[:, units:], out=cell)
        entering *= candidate
        cell += entering
        np.tanh(cell, out=hidden)
        hidden *= leaving
        return np.ascontiguousarray(hidden), after
