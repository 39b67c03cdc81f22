"""Pictures, a vector, and continuous beside discrete actions: a moth flies to the light, and rests when it is there.

Create a run with examples/lantern.yaml, then: python examples/lantern.py RUN
"""

import sys

import numpy as np

from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder, connect

SIZE, MOTHS, NIGHT = 20, 8, 60


class Lantern(Simulation):
    """The game: `MOTHS` moths, each with a night of its own. They see the light from where they are."""

    waits_for_all = True
    behaviors = (
        BehaviorSpec(
            "Moth",
            (ObservationSpec((1, SIZE, SIZE), "eye", "uint8"), ObservationSpec((2,), "speed")),
            ActionSpec(continuous_size=2, discrete_branches=(2,)),  # where to fly; 0 to fly on, 1 to rest
        ),
    )

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin a night for each moth."""
        if start.first:
            self.random = np.random.default_rng(start.seed)
        self.place, self.speed = np.zeros((MOTHS, 2)), np.zeros((MOTHS, 2))
        self.age = np.zeros(MOTHS, int)
        for moth in range(MOTHS):
            self._begin(builder, moth)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Move all moths."""
        for action in actions:
            moth = action.agent
            self.speed[moth] = action.continuous
            self.place[moth] = np.clip(self.place[moth] + self.speed[moth], -SIZE // 2, SIZE // 2)
            self.age[moth] += 1
            far = float(np.abs(self.place[moth]).max())
            if action.discrete[0] == 1:  # it rests: the better, the nearer to the light
                builder.end_episode(moth, self._look(moth), 1.0 - far / SIZE * 4)
            elif self.age[moth] == NIGHT:
                builder.end_episode(moth, self._look(moth), truncated=True)
            else:
                builder.request_decision(moth, self._look(moth), reward=-0.01)
                continue
            self._begin(builder, moth)

    def _begin(self, builder: StepBuilder, moth: int) -> None:
        self.place[moth], self.speed[moth], self.age[moth] = self.random.uniform(-8, 8, 2), 0, 0
        builder.request_decision(moth, self._look(moth))

    def _look(self, moth: int) -> list[np.ndarray]:
        """The light is at the origin: it is drawn where it lies as seen from the moth."""
        rows, columns = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
        row, column = -self.place[moth]
        eye = 255 * np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / 8)
        return [eye[None].astype(np.uint8), self.speed[moth]]


if __name__ == "__main__":
    print(connect(Lantern(), run=sys.argv[1]).reason)
