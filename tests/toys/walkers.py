"""ML-Agents' walk (`tests.toys.walk`) once for each of several teams, as one simulation: nobody minds the others."""

from collections.abc import Sequence
from dataclasses import replace

from ludus.protocol.batches import Array, BehaviorBatch
from ludus.protocol.spec import ActionSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder
from tests.toys.walk import STEP, Line


class Walkers(Simulation):
    """One agent for each name, on a line of its own."""

    def __init__(self, names: Sequence[str], actions: ActionSpec, *, step: float = STEP, seed: int = 1) -> None:
        self.lines = {name: Line(actions, step=step, seed=seed + place) for place, name in enumerate(names)}
        self.behaviors = [replace(line.spec, name=name) for name, line in self.lines.items()]
        self.resets = 0
        self._actions: dict[str, tuple[Array, Array]] = {}

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        self.resets += 1
        self._actions.clear()
        for name, line in self.lines.items():
            line.deal()
            self._tell(builder, name, line.begin())

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for batch in actions.batches:
            self._actions[batch.behavior] = batch.continuous, batch.discrete
        if len(self._actions) < len(self.lines):
            return  # teams are answered apart
        for name, line in self.lines.items():
            self._tell(builder, name, line.play(*self._actions[name]))
        self._actions.clear()

    def returns(self, name: str, newest: int = 5) -> list[float]:
        """Return the newest returns of a team."""
        return self.lines[name].returns[-newest:]

    def _tell(self, builder: StepBuilder, name: str, batch: BehaviorBatch) -> None:
        if batch.terminals is not None:
            builder.end_episodes(batch.terminals, behavior=name)
        if batch.decisions is not None:
            builder.request_decisions(batch.decisions, behavior=name)
