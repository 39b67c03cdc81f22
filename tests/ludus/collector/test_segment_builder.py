"""Segments are cut where they must be, each with the observation that follows it."""

from ludus.collector.segments import SegmentEnd
from tests.ludus.collector.world import World, playing


def test_a_segment_is_cut_at_the_horizon_and_goes_on_with_the_observation_at_hand() -> None:
    world = playing(horizon=2, rows=3)

    for _ in range(5):
        world.play(0, decide=[1])

    # 5 decisions, the fifth is out: 4 complete steps in 2 segments.
    assert [(segment.length, segment.ending, segment.sequence) for segment in world.segments] == [
        (2, SegmentEnd.CUT, 0),
        (2, SegmentEnd.CUT, 1),
    ]


def test_a_straggler_makes_room_and_its_step_counts_into_the_next_round() -> None:
    world = playing(2, size=6)
    for _ in range(3):
        world.step(0, decide=[1])
        world.step(1, decide=[1])
        world.run()
    world.play(1, decide=[1])  # simulator 0 owes its third step of the round; simulator 1 is held

    released = world.runner.release_late_agents([world.members[0].agent_index])
    world.run()
    world.play(1, decide=[1])

    assert released == 1
    assert world.delivered[0] == 6
    world.play(0, end=[1])
    assert world.delivered[1] == 1


def test_too_few_blocks_hold_agents_until_more_come() -> None:
    world = World()
    world.join(0)
    blocks, world.recorder.segments.blocks = world.recorder.segments.blocks, [0]
    world.grant(0)
    world.step(0, decide=[1, 2])

    assert world.run().want_blocks
    assert world.members[0].states("waiting") == [1, 2]

    world.recorder.segments.blocks.extend(blocks[1:9])
    world.runner.wanted_blocks = False
    world.run()
    assert world.members[0].states("acting") == [1, 2]


def test_a_segment_knows_whether_its_group_goes_on() -> None:
    world = playing(2, size=100, grouped=True)
    for simulator in (0, 1):
        world.step(simulator, decide=[1, 3, 4, 7])  # 1, 4 and 7 are group 1, agent 3 is alone
    world.run()

    world.play(0, end=[1, 3])
    world.play(0, decide=[4, 7], end=[4, 7])

    # 4 and 7 end together and begin again at once, with another attempt; those of simulator 1 are other people.
    assert [(segment.agent, segment.mates_alive) for segment in world.segments] == [
        *((1, True), (3, False)),
        *((4, False), (7, False)),
    ]
