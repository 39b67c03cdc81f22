"""A hand-written game as a simulator: foragers on a line arrive, eat, starve, or leave at the end of their day.

Create a run with examples/forager.yaml, then start this as often as you like: python examples/custom_simulator.py RUN
"""

import random
import sys
from types import SimpleNamespace

from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder, connect

WIDTH, MOST, ENERGY, DAY = 20, 8, 15, 100


class Field(Simulation):
    """The game: five pieces of food, and up to `MOST` foragers that step left, stay, or step right."""

    behaviors = (BehaviorSpec("Forager", (ObservationSpec((3,)),), ActionSpec(discrete_branches=(3,))),)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:  # noqa: ARG002  an empty field: foragers arrive later
        """Begin a new day with new food."""
        if start.first:
            self.random, self.next_id = random.Random(start.seed), 0  # noqa: S311
        self.food = set(self.random.sample(range(WIDTH), 5))
        self.foragers: dict[int, SimpleNamespace] = {}

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Move every forager by one tick; sometimes a new one arrives."""
        for action in actions:
            self._live(builder, action.agent, int(action.discrete[0]) - 1)
        if len(self.foragers) < MOST and self.random.random() < 0.2:
            self.foragers[self.next_id] = SimpleNamespace(position=self.random.randrange(WIDTH), energy=ENERGY, age=0)
            builder.request_decision(self.next_id, self._look(self.foragers[self.next_id]))
            self.next_id += 1

    def _live(self, builder: StepBuilder, agent: int, move: int) -> None:
        forager = self.foragers[agent]
        forager.position = min(max(forager.position + move, 0), WIDTH - 1)
        forager.energy, forager.age, reward = forager.energy - 1, forager.age + 1, 0.0
        if forager.position in self.food:
            self.food ^= {forager.position, self.random.choice(sorted(set(range(WIDTH)) - self.food))}
            forager.energy, reward = ENERGY, 1.0
        if forager.energy == 0 or forager.age == DAY:  # starving terminates; the day's end truncates
            builder.end_episode(agent, self._look(self.foragers.pop(agent)), reward, truncated=forager.energy > 0)
        else:
            builder.request_decision(agent, self._look(forager), reward)

    def _look(self, forager: SimpleNamespace) -> list[float]:
        nearest = min((cell - forager.position for cell in self.food), key=abs)
        return [forager.position / WIDTH, nearest / WIDTH, forager.energy / ENERGY]


if __name__ == "__main__":
    print(connect(Field(), run=sys.argv[1]).reason)
