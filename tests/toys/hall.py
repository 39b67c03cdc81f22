"""A long hall whose far end pays: a walk at random hardly ever gets there, and nothing on the way tells."""

import numpy as np

from ludus.protocol.batches import Array
from ludus.protocol.spec import ActionSpec, ObservationSpec
from tests.toys.drills import Drill, one_hot


class Hall(Drill):
    """Begins at one end, steps left or right; the other end pays 1 for each step spent there.

    Best per episode: steps - cells + 1. A walk at random: close to 0.
    """

    name = "Hall"

    def __init__(self, *, cells: int = 24, steps: int = 32, agents: int = 32, seed: int = 1) -> None:
        super().__init__([ObservationSpec((cells,), "place")], ActionSpec(0, (2,)), agents, seed)
        self.cells, self.length = cells, steps
        self.seen = np.zeros(cells, np.int64)
        """How often agents were in each cell."""

    def deal(self) -> None:
        self.place = np.zeros(self.agents, np.int64)

    def see(self) -> tuple[Array, ...]:
        np.add.at(self.seen, self.place, 1)
        return (one_hot(self.place, self.cells),)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        self.place = np.clip(self.place + 2 * discrete[:, 0] - 1, 0, self.cells - 1)
        return (self.place == self.cells - 1).astype(np.float32)
