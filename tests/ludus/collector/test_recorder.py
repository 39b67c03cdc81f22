"""What is recorded of episodes is what was lived: rewards, ends, and memories."""

from ludus.collector.segments import SegmentEnd
from tests.ludus.collector.world import World, playing


def test_an_episode_is_recorded_with_its_rewards_and_its_final_observation() -> None:
    world = playing()
    for _ in range(3):
        world.play(0, decide=[4])

    world.play(0, end=[4])

    (segment,) = world.segments
    assert (segment.length, segment.ending, segment.sequence, segment.episode) == (3, SegmentEnd.TERMINATED, 0, 0)
    assert segment.starts_episode


def test_a_truncated_episode_is_not_a_terminated_one() -> None:
    world = playing()
    world.play(0, decide=[1, 2])

    world.step(0, end=[1], truncate=True)
    world.step(0, end=[2])
    world.run()

    assert [segment.ending for segment in world.segments] == [SegmentEnd.TRUNCATED, SegmentEnd.TERMINATED]


def test_an_id_ends_and_begins_in_one_message() -> None:
    world = playing()
    world.play(0, decide=[1])

    world.play(0, decide=[1], end=[1])
    world.play(0, end=[1])

    assert [(segment.episode, segment.length) for segment in world.segments] == [(0, 1), (1, 1)]


def memories(world: World, simulator: int, agent: int) -> list[list[float]]:
    """What the policy remembered before each step of an agent, in order."""
    steps = [world.steps[number] for number in sorted(world.steps)]
    return [step.memory for step in steps if (step.simulator, step.agent) == (simulator, agent)]


def test_memory_is_that_of_the_agent_and_empty_where_an_episode_begins() -> None:
    world = playing(size=100, recurrent=True)
    world.play(0, decide=[1, 2])
    world.play(0, decide=[1])

    world.play(0, decide=[1], end=[1])
    world.play(0, decide=[2], end=[1])
    world.play(0, end=[2])

    # Decisions are numbered 0 (agent 1), 1 (agent 2), 2 (agent 1), 3 (agent 1, new episode), 4 (agent 2).
    # The policy remembers how many steps there were, and the numbers of the last two; `world` compares it with what
    # was recorded.
    assert memories(world, 0, 1) == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert memories(world, 0, 2) == [[0, 0, 0], [1, 1, 0]]
    assert len(world.segments) == 3


def test_memory_outlives_a_cut_a_wait_and_a_round() -> None:
    world = playing(size=2, horizon=2, recurrent=True)
    for number in range(1, 5):
        while not world.members[0].states("waiting"):  # until it is held: the round is used up
            world.play(0, decide=[1])
        world.grant(number)
    world.play(0, end=[1])

    assert [memory[0] for memory in memories(world, 0, 1)] == list(
        range(9)
    )  # 4 rounds of 2, and the first of the fifth


def test_memory_goes_on_without_recording() -> None:
    world = playing(recurrent=True)
    world.play(0, decide=[1])
    world.runner.stop_recording()

    for _ in range(3):
        world.play(0, decide=[1])
    world.play(0, decide=[1], end=[1])

    assert [step.tolist() for step in world.policy.remembered] == [
        [[0, 0, 0]],
        [[1, 0, 0]],
        [[2, 1, 0]],
        [[3, 2, 1]],
        [[0, 0, 0]],
    ]


def test_unrecorded_agents_are_answered_without_permits_and_leave_no_segments() -> None:
    world = playing(size=4)
    world.play(0, decide=[1])
    before = len(world.recorder.segments.blocks)

    world.runner.stop_recording()
    for _ in range(20):
        world.play(0, decide=[1])
    world.play(0, end=[1])

    assert world.members[0].states("idle") == [1]
    assert not world.segments
    assert len(world.recorder.segments.blocks) == before + 1  # the open segment's block came back
