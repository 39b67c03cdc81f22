"""The walk of ML-Agents' own end-to-end checks: one agent on a line, told at every step to which end it shall go.

A step is at most 0.2 long. The end that was named pays 1 plus what the shortest way costs, the other end costs as much,
every other step 0.01: best return 1.02, chance below 0. ML-Agents demands 0.9 within a few hundred steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ludus.demonstrations import Demonstration, merge
from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec

ON_POLICY: dict[str, Any] = {
    "batch_size": 16,
    "buffer_size": 64,
    "learning_rate": 5e-3,
    "learning_rate_schedule": "constant",
}
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "ppo": ON_POLICY,
    "poca": ON_POLICY,
    "sac": {
        "batch_size": 8,
        "buffer_size": 5000,
        "buffer_init_steps": 100,
        "learning_rate": 5e-3,
        "learning_rate_schedule": "constant",
        "tau": 0.01,
        "init_entcoef": 0.01,
    },
}
"""Of ML-Agents' own checks, by trainer."""
STEP, PENALTY = 0.2, 0.01
BEST = 1.0 + PENALTY * (int(1.0 / STEP) + 1)
NUMBER = ObservationSpec((1,), "goal")


def painted(specs: Sequence[ObservationSpec], goals: Array) -> tuple[Array, ...]:
    """Return goals, one a row, as observations of these kinds: each element is the goal, a byte is black or white."""
    return tuple(
        np.broadcast_to(
            (255 * (goals > 0) if spec.dtype == "uint8" else goals).reshape(-1, *[1] * len(spec.shape)),
            (len(goals), *spec.shape),
        ).astype(spec.dtype)
        for spec in specs
    )


class Line:
    """Walks with any actions and observations.

    Each continuous action is how far to go on a line of its own, each branch (0 is down, 1 is up) too. The walk is over
    when the agent is at an end of all its lines at once; each line pays its part. Who is `told` for so many moves sees
    nothing from then on: a step makes one move on each line.
    """

    def __init__(
        self,
        actions: ActionSpec,
        sees: Sequence[ObservationSpec] = (NUMBER,),
        *,
        step: float = STEP,
        told: float = np.inf,
        seed: int = 1,
    ) -> None:
        self.spec = BehaviorSpec("Walk", tuple(sees), actions)
        self.step, self.told = step, told
        self.lines = actions.continuous_size + len(actions.discrete_branches)
        self.returns: list[float] = []
        self._rng = np.random.default_rng(seed)
        self.deal()

    def score(self) -> float:
        """Return the mean return of the episodes that ended since the last call."""
        returns, self.returns = self.returns, []
        return float(np.mean(returns)) if returns else float("nan")

    def begin(self) -> BehaviorBatch:
        return BehaviorBatch("Walk", self._decision(0.0), None)

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch:
        wishes = np.concatenate([continuous[0], 2.0 * discrete[0] - 1.0])
        self.positions = np.clip(self.positions + np.clip(wishes, -self.step, self.step), -1.0, 1.0)
        self._moves += self.lines
        is_end = bool((np.abs(self.positions) >= 1.0 - 1e-9).all())
        reward = BEST * float(np.sign(self.positions).mean()) * self.goal if is_end else -PENALTY
        self._earned += reward
        if not is_end:
            return BehaviorBatch("Walk", self._decision(reward), None)
        self.returns.append(self._earned)
        end = TerminalBatch(np.zeros(1, np.int32), np.array([reward], np.float32), self.see(), np.zeros(1, bool))
        self.deal()
        return BehaviorBatch("Walk", self._decision(0.0), end)

    def deal(self) -> None:
        """Begin again."""
        self.goal, self.positions = float(self._rng.choice([-1, 1])), np.zeros(self.lines)
        self._earned, self._moves = 0.0, 0

    def see(self) -> tuple[Array, ...]:
        """Return what is seen now."""
        return painted(self.spec.observations, np.array([self.goal if self._moves <= self.told else 0.0]))

    def _decision(self, reward: float) -> DecisionBatch:
        return DecisionBatch(np.zeros(1, np.int32), np.array([reward], np.float32), self.see())


class Walk(Line):
    """One line. Sees its goal: -1 or 1, as a picture black or white."""

    def __init__(self, *, discrete: bool, picture: bool = False, seed: int = 1) -> None:
        seen = ObservationSpec((3, 20, 20), "goal", "uint8") if picture else NUMBER
        super().__init__(ActionSpec(discrete_branches=(2,)) if discrete else ActionSpec(1), (seen,), seed=seed)


def shown(*, discrete: bool, picture: bool = False, episodes: int = 20, seed: int = 5) -> Demonstration:
    """Return episodes of somebody who goes where it shall."""
    return shown_on(Walk(discrete=discrete, picture=picture, seed=seed), episodes)


def shown_on(game: Line, episodes: int = 20) -> Demonstration:
    """Return so many episodes of a game in which somebody goes where it shall."""
    return merge([_episode(game) for _ in range(episodes)])


def _episode(game: Line) -> Demonstration:
    goal, rewards, seen = game.goal, list[float](), list[tuple[Array, ...]]()
    columns, branches = game.spec.actions.continuous_size, len(game.spec.actions.discrete_branches)
    message: Any = None
    while message is None or message.terminals is None:
        seen.append(game.see())
        message = game.play(np.full((1, columns), goal), np.full((1, branches), int(goal > 0)))
        rewards.append(float((message.terminals or message.decisions).rewards[0]))
    steps = len(rewards)
    ended = np.arange(steps) == steps - 1
    return Demonstration(
        spec=game.spec,
        observations=tuple(np.concatenate(parts) for parts in zip(*seen, strict=True)),
        continuous=np.full((steps, columns), goal, np.float32),
        discrete=np.full((steps, branches), int(goal > 0), np.int32),
        rewards=np.array(rewards, np.float32),
        terminated=ended,
        truncated=np.zeros(steps, np.bool_),
        starts=np.zeros(1, np.int64),
        final_observations=message.terminals.observations,
        from_start=np.ones(1, np.bool_),
    )
