"""What a match is, how it ended, and whether its opponents were the same all along."""

from collections.abc import Iterator

import pytest

from ludus.protocol.batches import Outcome
from tests.ludus.collector.match_world import End, Game, Stadium

RED, BLUE, GREEN = "Duel?team=0", "Duel?team=1", "Duel?team=2"


@pytest.fixture
def stadium() -> Iterator[Stadium]:
    made = Stadium({"Duel": 0})
    yield made
    made.close()


def duel(stadium: Stadium) -> Game:
    game = stadium.game(4, RED, BLUE)
    stadium.pitches["Duel"].assign({1: [1]})
    game.play({RED: [0], BLUE: [0]})
    game.play({RED: [0], BLUE: [0]})
    return game


@pytest.mark.parametrize(
    ("reward", "outcome"), [(0.1, Outcome.WIN), (-2.0, Outcome.LOSS), (0.0, Outcome.DRAW)], ids=str
)
def test_the_sign_of_the_last_reward_decides(stadium: Stadium, reward: float, outcome: Outcome) -> None:
    game = duel(stadium)

    game.play({}, end={RED: [End(0, reward)], BLUE: [End(0, -reward)]})

    (match,) = stadium.matches("Duel")
    assert (match.simulator, match.team, match.outcome, match.truncated, match.settled) == (4, 0, outcome, False, True)
    assert match.opponents == (("Duel", 1, 1),)
    assert stadium.matches("Duel") == []


def test_what_a_simulator_says_goes_before_the_reward(stadium: Stadium) -> None:
    game = duel(stadium)

    game.play({}, end={RED: [End(0, reward=5.0, outcome=Outcome.LOSS)]})

    (match,) = stadium.matches("Duel")
    assert match.outcome == Outcome.LOSS


def test_a_match_that_a_limit_ended_says_so(stadium: Stadium) -> None:
    game = duel(stadium)

    game.play({}, end={RED: [End(0, 1.0, truncated=True)]})

    (match,) = stadium.matches("Duel")
    assert match.truncated


