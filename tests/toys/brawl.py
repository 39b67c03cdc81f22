"""Teams of any number and size of which each agent chooses high or low for a few steps; who chose high more often wins.

A team is a group: its reward is given to all of its members together, at the end.
"""

from collections.abc import Mapping

from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder

STEPS = 4


class Brawl(Simulation):
    """One game after the other."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.behaviors = [BehaviorSpec(name, (ObservationSpec((1,)),), ActionSpec(0, (2,))) for name in sizes]
        self.sizes = sizes
        self.starts: list[ResetInfo] = []
        self.games = 0
        self._scores: dict[str, int] = {}
        self._missing = 0
        self._step = 0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self.starts.append(start)
        self._begin(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        for action in actions:
            self._scores[action.behavior] += int(action.discrete[0])
            self._missing -= 1
        if self._missing:
            return  # teams are answered apart
        self._step += 1
        if self._step < STEPS:
            self._ask(builder)
            return
        self.games += 1
        shares = {name: score / self.sizes[name] for name, score in self._scores.items()}
        best = max(shares.values())
        is_draw = list(shares.values()).count(best) > 1
        for group, name in enumerate(self.sizes, 1):
            reward = (0.0 if is_draw else 1.0) if shares[name] == best else -1.0
            for agent in range(self.sizes[name]):
                builder.end_episode(agent=agent, observation=[0.0], behavior=name, group=group, group_reward=reward)
        self._begin(builder)

    def _begin(self, builder: StepBuilder) -> None:
        self._scores = dict.fromkeys(self.sizes, 0)
        self._step = 0
        self._ask(builder)

    def _ask(self, builder: StepBuilder) -> None:
        self._missing = sum(self.sizes.values())
        for group, (name, size) in enumerate(self.sizes.items(), 1):
            for agent in range(size):
                builder.request_decision(agent=agent, observation=[1.0], behavior=name, group=group)
