"""Who of the agents that do not learn plays which frozen policy, and from when on."""

from collections.abc import Iterator

import pytest

from ludus.collector.opponents import NO_POLICY, History
from tests.ludus.collector.world import End, World, playing, spec_of

RED, BLUE, GREEN = "Duel?team=0", "Duel?team=1", "Duel?team=2"


@pytest.fixture
def world() -> Iterator[World]:
    made = playing(0, spec=spec_of("Duel"), size=10_000)
    yield made
    made.arena.close()


def test_only_the_team_that_learns_is_answered_by_the_policy_that_learns(world: World) -> None:
    game = world.join(0, RED, BLUE, GREEN)
    world.assign({1: [3], 2: [5]})

    game.play({RED: [0, 1], BLUE: [0], GREEN: [4]})

    assert game.states("acting") == [0, 1]
    assert game.actions == {BLUE: {0: 3}, GREEN: {4: 5}}


def test_simulators_play_their_own_draws_and_share_them_where_there_are_more_than_draws(world: World) -> None:
    games = [world.join(number, RED, BLUE) for number in range(5)]
    world.assign({1: [1, 2, 3]})

    for game in games:
        game.send({BLUE: [0, 1]})
    world.run()

    assert [game.actions[BLUE] for game in games] == [{0: key, 1: key} for key in (1, 2, 3, 1, 2)]


def test_a_policy_is_exchanged_where_an_episode_begins_and_not_before(world: World) -> None:
    game = world.join(0, RED, BLUE)
    world.assign({1: [1]})
    game.play({BLUE: [0, 1]})

    world.assign({1: [2]})
    game.play({BLUE: [0, 1]})
    assert game.actions[BLUE] == {0: 1, 1: 1}, "their episodes go on"
    game.play({BLUE: [0, 1]}, end={BLUE: [End(0)]})

    assert game.actions[BLUE] == {0: 2, 1: 1}


def test_policies_that_nobody_plays_any_more_are_given_up(world: World) -> None:
    game = world.join(0, RED, BLUE)
    opponents = world.opponents("Duel").opponents
    world.assign({1: [1]}, others=[0])
    game.play({BLUE: [0]})

    world.assign({1: [2]}, others=[2])
    assert opponents.keys == (1, 2), "an agent is in the middle of an episode with policy 1"
    game.play({BLUE: [0]}, end={BLUE: [End(0)]})
    world.assign({1: [4]}, others=[4])

    assert opponents.keys == (2, 4)


def test_a_team_that_nobody_knows_yet_plays_what_is_drawn_for_others(world: World) -> None:
    world.join(0, RED, BLUE)
    world.assign({1: [1]}, others=[6, 7])

    late = world.join(1, GREEN)
    late.play({GREEN: [0]})

    assert late.actions[GREEN] == {0: 7}


def test_steps_of_opponents_are_counted_and_neither_recorded_nor_told_as_episodes(world: World) -> None:
    game = world.join(0, RED, BLUE)
    world.assign({1: [1]})
    for _ in range(4):
        game.play({RED: [0], BLUE: [0, 1, 2]})
    game.play({}, end={BLUE: [End(0)], RED: [End(0)]})

    frozen = world.opponents("Duel")
    assert frozen.take_counts() == (12, 1, 0)  # one of the three has ended, and did not win
    assert frozen.take_counts() == (0, 0, 0)
    assert frozen.recorder.take_episodes() is None
    assert frozen.recorder.segments.take() is None
    assert [segment.length for segment in world.segments] == [4]


def test_agents_of_a_session_that_left_play_nothing(world: World) -> None:
    game = world.join(0, RED, BLUE)
    opponents = world.opponents("Duel").opponents
    world.assign({1: [1]}, others=[1])
    game.play({BLUE: [0]})
    _, agent_index = game.agent_indexes[BLUE]

    game.drop()
    world.assign({1: [2]}, others=[2])

    assert opponents.keys == (2,)
    assert opponents.history(agent_index).newest_policy == NO_POLICY


def test_many_agents_join_after_the_first_ones(world: World) -> None:
    game = world.join(0, RED, BLUE)
    world.assign({1: [4]})
    game.play({BLUE: [0]})

    game.play({BLUE: list(range(1, 300))})

    assert set(game.actions[BLUE].values()) == {4}


# History -----------------------------------------------------------------------------------------------------------


def test_a_history_knows_one_policy_over_episodes_and_pauses() -> None:
    history = History()
    for message, key in ((1, 7), (5, NO_POLICY), (5, 7), (8, NO_POLICY), (11, 7)):
        history.note(message, key)

    assert history.during(1, 20) == 7
    assert history.during(6, 20) == 7


def test_a_change_counts_where_it_is_inside_and_not_at_either_end() -> None:
    history = History()
    history.note(1, 7)
    history.note(10, 8)

    assert history.during(1, 10) == 7, "the message that ends a match belongs to the next one"
    assert history.during(1, 11) is None
    assert history.during(10, 20) == 8


def test_who_comes_after_the_beginning_counts_from_then_on() -> None:
    history = History()
    history.note(3, 7)

    assert history.during(1, 9) == 7
    assert history.during(1, 3) == NO_POLICY


def test_what_is_forgotten_is_not_vouched_for() -> None:
    history = History()
    for message in range(40):
        history.note(message, message)

    assert history.during(3, 4) is None
    assert history.during(39, 99) == 39
