"""The table of agents keeps no more than is played, and knows the policy that an episode began with."""

import numpy as np
import pytest

from ludus.collector.messages import EPISODE_DTYPE
from ludus.protocol.codes import CloseCode, ProtocolError
from tests.ludus.collector.world import World, playing


def versions(world: World) -> list[int]:
    """The versions of the episodes that have ended since the last call."""
    payload = world.recorder.take_episodes()
    assert payload is not None
    found: list[int] = np.frombuffer(payload, EPISODE_DTYPE)["version"].tolist()
    return found


def test_the_version_of_an_episode_is_that_of_its_first_answer() -> None:
    world = playing(size=1000)
    world.runner.stop_recording()
    world.runner.version = 7
    world.play(0, decide=[1, 2])

    world.runner.version = 8
    world.play(0, decide=[1, 2])
    world.play(0, end=[1])
    assert versions(world) == [7], "newer weights have answered since"

    world.play(0, decide=[1])
    world.play(0, end=[1, 2])
    assert sorted(versions(world)) == [7, 8]


def test_recorded_episodes_have_versions_too() -> None:
    world = playing(size=1000)
    world.play(0, decide=[1])

    world.play(0, end=[1])

    assert versions(world) == [world.runner.version]


@pytest.mark.long
def test_ids_that_never_return_do_not_fill_memory() -> None:
    world = playing(size=10_000)

    for agent in range(2_000):
        world.play(0, decide=[agent])
        world.play(0, end=[agent])

    assert len(world.members[0].agent_index.table) <= 64
    assert len(world.recorder.agents.state) <= 128
    assert world.recorder.agents.steps_of(np.zeros(0, np.intp)) + world.members[0].agent_index.former_steps >= 1_900


def test_more_agents_than_allowed_are_refused() -> None:
    world = World(size=100_000)
    world.join(0)

    with pytest.raises(ProtocolError) as raised:
        world.step(0, decide=range(10_001))

    assert raised.value.code is CloseCode.TOO_MANY_AGENTS
