"""Rock, paper, scissors: two teams of one agent choose at once; each move beats the one before it in the circle."""

from ludus.protocol.batches import Outcome
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder

ROCK, PAPER, SCISSORS = range(3)
OUTCOMES = {0: Outcome.DRAW, 1: Outcome.WIN, 2: Outcome.LOSS}
"""By how far a move lies behind the other one, round the circle."""
REWARDS = {Outcome.DRAW: 0.0, Outcome.WIN: 1.0, Outcome.LOSS: -1.0}


class Roshambo(Simulation):
    """One game after the other, of one move each."""

    behaviors = tuple(
        BehaviorSpec(f"Roshambo?team={team}", (ObservationSpec((1,)),), ActionSpec(0, (3,))) for team in (0, 1)
    )

    def __init__(self) -> None:
        self._moves: dict[int, int] = {}

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        self._begin(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            self._moves[int(action.behavior[-1])] = int(action.discrete[0])
        if len(self._moves) < 2:
            return  # teams are answered apart
        for team, spec in enumerate(self.behaviors):
            outcome = OUTCOMES[(self._moves[team] - self._moves[1 - team]) % 3]
            builder.end_episode(
                agent=team, observation=[0.0], reward=REWARDS[outcome], outcome=outcome, behavior=spec.name
            )
        self._begin(builder)

    def _begin(self, builder: StepBuilder) -> None:
        self._moves.clear()
        for team, spec in enumerate(self.behaviors):
            builder.request_decision(agent=team, observation=[1.0], behavior=spec.name)
