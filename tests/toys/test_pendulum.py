"""The pendulums of the toy move and earn as Gymnasium's does; its expert is one, its dummy is none."""

import gymnasium
import numpy as np
import pytest

from ludus.demonstrations import inspect
from tests.toys.pendulum import Pendulum, let_go, shown_by, swing_up


def test_it_moves_and_earns_as_gymnasiums_pendulum_does() -> None:
    environment, game = gymnasium.make("Pendulum-v1"), Pendulum(agents=1)
    observation, _ = environment.reset(seed=3)
    game.deal()
    game.angle, game.speed = (np.array([value]) for value in environment.unwrapped.state)
    rng, truncated = np.random.default_rng(1), False
    for _ in range(game.length):
        action = rng.uniform(-1.2, 1.2, 1).astype(np.float32)
        observation, reward, _, truncated, _ = environment.step(2 * action)

        assert game.evaluate(action[None], np.zeros((1, 0)))[0] == pytest.approx(float(reward), abs=1e-5)
        np.testing.assert_allclose(game.see()[0][0], observation, atol=1e-5)
    assert truncated


def test_the_expert_swings_up_and_the_dummy_does_not() -> None:
    expert = inspect(shown_by(swing_up, episodes=50, seed=1)).returns
    dummy = inspect(shown_by(let_go, episodes=50, seed=1)).returns

    assert expert is not None
    assert dummy is not None
    assert expert.mean > -200
    assert dummy.mean < -1000
