"""Learning from late steps: each round is played by the policy of some updates before, as behind a slow link."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from ludus.protocol.batches import Array
from tests.toys.balance import Balance, Ball, CartPole
from tests.toys.playing import training

GAMES: Final[dict[str, tuple[type[CartPole] | type[Ball], float]]] = {
    "cartpole": (CartPole, 3e-3),
    "ball": (Ball, 1e-3),
}
"""The game, and the learning rate."""


def curve(
    name: str, *, lag: int, seed: int, rounds: int, objective: Mapping[str, bool], trainer: str = "ppo"
) -> list[float]:
    """Return the mean return of the episodes that ended in each round of 512 steps, NaN where none did.

    Round `n` is played by the policy of update `n - lag`, the first `lag` rounds by that of the beginning. `objective`:
    hyperparameters, such as `vtrace`.
    """
    kind, learning_rate = GAMES[name]
    game: Balance = kind(seed=seed)
    numbers: dict[str, Any] = {"batch_size": 64, "buffer_size": 512, "num_epoch": 4, "learning_rate": learning_rate}
    trained = training(game, trainer=trainer, seed=seed, **{**numbers, **objective})
    past, scores = deque[tuple[Array, int]](maxlen=lag + 1), list[float]()
    for _ in range(rounds):
        past.append((trained.algorithm.flat_weights(), trained.algorithm.version))
        rollout = trained.arcade.collect(*past[0])
        trained.step += rollout.steps
        trained.metrics = trained.algorithm.update(rollout, trained.step) or {}
        scores.append(game.score())
    assert trained.metrics["Policy/Lag"] == lag
    return scores
