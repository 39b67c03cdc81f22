"""A whole network in numpy, from observations to the head's columns, of the parts of a flat vector.

It is made anew with each version of the weights, which are copied into the forms in which the products are fastest.

numpy, because edge collectors have no torch, and act as local ones do, bit by bit. Times beside those of the learner's
own modules in eager torch, one thread of one core, without sampling (numpy 2.4, torch 2.13, 2026-11-24; beside other
work), as torch's time over numpy's for 1, 12 and 64 rows: `simple` on 84 x 84 x 3: 2.6, 0.84, 0.61; `nature_cnn` on the
same: 1.9, 0.91, 0.71; `resnet` on 64 x 64 x 3: 1.2, 0.56, 0.44; `match3` on 8 x 8 x 6: 2.7, 2.0, 1.6; 20 entities of 8
and a vector: 2.7, 1.6, 1.05; a vector and an LSTM of 128: 6.8, 4.1, 2.1; a hypernetwork: 1.3, 1.2, 0.95. A run with
large pictures and many agents in a batch gives its collectors a GPU.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from ludus.collector.activations import FloatArray, numpy_function
from ludus.collector.layout import ActorLayout
from ludus.collector.networks.conditional import ConditionalBody
from ludus.collector.networks.dense import Dense, DenseBody, Sections
from ludus.collector.networks.encoder import ObservationEncoder
from ludus.collector.networks.memory import Memory


class Network:
    """Any actor's network with its weights. Dimensions: `B` rows, `H` columns of the head, `S` width of the state."""

    def __init__(self, layout: ActorLayout, sections: Sections) -> None:
        body, activate = layout.body, numpy_function(layout.body.activation)
        self._encoder = ObservationEncoder(body, sections, "body.encoder")
        self._goals = body.goal_columns()
        self._hidden: DenseBody | None = None
        self._conditional: ConditionalBody | None = None
        if body.conditioned:
            self._conditional = ConditionalBody(sections, "body.hidden", body.num_layers, activate)
        else:
            self._hidden = DenseBody(sections, "body.hidden", body.num_layers, activate)
        self._memory = Memory(sections, "body.memory") if body.memory_size else None
        self._head = Dense.of(sections, "head")

    def forward(
        self, observations: Sequence[NDArray[np.generic]], memory: FloatArray | None
    ) -> tuple[FloatArray, FloatArray | None]:
        """Return the columns of the head, `(B, H)`, and the state after the step, `(B, S)`, None without memory."""
        encoding = self._encoder(observations)
        if self._conditional is not None:
            goal = [encoding[:, start:stop] for start, stop in self._goals]
            features = self._conditional(encoding, goal[0] if len(goal) == 1 else np.concatenate(goal, 1))
        else:
            assert self._hidden is not None
            features = self._hidden(encoding)
        if self._memory is None:
            return self._head(features), None
        features, state = self._memory(features, memory)
        return self._head(features), state


def sections_of(layout: ActorLayout, flat: FloatArray) -> dict[str, FloatArray]:
    """Return the parts of an actor's flat vector, `(n,)`, by name; views of it.

    Of `P` flat vectors, `(P, n)`, each part has a first dimension of `P`.
    """
    sections, start = dict[str, FloatArray](), 0
    for name, shape in layout.sections():
        sections[name] = flat[..., start : start + prod(shape)].reshape(*flat.shape[:-1], *shape)
        start += prod(shape)
    return sections
