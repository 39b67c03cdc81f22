"""A simulation in which built-in players play some of the teams.

    simulation = ScriptedSimulation(Chess(), {"Chess?team=1": RandomPlayer(Chess.behaviors[1].actions)})

The server hears of the other behaviors only. Each time one of their agents' episodes ends with an outcome, it is
reported: `Environment/Win`, `Environment/Draw` and `Environment/Loss` are 1 or 0, so that their means over a summary
period are the shares of games that were won, drawn and lost.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from ludus.play.players import Player, answer
from ludus.protocol.batches import ActionBatch, Outcome
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import MAX_STATS, BehaviorLayout
from ludus.sdk.seeds import environment_seed
from ludus.sdk.simulation import ResetInfo, Simulation, SimulationWrapper
from ludus.sdk.steps import Actions, StepBuilder

OUTCOME_KEYS: Final[Mapping[Outcome, str]] = {
    Outcome.WIN: "Environment/Win",
    Outcome.DRAW: "Environment/Draw",
    Outcome.LOSS: "Environment/Loss",
}

MOST_REPORTED: Final = MAX_STATS // 2 // len(OUTCOME_KEYS)
"""Most outcomes that are reported in one step: a step has room for so many stats. More games may end at once."""


class ScriptedSimulation(SimulationWrapper):
    """Wraps a simulation; `players` act for announced behaviors, by their names."""

    def __init__(self, simulation: Simulation, players: Mapping[str, Player]) -> None:
        """Raise ValueError if no behavior is left to be trained, or a player has no behavior."""
        names = [spec.name for spec in simulation.behaviors]
        unknown = sorted(players.keys() - set(names))
        if unknown:
            raise ValueError(f"there is no {unknown[0]!r} to be played, only {', '.join(names)}")
        if players.keys() == set(names):
            raise ValueError(f"no team is left to train: {', '.join(names)} would all be scripted")
        super().__init__(simulation)
        self._players = dict(players)
        self._layouts = {spec.name: BehaviorLayout(spec) for spec in simulation.behaviors}
        self._answers: list[ActionBatch] = []
        """Actions of the built-in players for the next step."""

    @property
    def behaviors(self) -> Sequence[BehaviorSpec]:  # type: ignore[override]  # a game may know them late
        """Those that the run acts for."""
        return [spec for spec in self._simulation.behaviors if spec.name not in self._players]

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin again. The first time, built-in players begin to draw from the simulator's seed on."""
        for number, player in enumerate(self._players.values()):
            player.begin(environment_seed(start.seed, number) if start.first else None)
        inner = self._turn(builder)
        self._simulation.reset(inner, start)
        self._pass_on(inner, builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Carry out the actions of the run and of the built-in players."""
        inner = self._turn(builder)
        self._simulation.step(inner, Actions([*actions.batches, *self._answers]))
        self._pass_on(inner, builder)

    def _turn(self, outer: StepBuilder) -> StepBuilder:
        # Only the outer builder knows the agents that wait for the server; those of built-in players never wait.
        return StepBuilder(self._layouts, {}, outer.parameters)

    def _pass_on(self, inner: StepBuilder, builder: StepBuilder) -> None:
        """Answer the built-in players' agents, and report the others to the server."""
        for spec in inner.announced:
            self._layouts[spec.name] = BehaviorLayout(spec)
            builder.announce(spec)
        for stat in inner.stats:
            builder.report(*stat)
        batches = inner.batches()
        self._answers = answer(self._players, batches)
        for name, decisions, terminals in batches:
            if name in self._players:
                continue
            if terminals is not None:
                outcomes = [] if terminals.outcomes is None else terminals.outcomes[terminals.outcomes != 0].tolist()
                for value in outcomes[:MOST_REPORTED]:
                    for outcome, key in OUTCOME_KEYS.items():
                        builder.report(key, float(value == outcome))
                builder.end_episodes(terminals, name)
            if decisions is not None:
                builder.request_decisions(decisions, name)
