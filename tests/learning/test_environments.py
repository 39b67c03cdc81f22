"""The environments of the learning tasks that Gymnasium does not have: ids as `make learn` uses them."""

import gymnasium
import numpy as np
import pytest

from tests.learning.environments import GRIDS
from tests.learning.tasks import OURS


@pytest.mark.parametrize(
    ("env_id", "masked", "shown"),
    [
        ("CartPole-v1", "CartPoleNoVel-v1", [0, 2]),
        ("Pendulum-v1", "PendulumNoVel-v1", [0, 1]),
        ("MountainCarContinuous-v0", "MountainCarContinuousNoVel-v0", [0]),
    ],
)
def test_speeds_are_not_seen_and_all_else_is_as_in_the_original(env_id: str, masked: str, shown: list[int]) -> None:
    original, env = gymnasium.make(env_id), gymnasium.make(f"{OURS}:{masked}")

    before, after = original.reset(seed=3)[0], env.reset(seed=3)[0]
    for _ in range(5):
        assert np.array_equal(after, before[shown])
        assert env.observation_space.contains(after)
        action = original.action_space.sample()
        before, after = original.step(action)[0], env.step(action)[0]


@pytest.mark.parametrize("name", GRIDS)
def test_grids_are_vectors(name: str) -> None:
    pytest.importorskip("minigrid", reason="MiniGrid is in the extra `learn`")

    env = gymnasium.make(f"{OURS}:{name}-v0")

    assert len(env.reset(seed=1)[0].shape) == 1
