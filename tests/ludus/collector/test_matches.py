"""What a match is, how it ended, and whether its opponents were the same all along."""

from collections.abc import Iterator

import pytest

from ludus.protocol.batches import Outcome
from tests.ludus.collector.world import End, Member, World, playing, spec_of

RED, BLUE, GREEN = "Duel?team=0", "Duel?team=1", "Duel?team=2"


@pytest.fixture
def world() -> Iterator[World]:
    made = playing(0, spec=spec_of("Duel"), size=10_000)
    yield made
    made.arena.close()


def duel(world: World) -> Member:
    game = world.join(4, RED, BLUE)
    world.assign({1: [1]})
    game.play({RED: [0], BLUE: [0]})
    game.play({RED: [0], BLUE: [0]})
    return game


@pytest.mark.parametrize(
    ("reward", "outcome"), [(0.1, Outcome.WIN), (-2.0, Outcome.LOSS), (0.0, Outcome.DRAW)], ids=str
)
def test_the_sign_of_the_last_reward_decides(world: World, reward: float, outcome: Outcome) -> None:
    game = duel(world)

    game.play({}, end={RED: [End(0, reward)], BLUE: [End(0, -reward)]})

    (match,) = world.matches.take()
    assert (match.simulator, match.team, match.outcome, match.truncated, match.settled) == (4, 0, outcome, False, True)
    assert match.opponents == (("Duel", 1, 1),)
    assert world.matches.take() == []


def test_what_a_simulator_says_goes_before_the_reward(world: World) -> None:
    game = duel(world)

    game.play({}, end={RED: [End(0, reward=5.0, outcome=Outcome.LOSS)]})

    (match,) = world.matches.take()
    assert match.outcome == Outcome.LOSS


def test_a_match_that_a_limit_ended_says_so(world: World) -> None:
    game = duel(world)

    game.play({}, end={RED: [End(0, 1.0, truncated=True)]})

    (match,) = world.matches.take()
    assert match.truncated


def test_each_agent_without_a_group_plays_a_match_of_its_own(world: World) -> None:
    game = world.join(0, RED, BLUE)
    world.assign({1: [1]})
    for _ in range(2):
        game.play({RED: [0, 1, 2], BLUE: [0, 1, 2]})

    game.play({RED: [2]}, end={RED: [End(0, 1.0), End(1, -1.0)]})

    assert [match.outcome for match in world.matches.take()] == [Outcome.WIN, Outcome.LOSS]


def test_a_group_plays_one_match_that_ends_with_its_last_member(world: World) -> None:
    game = world.join(0, RED, BLUE)
    game.groups[RED] = 3
    world.assign({1: [1]})
    for _ in range(2):
        game.play({RED: [0, 1, 2], BLUE: [5]})

    game.play({RED: [0, 1], BLUE: [5]}, end={RED: [End(2, 1.0)]})
    assert world.matches.take() == [], "its mates play on"
    game.play({}, end={RED: [End(0, -0.5, group_reward=2.0), End(1, -0.5, group_reward=2.0)]})

    (match,) = world.matches.take()
    assert match.outcome == Outcome.WIN, "the group's reward counts with the members' own"
    assert match.settled


def test_teams_of_unequal_size_and_more_than_two_are_all_named(world: World) -> None:
    game = world.join(0, RED, BLUE, GREEN)
    world.assign({1: [1], 2: [2]})
    for _ in range(2):
        game.play({RED: [0], BLUE: [0, 1, 2], GREEN: [0, 1]})

    game.play({}, end={RED: [End(0, 1.0)]})

    (match,) = world.matches.take()
    assert match.opponents == (("Duel", 1, 1), ("Duel", 2, 2))
    assert match.settled


def test_an_opponent_that_is_exchanged_in_between_leaves_the_match_unsettled(world: World) -> None:
    game = duel(world)
    world.assign({1: [2]})
    game.play({RED: [0], BLUE: [0]}, end={BLUE: [End(0)]})
    game.play({RED: [0], BLUE: [0]})

    game.play({RED: [0]}, end={RED: [End(0, 1.0)]})
    game.play({RED: [0]})
    game.play({}, end={RED: [End(0, 1.0)]})

    first, second = world.matches.take()
    assert not first.settled
    assert first.opponents == (("Duel", 1, 2),)
    assert second.settled, "the next one was against the new opponent alone"


