"""Two tasks in which an episode lasts as long as something is kept in balance: many at once, each ends by itself."""

from collections.abc import Sequence

import numpy as np

from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import ActionSpec, ObservationSpec
from tests.toys.drills import Drill


class Balance(Drill):
    """Each step that keeps the balance earns a reward; losing it terminates the episode, `length` steps truncate it."""

    state_size: int
    spread: float
    """A state begins uniformly between minus this and this, in each of its numbers."""

    def __init__(self, observations: Sequence[ObservationSpec], actions: ActionSpec, agents: int, seed: int) -> None:
        super().__init__(observations, actions, agents, seed)
        self.state = np.zeros((agents, self.state_size))
        self.age = np.zeros(agents, np.int64)
        self.sums = np.zeros(agents)

    def push(self, continuous: Array, discrete: Array) -> None:
        """Move on by one step."""
        raise NotImplementedError

    def lost(self) -> Array:
        """Return whether the balance is lost, (agents,) bool."""
        raise NotImplementedError

    def deal(self) -> None:
        self._deal(np.ones(self.agents, bool))

    def _deal(self, which: Array) -> None:
        self.state[which] = self.rng.uniform(-self.spread, self.spread, (int(which.sum()), self.state_size))
        self.age[which] = 0
        self.sums[which] = 0.0

    def see(self) -> tuple[Array, ...]:
        return (self.state.astype(np.float32),)

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch:
        self.push(continuous, discrete)
        self.age += 1
        lost = self.lost()
        rewards = np.where(lost, self.loss, self.gain).astype(np.float32)
        self.sums += rewards
        over = lost | (self.age >= self.length)
        ends = None
        if over.any():
            self.earned += self.sums[over].tolist()
            seen = tuple(column[over] for column in self.see())
            ends = TerminalBatch(self._ids()[over], rewards[over], seen, ~lost[over])
            self._deal(over)
        rewards = np.where(over, 0.0, rewards).astype(np.float32)
        return BehaviorBatch(self.name, DecisionBatch(self._ids(), rewards, self.see()), ends)

    gain, loss = 1.0, 1.0

    def score(self) -> float:
        """Return the mean return of the episodes that ended since the last call; nan without any."""
        earned, self.earned = self.earned, []
        return float(np.mean(earned)) if earned else float("nan")


class CartPole(Balance):
    """A pole on a cart that is pushed left or right (Barto, Sutton & Anderson 1983), with Gymnasium's numbers.

    The best return is 200, at random one gets some 22.
    """

    name = "CartPole"
    length, state_size, spread = 200, 4, 0.05

    def __init__(self, *, agents: int = 8, seed: int = 1) -> None:
        super().__init__([ObservationSpec((4,))], ActionSpec(0, (2,)), agents, seed)

    def push(self, continuous: Array, discrete: Array) -> None:
        _, speed, angle, turning = self.state.T
        force = np.where(discrete[:, 0] == 1, 10.0, -10.0)
        sine, cosine = np.sin(angle), np.cos(angle)
        push = (force + 0.05 * turning**2 * sine) / 1.1
        bend = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        glide = push - 0.05 * bend * cosine / 1.1
        self.state = self.state + 0.02 * np.stack([speed, glide, turning, bend], 1)

    def lost(self) -> Array:
        return (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 12 * np.pi / 180)


class Ball(Balance):
    """A ball on a plate that is turned about two axes by two continuous actions, with the rewards of Unity's 3DBall.

    The state is the plate's two angles, the ball's place and its speed, in units that are about 1 at the plate's edge.
    The best return is 20, as 0.1 a step; a ball that falls costs 1.
    """

    name = "Ball"
    length, state_size, spread = 200, 6, 0.3
    gain, loss = 0.1, -1.0

    def __init__(self, *, agents: int = 8, seed: int = 1) -> None:
        super().__init__([ObservationSpec((6,))], ActionSpec(2), agents, seed)

    def push(self, continuous: Array, discrete: Array) -> None:
        angles, place, speed = np.split(self.state, 3, axis=1)
        angles = np.clip(angles + 0.15 * np.clip(continuous, -1, 1), -0.5, 0.5)
        speed = speed + 0.1 * angles
        self.state = np.concatenate([angles, place + 0.3 * speed, speed], axis=1)

    def lost(self) -> Array:
        return (np.abs(self.state[:, 2:4]) > 1).any(1)
