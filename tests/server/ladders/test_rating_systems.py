"""How matches change ratings, without a database."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.ladders.elo import expected
from server.ladders.rating_systems import (
    INITIAL_MU,
    INITIAL_SIGMA,
    Game,
    Participant,
    Rating,
    RatingState,
    RatingTable,
    Tally,
    ranks,
    tally,
)
from tests.examples import examples

PLAYERS = 6


def standing(player: int, elo: float = 1200.0, **overrides: object) -> RatingState:
    return RatingState(player, Rating(elo, INITIAL_MU, INITIAL_SIGMA), 0, **overrides)  # type: ignore[arg-type]


def book(*standings: RatingState) -> RatingTable:
    return RatingTable(standings, lambda _player, _step: None)


def game(*participants: tuple[int, int], seq: int = 1, scored: bool = True, step: int | None = None) -> Game:
    """Make a game of (player, rank) each."""
    return Game(seq, 1000.0 + seq, scored, tuple(Participant(player, rank, step) for player, rank in participants))


@st.composite
def games(draw: st.DrawFn) -> list[Game]:
    """Draw games of two to four participants; in those of runs a player may sit at several."""
    drawn = []
    for seq in range(1, draw(st.integers(1, 25)) + 1):
        scored = draw(st.booleans())
        count = draw(st.integers(2, 4))
        players = draw(st.lists(st.integers(1, PLAYERS), min_size=count, max_size=count, unique=scored))
        if scored:
            places = [draw(st.integers(1, 3)) for _ in players]
        else:
            mine, others = draw(st.sampled_from([(1, 2), (1, 1), (2, 1)]))
            places = [mine, *[others] * (count - 1)]
        drawn.append(game(*zip(players, places, strict=True), seq=seq, scored=scored))
    return drawn


@settings(max_examples=examples(40))
@given(games())
def test_elo_is_conserved(played: list[Game]) -> None:
    ours = book(*(standing(player, 1000.0 + 40 * player) for player in range(1, PLAYERS + 1)))
    before = sum(each.rating.elo for each in ours.standings.values())

    for each in played:
        ours.play(each)

    assert sum(each.rating.elo for each in ours.standings.values()) == pytest.approx(before, abs=1e-9)


@settings(max_examples=examples(40))
@given(games())
def test_no_game_moves_a_player_by_more_than_one_point(played: list[Game]) -> None:
    ours = book(*(standing(player, 1000.0 + 40 * player) for player in range(1, PLAYERS + 1)))

    for each in played:
        before = {player: each.rating.elo for player, each in ours.standings.items()}
        ours.play(each)
        assert all(abs(ours.standings[player].rating.elo - elo) <= 1 + 1e-9 for player, elo in before.items())


@settings(max_examples=examples(40))
@given(games())
def test_a_player_gains_a_point_of_history_with_each_of_its_games(played: list[Game]) -> None:
    ours = book(*(standing(player) for player in range(1, PLAYERS + 1)))

    for each in played:
        ours.play(each)

    for player, each in ours.standings.items():
        points = [point for point in ours.points if point.player == player]
        assert [point.game for point in points] == list(range(1, each.games + 1))
        assert not points or points[-1].rating == each.rating


def test_a_win_raises_both_ratings_as_their_formulas_say() -> None:
    ours = book(standing(1, 1300.0), standing(2, 1200.0))

    ours.play(game((1, 1), (2, 2)))

    winner, loser = ours.standings[1].rating, ours.standings[2].rating
    gain = 1 - 1 / (1 + 10 ** (-100 / 400))
    assert (winner.elo, loser.elo) == (pytest.approx(1300 + gain), pytest.approx(1200 - gain))
    # Weng & Lin, algorithm 1, with openskill's defaults: sigma grows by tau = 25/300 before each game, beta = 25/6
    variance = INITIAL_SIGMA**2 + (25 / 300) ** 2
    scale = math.sqrt(2 * variance + 2 * (25 / 6) ** 2)
    assert winner.mu == pytest.approx(25 + variance / scale * 0.5)
    assert loser.mu == pytest.approx(25 - variance / scale * 0.5)
    shrink = math.sqrt(variance) / scale * variance / scale**2 * 0.25
    assert winner.sigma == loser.sigma == pytest.approx(math.sqrt(variance * (1 - shrink)))


def test_a_draw_brings_ratings_together_and_makes_both_more_certain() -> None:
    ours = book(RatingState(1, Rating(1400.0, 30.0, 5.0), 9), RatingState(2, Rating(1200.0, 20.0, 5.0), 9))

    ours.play(game((1, 1), (2, 1)))

    better, worse = ours.standings[1].rating, ours.standings[2].rating
    assert better.elo == pytest.approx(1400 + 0.5 - expected(1400, 1200))
    assert worse.elo == pytest.approx(1200 - 0.5 + expected(1400, 1200))
    assert 20 < worse.mu < better.mu < 30
    assert max(better.sigma, worse.sigma) < 5


def test_of_three_sides_the_better_place_is_rated_higher() -> None:
    ours = book(standing(1), standing(2), standing(3))

    ours.play(game((3, 2), (1, 1), (2, 3)))

    for name in ("elo", "mu"):
        first, second, third = (getattr(ours.standings[player].rating, name) for player in (1, 3, 2))
        assert first > second > third


def test_a_run_knows_only_how_its_first_seat_did() -> None:
    ours = book(standing(1), standing(2, 1300.0), standing(3, 1100.0))

    ours.play(game((1, 1), (2, 2), (3, 2), scored=False))

    assert ours.standings[2].rating.elo == pytest.approx(1300 - (1 - expected(1200, 1300)) / 2)
    assert ours.standings[3].rating.elo == pytest.approx(1100 - (1 - expected(1200, 1100)) / 2)
    assert dict(ours.tallies) == {(1, 2): [1, 0, 0], (1, 3): [1, 0, 0]}


def test_a_policy_that_plays_against_itself_learns_nothing_of_its_strength() -> None:
    ours = book(standing(1))

    ours.play(game((1, 1), (1, 2), scored=False))

    assert ours.standings[1] == standing(1)
    assert (ours.points, dict(ours.tallies)) == ([], {})


def test_a_fixed_player_stays_where_it_is_while_its_opponent_moves() -> None:
    ours = book(standing(1, fixed=True), standing(2))

    ours.play(game((1, 2), (2, 1)))

    assert (ours.standings[1].rating, ours.standings[1].games) == (standing(1).rating, 1)
    assert ours.standings[2].rating.elo == 1200.5
    assert ours.standings[2].rating.mu > INITIAL_MU


def test_a_snapshot_enters_with_what_its_policy_was_rated_before_it_was_taken() -> None:
    ours = book(standing(1), standing(2), standing(3, 1000.0, parent=1))
    for seq, step in enumerate((100, 200, 300), 1):
        ours.play(game((1, 1), (2, 2), seq=seq, step=step))
    at_200 = ours.points[2].rating

    ours.play(Game(4, 0.0, False, (Participant(1, 1, 400), Participant(3, 1, 300))))

    learner_before = ours.points[4].rating
    gain = 0.5 - expected(learner_before.elo, at_200.elo)
    assert ours.points[2].step == 200
    assert ours.standings[3].rating.elo == pytest.approx(at_200.elo - gain)


def test_the_untrained_snapshot_enters_with_the_initial_rating() -> None:
    ours = book(standing(1), standing(2), standing(3, 1200.0, parent=1))
    ours.play(game((1, 1), (2, 2), step=0))

    ours.play(Game(2, 0.0, False, (Participant(1, 1, 100), Participant(3, 2, 0))))

    assert ours.standings[3].rating.elo == pytest.approx(1200 - (1 - expected(1200.5, 1200)))


def test_a_snapshot_looks_further_back_than_this_book() -> None:
    asked = []

    def earlier(player: int, step: int) -> Rating:
        asked.append((player, step))
        return Rating(1500.0, 30.0, 2.0)

    ours = RatingTable([standing(1), standing(3, parent=1)], earlier)

    ours.play(Game(9, 0.0, False, (Participant(1, 2, 900), Participant(3, 1, 500))))

    assert asked == [(1, 500)]
    assert ours.standings[3].rating.elo == pytest.approx(1500 + expected(1200, 1500))


@pytest.mark.parametrize(
    ("scores", "places"), [([3.0, 1.0, 2.0], [1, 3, 2]), ([1.0, 5.0, 5.0, 0.5], [3, 1, 1, 4]), ([0.0, -0.0], [1, 1])]
)
def test_the_highest_score_is_first_and_equal_scores_share_a_rank(scores: list[float], places: list[int]) -> None:
    assert ranks(scores) == places


def test_results_are_counted_from_the_side_of_the_lower_number() -> None:
    played = [game((7, 1), (2, 2)), game((2, 1), (7, 2)), game((7, 1), (2, 2)), game((2, 1), (7, 1))]

    assert tally(played) == {(2, 7): Tally(wins=1, draws=1, losses=2)}