def test_an_exchange_in_the_message_of_the_end_belongs_to_the_next_match(world: World) -> None:
    game = duel(world)
    world.assign({1: [2]})

    game.play({RED: [0], BLUE: [0]}, end={RED: [End(0, 1.0)], BLUE: [End(0, -1.0)]})
    game.play({RED: [0], BLUE: [0]})
    game.play({}, end={RED: [End(0, 1.0)], BLUE: [End(0, -1.0)]})

    assert [(match.settled, match.opponents) for match in world.matches.take()] == [
        (True, (("Duel", 1, 1),)),
        (True, (("Duel", 1, 2),)),
    ]


def test_a_side_that_plays_two_policies_at_once_leaves_the_match_unsettled(world: World) -> None:
    game = world.join(0, RED, BLUE)
    world.assign({1: [1]})
    game.play({RED: [0], BLUE: [0, 1]})
    world.assign({1: [2]})
    game.play({RED: [0], BLUE: [0, 1]}, end={BLUE: [End(0)], RED: [End(0, 1.0)]})
    game.play({RED: [0], BLUE: [0, 1]})
    world.matches.take()

    game.play({RED: [0], BLUE: [0, 1]}, end={RED: [End(0, 1.0)], BLUE: [End(1)]})
    game.play({RED: [0], BLUE: [0, 1]})
    game.play({}, end={RED: [End(0, 1.0)]})

    mixed, alike = world.matches.take()
    assert not mixed.settled
    assert (alike.settled, alike.opponents) == (True, (("Duel", 1, 2),))


def test_an_exchange_in_another_simulator_does_not_matter(world: World) -> None:
    first, second = (world.join(number, RED, BLUE) for number in (0, 1))
    world.assign({1: [1, 2]})
    for game in (first, second):
        game.play({RED: [0], BLUE: [0]})
    world.assign({1: [3, 4]})
    second.play({RED: [0], BLUE: [0]}, end={BLUE: [End(0)]})
    for game in (first, second):
        game.play({RED: [0], BLUE: [0]})
        game.play({}, end={RED: [End(0, 1.0)]})

    assert [match.settled for match in world.matches.take()] == [True, False]


def test_opponents_may_be_of_another_behavior() -> None:
    world = playing(0, spec=spec_of("Striker"), size=10_000)
    game = world.join(0, "Striker?team=0", "Goalie?team=1")
    world.assign({1: [3]}, behavior="Goalie")
    for _ in range(2):
        game.play({"Striker?team=0": [0], "Goalie?team=1": [0]})

    game.play({}, end={"Striker?team=0": [End(0, -1.0)], "Goalie?team=1": [End(0, 1.0)]})

    (match,) = world.matches.take()
    assert (match.outcome, match.opponents) == (Outcome.LOSS, (("Goalie", 1, 3),))
    world.arena.close()


def test_who_ends_before_it_acted_has_played_no_match(world: World) -> None:
    game = world.join(0, RED, BLUE)
    world.assign({1: [1]})
    world.runner.required_version = 8  # it is not answered: the world's policy is version 7
    game.play({RED: [0], BLUE: [0]})

    game.play({}, end={RED: [End(0, 1.0)]})
    game.play({}, end={RED: [End(0, 1.0)]})

    assert world.matches.take() == []


def test_a_match_that_a_reset_cuts_off_is_none(world: World) -> None:
    game = world.join(0, RED, BLUE)
    game.groups[RED] = 1
    world.assign({1: [1]})
    for _ in range(2):
        game.play({RED: [0, 1], BLUE: [0]})

    game.drop()
    world.assign({1: [2]})
    for _ in range(2):
        game.play({RED: [0, 1], BLUE: [0]})
    game.play({}, end={RED: [End(0, 1.0), End(1, 1.0)]})

    (match,) = world.matches.take()
    assert (match.settled, match.opponents) == (True, (("Duel", 1, 2),))
