"""ML-Agents' walk (`tests.toys.walk`) once for each of several teams, as one simulation: nobody minds the others."""

from collections.abc import Sequence
from dataclasses import replace

from ludus.protocol.batches import Array, BehaviorBatch
from ludus.protocol.spec import ActionSpec
from ludus.sdk.simulation import Simulation, Start
from ludus.sdk.steps import Actions, Turn
from tests.toys.walk import STEP, Line


class Walkers(Simulation):
    """One agent for each name, on a line of its own."""

    def __init__(self, names: Sequence[str], actions: ActionSpec, *, step: float = STEP, seed: int = 1) -> None:
        self.lines = {name: Line(actions, step=step, seed=seed + place) for place, name in enumerate(names)}
        self.behaviors = [replace(line.spec, name=name) for name, line in self.lines.items()]
        self.resets = 0
        self._actions: dict[str, tuple[Array, Array]] = {}

    def reset(self, turn: Turn, start: Start) -> None:
        del start
        self.resets += 1
        self._actions.clear()
        for name, line in self.lines.items():
            line.deal()
            self._tell(turn, name, line.begin())

    def step(self, turn: Turn, actions: Actions) -> None:
        for batch in actions.batches:
            self._actions[batch.behavior] = batch.continuous, batch.discrete
        if len(self._actions) < len(self.lines):
            return  # teams are answered apart
        for name, line in self.lines.items():
            self._tell(turn, name, line.play(*self._actions[name]))
        self._actions.clear()

    def returns(self, name: str, newest: int = 5) -> list[float]:
        """Return the newest returns of a team."""
        return self.lines[name].returns[-newest:]

    def _tell(self, turn: Turn, name: str, batch: BehaviorBatch) -> None:
        if batch.terminals is not None:
            turn.end_batch(batch.terminals, behavior=name)
        if batch.decisions is not None:
            turn.decide_batch(batch.decisions, behavior=name)