def test_each_agent_without_a_group_plays_a_match_of_its_own(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    stadium.pitches["Duel"].assign({1: [1]})
    for _ in range(2):
        game.play({RED: [0, 1, 2], BLUE: [0, 1, 2]})

    game.play({RED: [2]}, end={RED: [End(0, 1.0), End(1, -1.0)]})

    assert [match.outcome for match in stadium.matches("Duel")] == [Outcome.WIN, Outcome.LOSS]


def test_a_group_plays_one_match_that_ends_with_its_last_member(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    stadium.pitches["Duel"].assign({1: [1]})
    for _ in range(2):
        game.play({RED: [0, 1, 2], BLUE: [5]}, groups={RED: 3})

    game.play({RED: [0, 1], BLUE: [5]}, end={RED: [End(2, 1.0, group=3)]}, groups={RED: 3})
    assert stadium.matches("Duel") == [], "its mates play on"
    game.play({}, end={RED: [End(0, -0.5, group=3, group_reward=2.0), End(1, -0.5, group=3, group_reward=2.0)]})

    (match,) = stadium.matches("Duel")
    assert match.outcome == Outcome.WIN, "the group's reward counts with the members' own"
    assert match.settled


def test_teams_of_unequal_size_and_more_than_two_are_all_named(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE, GREEN)
    stadium.pitches["Duel"].assign({1: [1], 2: [2]})
    for _ in range(2):
        game.play({RED: [0], BLUE: [0, 1, 2], GREEN: [0, 1]})

    game.play({}, end={RED: [End(0, 1.0)]})

    (match,) = stadium.matches("Duel")
    assert match.opponents == (("Duel", 1, 1), ("Duel", 2, 2))
    assert match.settled


def test_an_opponent_that_is_exchanged_in_between_leaves_the_match_unsettled(stadium: Stadium) -> None:
    game = duel(stadium)
    stadium.pitches["Duel"].assign({1: [2]})
    game.play({RED: [0], BLUE: [0]}, end={BLUE: [End(0)]})
    game.play({RED: [0], BLUE: [0]})

    game.play({RED: [0]}, end={RED: [End(0, 1.0)]})
    game.play({RED: [0]})
    game.play({}, end={RED: [End(0, 1.0)]})

    first, second = stadium.matches("Duel")
    assert not first.settled
    assert first.opponents == (("Duel", 1, 2),)
    assert second.settled, "the next one was against the new opponent alone"


def test_an_exchange_in_the_message_of_the_end_belongs_to_the_next_match(stadium: Stadium) -> None:
    game = duel(stadium)
    stadium.pitches["Duel"].assign({1: [2]})

    game.play({RED: [0], BLUE: [0]}, end={RED: [End(0, 1.0)], BLUE: [End(0, -1.0)]})
    game.play({RED: [0], BLUE: [0]})
    game.play({}, end={RED: [End(0, 1.0)], BLUE: [End(0, -1.0)]})

    assert [(match.settled, match.opponents) for match in stadium.matches("Duel")] == [
        (True, (("Duel", 1, 1),)),
        (True, (("Duel", 1, 2),)),
    ]


def test_a_side_that_plays_two_policies_at_once_leaves_the_match_unsettled(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    pitch = stadium.pitches["Duel"]
    pitch.assign({1: [1]})
    game.play({RED: [0], BLUE: [0, 1]})
    pitch.assign({1: [2]})
    game.play({RED: [0], BLUE: [0, 1]}, end={BLUE: [End(0)], RED: [End(0, 1.0)]})
    game.play({RED: [0], BLUE: [0, 1]})
    stadium.matches("Duel")

    game.play({RED: [0], BLUE: [0, 1]}, end={RED: [End(0, 1.0)], BLUE: [End(1)]})
    game.play({RED: [0], BLUE: [0, 1]})
    game.play({}, end={RED: [End(0, 1.0)]})

    mixed, alike = stadium.matches("Duel")
    assert not mixed.settled
    assert (alike.settled, alike.opponents) == (True, (("Duel", 1, 2),))


def test_an_exchange_in_another_simulator_does_not_matter(stadium: Stadium) -> None:
    first, second = (stadium.game(number, RED, BLUE) for number in (0, 1))
    pitch = stadium.pitches["Duel"]
    pitch.assign({1: [1, 2]})
    for game in (first, second):
        game.play({RED: [0], BLUE: [0]})
    pitch.assign({1: [3, 4]})
    second.play({RED: [0], BLUE: [0]}, end={BLUE: [End(0)]})
    for game in (first, second):
        game.play({RED: [0], BLUE: [0]})
        game.play({}, end={RED: [End(0, 1.0)]})

    assert [match.settled for match in stadium.matches("Duel")] == [True, False]


def test_opponents_may_be_of_another_behavior() -> None:
    stadium = Stadium({"Striker": 0})
    game = stadium.game(0, "Striker?team=0", "Goalie?team=1")
    stadium.pitches["Striker"].assign({})
    stadium.pitches["Goalie"].assign({1: [3]})
    for _ in range(2):
        game.play({"Striker?team=0": [0], "Goalie?team=1": [0]})

    game.play({}, end={"Striker?team=0": [End(0, -1.0)], "Goalie?team=1": [End(0, 1.0)]})

    (match,) = stadium.matches("Striker")
    assert (match.outcome, match.opponents) == (Outcome.LOSS, (("Goalie", 1, 3),))
    assert stadium.matches("Goalie") == []
    stadium.close()


def test_who_ends_before_it_acted_has_played_no_match(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    stadium.pitches["Duel"].assign({1: [1]})
    stadium.pitches["Duel"].learning.required_version = 5  # it is not answered
    game.play({RED: [0], BLUE: [0]})

    game.play({}, end={RED: [End(0, 1.0)]})
    game.play({}, end={RED: [End(0, 1.0)]})

    assert stadium.matches("Duel") == []


def test_a_match_that_a_reset_cuts_off_is_none(stadium: Stadium) -> None:
    game = stadium.game(0, RED, BLUE)
    stadium.pitches["Duel"].assign({1: [1]})
    for _ in range(2):
        game.play({RED: [0, 1], BLUE: [0]}, groups={RED: 1})

    for runner, agent_index in game.agent_indexes.values():
        runner.drop(agent_index)
    stadium.pitches["Duel"].assign({1: [2]})
    for _ in range(2):
        game.play({RED: [0, 1], BLUE: [0]}, groups={RED: 1})
    game.play({}, end={RED: [End(0, 1.0, group=1), End(1, 1.0, group=1)]})

    (match,) = stadium.matches("Duel")
    assert (match.settled, match.opponents) == (True, (("Duel", 1, 2),))
