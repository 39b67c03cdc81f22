"""A finished episode tells which version of the policy answered its first decision."""

import numpy as np

from ludus.collector.messages import EPISODE_DTYPE
from tests.ludus.collector.world import World


def versions(world: World) -> list[int]:
    """The versions of the episodes that have ended since the last call."""
    payload = world.recorder.take_episodes()
    assert payload is not None
    found: list[int] = np.frombuffer(payload, EPISODE_DTYPE)["version"].tolist()
    return found


def test_the_version_of_an_episode_is_that_of_its_first_answer() -> None:
    world = World(size=1000)
    world.join(0)
    world.grant(0)
    world.runner.stop_recording()
    world.runner.version = 7
    world.step(0, decide=[1, 2])
    world.run()

    world.runner.version = 8
    world.step(0, decide=[1, 2])
    world.run()
    world.step(0, end=[1])
    world.run()
    assert versions(world) == [7], "newer weights have answered since"

    world.step(0, decide=[1])
    world.run()
    world.step(0, end=[1, 2])
    world.run()
    assert sorted(versions(world)) == [7, 8]


def test_recorded_episodes_have_versions_too() -> None:
    world = World(size=1000)
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1])
    world.run()

    world.step(0, end=[1])
    world.run()

    assert versions(world) == [world.runner.version]
