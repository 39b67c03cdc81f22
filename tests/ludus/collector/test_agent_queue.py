"""Messages are staged, joined and answered together, whatever comes while agents wait."""

import pytest

from ludus.protocol.codes import CloseCode, ProtocolError
from tests.ludus.collector.world import FIRST_TICK, World, playing
from tests.segments import columns_of
from worker.experience.rollout import gather


def test_an_agent_that_ends_while_it_waits_is_not_answered() -> None:
    world = playing(size=2)
    world.play(0, decide=[1, 2])
    world.play(0, decide=[1, 2])  # held: the round is used up

    world.play(0, end=[2])
    world.grant(1)

    assert world.members[0].states("acting") == [1]
    assert world.members[0].states("idle") == [2]


def test_asking_twice_is_an_error_that_leaves_the_first_question_alone() -> None:
    world = World(size=2)
    world.join(0)
    world.play(0, decide=[1])

    with pytest.raises(ProtocolError) as raised:
        world.step(0, decide=[1])

    assert raised.value.code is CloseCode.DECISION_PENDING


def test_two_messages_of_one_simulator_in_one_turn_build_on_each_other() -> None:
    world = playing()
    world.play(0, decide=[1])

    world.step(0, end=[1])
    world.step(0, decide=[1])
    world.run()

    assert world.members[0].states("acting") == [1]
    assert len(world.segments) == 1


def test_the_end_of_an_unknown_agent_is_ignored() -> None:
    world = playing()

    world.play(0, end=[99])

    assert not world.segments
    assert world.recorder.take_episodes() is None


def test_messages_of_one_turn_have_ticks_of_their_own() -> None:
    world = playing(2, size=100)
    for simulator in (0, 1):
        world.step(simulator, decide=[1, 2])
    world.run()
    for simulator in (1, 0):
        world.step(simulator, end=[1, 2])
    world.run()

    ticks = {
        (segment.simulator, segment.agent): (
            int(gather(world.arena, columns_of([segment])).ticks),
            segment.successor_tick,
        )
        for segment in world.segments
    }
    first = FIRST_TICK
    assert ticks == {
        **dict.fromkeys([(0, 1), (0, 2)], (first, first + 3)),
        **dict.fromkeys([(1, 1), (1, 2)], (first + 1, first + 2)),
    }


def test_agents_that_join_later_and_other_simulators_share_one_forward_pass() -> None:
    world = playing(3, size=100)
    world.play(0, decide=[1])

    world.step(0, decide=[1, 9])
    world.step(1, decide=[1])
    world.step(2, decide=[5, 3, 1])
    world.run()

    assert world.policy.passes == [1, 6]
