"""Who of the agents that do not learn plays which frozen policy, and from when on."""

from collections.abc import Iterator

import pytest

from ludus.collector.opponents import NO_POLICY, History
from tests.ludus.collector.match_world import LEARNER, End, Stadium

RED, BLUE, GREEN = "Duel?team=0", "Duel?team=1", "Duel?team=2"


@pytest.fixture
def stadium() -> Iterator[Stadium]:
    made = Stadium({"Duel": 0})
    yield made
    made.close()


def test_only_the_team_that_learns_is_answered_by_the_policy_that_learns(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE, GREEN)
    stadium.pitches["Duel"].assign({1: [3], 2: [5]})

    game.play({RED: [0, 1], BLUE: [0], GREEN: [4]})

    assert game.actions == {RED: {0: LEARNER, 1: LEARNER}, BLUE: {0: 3}, GREEN: {4: 5}}


def test_simulators_play_their_own_draws_and_share_them_where_there_are_more_than_draws(stadium: Stadium) -> None:
    games = [stadium.game(number, RED, BLUE) for number in range(5)]
    stadium.pitches["Duel"].assign({1: [1, 2, 3]})

    for game in games:
        game.send({BLUE: [0, 1]})
    stadium.run()

    assert [game.actions[BLUE] for game in games] == [{0: key, 1: key} for key in (1, 2, 3, 1, 2)]


def test_a_policy_is_exchanged_where_an_episode_begins_and_not_before(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    pitch = stadium.pitches["Duel"]
    pitch.assign({1: [1]})
    game.play({BLUE: [0, 1]})

    pitch.assign({1: [2]})
    game.play({BLUE: [0, 1]})
    assert game.actions[BLUE] == {0: 1, 1: 1}, "their episodes go on"
    game.play({BLUE: [0, 1]}, end={BLUE: [End(0)]})

    assert game.actions[BLUE] == {0: 2, 1: 1}


def test_policies_that_nobody_plays_any_more_are_given_up(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    pitch = stadium.pitches["Duel"]
    pitch.assign({1: [1]}, others=[0])
    game.play({BLUE: [0]})

    pitch.assign({1: [2]}, others=[2])
    assert pitch.opponents.keys == (1, 2), "an agent is in the middle of an episode with policy 1"
    game.play({BLUE: [0]}, end={BLUE: [End(0)]})
    pitch.assign({1: [4]}, others=[4])

    assert pitch.opponents.keys == (2, 4)


def test_a_team_that_nobody_knows_yet_plays_what_is_drawn_for_others(stadium: Stadium) -> None:
    stadium.game(0, RED, BLUE)
    stadium.pitches["Duel"].assign({1: [1]}, others=[6, 7])

    late = stadium.game(1, GREEN)
    late.play({GREEN: [0]})

    assert late.actions[GREEN] == {0: 7}


def test_steps_of_opponents_are_counted_and_neither_recorded_nor_told_as_episodes(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    pitch = stadium.pitches["Duel"]
    pitch.assign({1: [1]})
    for _ in range(4):
        game.play({RED: [0], BLUE: [0, 1, 2]})
    game.play({}, end={BLUE: [End(0)], RED: [End(0)]})

    assert pitch.assignment.take_counts() == (12, 1, 0)  # one of the three has ended, and did not win
    assert pitch.assignment.take_counts() == (0, 0, 0)
    assert pitch.assignment.recorder.take_episodes() is None
    assert pitch.assignment.recorder.segments.take() is None
    assert pitch.learning.recorder.segments.take() is not None


def test_agents_of_a_session_that_left_play_nothing(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    pitch = stadium.pitches["Duel"]
    pitch.assign({1: [1]}, others=[1])
    game.play({BLUE: [0]})
    runner, agent_index = game.agent_indexes[BLUE]

    runner.drop(agent_index)
    pitch.assign({1: [2]}, others=[2])

    assert pitch.opponents.keys == (2,)
    assert pitch.opponents.history(agent_index).newest_policy == NO_POLICY


def test_many_agents_join_after_the_first_ones(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    stadium.pitches["Duel"].assign({1: [4]})
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
