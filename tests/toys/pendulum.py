"""Many pendulums at once: Gymnasium's `Pendulum-v1`, whose episodes all have 200 steps, and two who play it.

Its return says how well it is played, and its length nothing, so that imitation cannot pass by accident: an expert that
does not swing up must not make a policy that does.
"""

from typing import Any

import numpy as np

from ludus.demonstrations import Demonstration
from ludus.protocol.batches import Array, BehaviorBatch, DecisionBatch, TerminalBatch
from ludus.protocol.spec import ActionSpec, ObservationSpec
from tests.toys.drills import Drill

MAX_TORQUE, MAX_SPEED, DT = 2.0, 8.0, 0.05
GRAVITY, TORQUE = 15.0, 3.0
"""Angular acceleration by gravity (3 g / 2 l) and by a torque of 1 (3 / m l^2)."""


class Pendulum(Drill):
    """Angle 0 is upright. Actions of 1 are the largest torque."""

    name = "Pendulum"
    length = 200

    def __init__(self, *, agents: int = 32, seed: int = 1) -> None:
        super().__init__([ObservationSpec((3,), "cos, sin, speed")], ActionSpec(1), agents, seed)

    def deal(self) -> None:
        self.angle = self.rng.uniform(-np.pi, np.pi, self.agents)
        self.speed = self.rng.uniform(-1, 1, self.agents)

    def see(self) -> tuple[Array, ...]:
        return (np.stack([np.cos(self.angle), np.sin(self.angle), self.speed], 1).astype(np.float32),)

    def evaluate(self, continuous: Array, discrete: Array) -> Array:
        torque = MAX_TORQUE * np.clip(continuous[:, 0], -1, 1)
        off = (self.angle + np.pi) % (2 * np.pi) - np.pi
        rewards = -(off**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        speed = self.speed + (GRAVITY * np.sin(self.angle) + TORQUE * torque) * DT
        self.speed = np.clip(speed, -MAX_SPEED, MAX_SPEED)
        self.angle = self.angle + self.speed * DT
        return rewards

    def play(self, continuous: Array, discrete: Array) -> BehaviorBatch:
        rewards = self.evaluate(continuous, discrete).astype(np.float32)
        self.earned.append(float(rewards.mean()))
        self.at += 1
        if self.at < self.length:
            return BehaviorBatch(self.name, DecisionBatch(self._ids(), rewards, self.see()), None)
        self.at = 0
        ends = TerminalBatch(self._ids(), rewards, self.see(), np.ones(self.agents, bool))
        self.deal()
        return BehaviorBatch(self.name, DecisionBatch(self._ids(), np.zeros_like(rewards), self.see()), ends)


def swing_up(observations: Array) -> Array:
    """An expert by hand: gives the pendulum the energy of the upright position, and balances it there. (N, 1)."""
    cosine, sine, speed = observations.astype(np.float64).T
    angle = np.arctan2(sine, cosine)
    lacking = GRAVITY - (speed**2 / 2 + GRAVITY * cosine)
    pumping = np.clip(lacking, -MAX_TORQUE, MAX_TORQUE) * np.where(speed < 0, -1.0, 1.0)
    balancing = -(10.0 * angle + 2.5 * speed)
    near = (cosine > 0.85) & (np.abs(speed) < 3.0)
    torque = np.where(near, balancing, pumping)
    return (np.clip(torque / MAX_TORQUE, -1, 1)[:, None]).astype(np.float32)


def let_go(observations: Array) -> Array:
    """A dummy: no torque at all. (N, 1)."""
    return np.zeros((len(observations), 1), np.float32)


def shown_by(player: Any, *, episodes: int, seed: int) -> Demonstration:
    """Return whole episodes of a player."""
    game = Pendulum(agents=episodes, seed=seed)
    game.deal()
    seen, actions, rewards = [*game.see()], [], []
    for _ in range(game.length):
        actions.append(player(seen[-1]))
        rewards.append(game.evaluate(actions[-1], np.zeros((episodes, 0))))
        seen.extend(game.see())
    observations = np.stack(seen, 1)  # (episodes, 201, 3)
    steps = episodes * game.length
    truncated = np.zeros((episodes, game.length), np.bool_)
    truncated[:, -1] = True
    return Demonstration(
        spec=game.spec,
        observations=(observations[:, :-1].reshape(steps, 3),),
        continuous=np.stack(actions, 1).reshape(steps, 1),
        discrete=np.zeros((steps, 0), np.int32),
        rewards=np.stack(rewards, 1).reshape(steps).astype(np.float32),
        terminated=np.zeros(steps, np.bool_),
        truncated=truncated.reshape(steps),
        starts=np.arange(episodes) * game.length,
        final_observations=(observations[:, -1],),
        from_start=np.ones(episodes, np.bool_),
    )
