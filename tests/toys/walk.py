"""The walk of ML-Agents' own end-to-end checks: one agent on a line, told at every step to which end it shall go.

A step is at most 0.2 long. The end that was named pays 1 plus what the shortest way costs, the other end costs as much,
every other step 0.01: best return 1.01, chance about 0. ML-Agents demands 0.9 within a few hundred steps.
"""

from typing import Any

import numpy as np

from ludus.demonstrations import Demonstration, merge
from ludus.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.wire.batches import Array, BehaviorBatch, DecisionBatch, TerminalBatch

STEP, PENALTY = 0.2, 0.01
BEST = 1.0 + PENALTY * (int(1.0 / STEP) + 1)


class Walk:
    """Sees its goal: -1 or 1, as a picture black or white. Continuous: how far to go. Discrete: 0 is down, 1 is up."""

    def __init__(self, *, discrete: bool, picture: bool = False, seed: int = 1) -> None:
        self.discrete = discrete
        seen = ObservationSpec((3, 20, 20), "goal", "uint8") if picture else ObservationSpec((1,), "goal")
        actions = ActionSpec(discrete_branches=(2,)) if discrete else ActionSpec(1)
        self.spec = BehaviorSpec("Walk", (seen,), actions)
        self.returns: list[float] = []
        self._rng = np.random.default_rng(seed)
        self._deal()

    def score(self) -> float:
        """Return the mean return of the episodes that ended since the last call."""
        returns, self.returns = self.returns, []
        return float(np.mean(returns)) if returns else float("nan")

    def begin(self) -> BehaviorBatch:
        return BehaviorBatch("Walk", self._decision(0.0), None)

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch:
        wish = 2.0 * discrete[0, 0] - 1.0 if self.discrete else float(continuous[0, 0])
        self.position += float(np.clip(wish, -STEP, STEP))
        is_end = abs(self.position) >= 1.0 - 1e-9
        reward = BEST * np.sign(self.position) * self.goal if is_end else -PENALTY
        self._earned += reward
        if not is_end:
            return BehaviorBatch("Walk", self._decision(reward), None)
        self.returns.append(self._earned)
        end = TerminalBatch(np.zeros(1, np.int32), np.array([reward], np.float32), self._see(), np.zeros(1, bool))
        self._deal()
        return BehaviorBatch("Walk", self._decision(0.0), end)

    def _deal(self) -> None:
        self.goal, self.position, self._earned = float(self._rng.choice([-1, 1])), 0.0, 0.0

    def _see(self) -> tuple[Array, ...]:
        return (self.shown(1),)

    def shown(self, rows: int) -> Array:
        """Return what is seen, so many times."""
        (spec,) = self.spec.observations
        value = 255 * (self.goal > 0) if spec.dtype == "uint8" else self.goal
        return np.full((rows, *spec.shape), value, spec.dtype)

    def _decision(self, reward: float) -> DecisionBatch:
        return DecisionBatch(np.zeros(1, np.int32), np.array([reward], np.float32), self._see())


def shown(*, discrete: bool, picture: bool = False, episodes: int = 20, seed: int = 5) -> Demonstration:
    """Return episodes of somebody who goes where it shall."""
    game = Walk(discrete=discrete, picture=picture, seed=seed)
    return merge([_episode(game) for _ in range(episodes)])


def _episode(game: Walk) -> Demonstration:
    goal, seen, rewards = game.goal, game.shown(1), list[float]()
    message: Any = None
    while message is None or message.terminals is None:
        choice = np.array([[int(goal > 0)]])
        message = game.play(np.full((1, 1), goal), choice)
        rewards.append(float((message.terminals or message.decisions).rewards[0]))
    steps, columns = len(rewards), game.spec.actions.continuous_size
    ended = np.arange(steps) == steps - 1
    return Demonstration(
        spec=game.spec,
        observations=(np.repeat(seen, steps, 0),),
        continuous=np.full((steps, columns), goal, np.float32),
        discrete=np.full((steps, 1 - columns), int(goal > 0), np.int32),
        rewards=np.array(rewards, np.float32),
        terminated=ended,
        truncated=np.zeros(steps, np.bool_),
        starts=np.zeros(1, np.int64),
        final_observations=(seen,),
        from_start=np.ones(1, np.bool_),
    )
