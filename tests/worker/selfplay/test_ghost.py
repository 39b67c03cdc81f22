"""The ratings of frozen policies, and how opponents are drawn."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.config.selfplay import SelfPlaySettings
from server.ladders import elo
from worker.selfplay.external import SnapshotPool
from worker.selfplay.ghost import MEMORY, Payoffs, Ratings, draw, probabilities, rate

SIDES = st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=1, max_size=3)
GAMES = st.lists(st.tuples(SIDES, st.sampled_from([0.0, 0.5, 1.0])), max_size=40)


def ratings_of(snapshots: int, initial: float = 1200.0) -> Ratings:
    ratings = Ratings(initial)
    for number in range(snapshots):
        ratings.enter(number, ratings.current)
    return ratings


def total_of(ratings: Ratings) -> float:
    """Return the sum over all policies."""
    state = ratings.state_dict()
    return float(state["current"] + sum(state["snapshots"].values()))


def test_equals_win_and_lose_half_a_point() -> None:
    ratings = ratings_of(1)

    assert rate(ratings, [(ratings, 0)], 1.0)

    assert (ratings.current, ratings.of(0)) == (1200.5, 1199.5)


def test_a_lead_of_400_is_ten_to_one() -> None:
    ratings = ratings_of(1)
    ratings.add(None, 400.0)

    assert elo.expected(1600.0, 1200.0) == pytest.approx(10 / 11)
    assert rate(ratings, [(ratings, 0)], 0.0)

    assert ratings.current == pytest.approx(1600.0 - 10 / 11)
    assert ratings.of(0) == pytest.approx(1200.0 + 10 / 11)


def test_a_policy_that_plays_itself_rates_nobody() -> None:
    ratings = ratings_of(1)

    assert not rate(ratings, [(ratings, None)], 1.0)

    assert (ratings.current, ratings.of(0)) == (1200.0, 1200.0)


def test_the_learning_policy_of_another_behavior_is_an_opponent_like_any() -> None:
    strikers, goalies = ratings_of(0), ratings_of(0)

    assert rate(strikers, [(goalies, None)], 1.0)

    assert (strikers.current, goalies.current) == (1200.5, 1199.5)


def test_of_several_opponents_each_counts_its_part() -> None:
    ratings = ratings_of(2)

    assert rate(ratings, [(ratings, 0), (ratings, 1)], 1.0)

    assert (ratings.current, ratings.of(0), ratings.of(1)) == (1200.5, 1199.75, 1199.75)


def test_nothing_is_rated_where_a_rating_is_forgotten() -> None:
    ratings = ratings_of(2)
    ratings.forget_before(1)

    assert not rate(ratings, [(ratings, 0), (ratings, 1)], 1.0)

    assert (ratings.current, ratings.of(0), ratings.of(1)) == (1200.0, None, 1200.0)


@given(GAMES, GAMES)
def test_matches_conserve_the_sum_of_all_ratings(
    own: list[tuple[list[int | None], float]], against: list[object]
) -> None:
    strikers, goalies = ratings_of(5), ratings_of(5, initial=900.0)
    total = total_of(strikers) + total_of(goalies)
    for sides, score in own:
        rate(strikers, [(strikers, side) for side in sides], score)
    for sides, score in against:  # type: ignore[misc]  # as `own`
        rate(strikers, [(goalies, side) for side in sides], score)

    assert total_of(strikers) + total_of(goalies) == pytest.approx(total, abs=1e-8)


def test_a_snapshot_begins_with_the_rating_of_the_policy_and_all_of_it_is_saved() -> None:
    ratings = ratings_of(1)
    rate(ratings, [(ratings, 0)], 1.0)
    ratings.enter(1, ratings.current)
    restored = Ratings(0.0)

    restored.load_state_dict(ratings.state_dict())

    assert [restored.of(side) for side in (None, 0, 1)] == [1200.5, 1199.5, 1200.5]


DRAWS = 4000
NEVER_THE_LATEST = SelfPlaySettings(play_against_latest_model_ratio=0.0)


def pool_of(count: int) -> SnapshotPool:
    pool = SnapshotPool(count)
    for step in range(count):
        pool.save(step, np.zeros(1, np.float32))
    return pool


def frequencies(settings: SelfPlaySettings, pool: SnapshotPool, payoffs: Payoffs) -> dict[int | None, float]:
    rng = np.random.default_rng(1)
    drawn = [draw(settings, pool.snapshots, payoffs, rng) for _ in range(DRAWS)]
    counts = Counter(None if snapshot is None else snapshot.number for snapshot in drawn)
    return {number: count / DRAWS for number, count in counts.items()}


def test_uniform_draws_are_uniform_over_the_window() -> None:
    found = frequencies(NEVER_THE_LATEST, pool_of(4), Payoffs())

    assert found == {number: pytest.approx(0.25, abs=0.03) for number in range(4)}


@pytest.mark.parametrize(("ratio", "latest"), [(0.0, 0.0), (0.3, 0.3), (1.0, 1.0), (2.0, 1.0), (-1.0, 0.0)])
def test_the_newest_policy_is_drawn_as_often_as_is_asked_for_and_ratios_beyond_are_limited(
    ratio: float, latest: float
) -> None:
    found = frequencies(SelfPlaySettings(play_against_latest_model_ratio=ratio), pool_of(3), Payoffs())

    assert found.get(None, 0.0) == pytest.approx(latest, abs=0.03)


def test_hard_odds_prefer_whom_the_policy_loses_to() -> None:
    assert probabilities("pfsp_hard", [0.0, 0.5, 1.0]).tolist() == pytest.approx([0.8, 0.2, 0.0])


def test_variance_odds_prefer_equals() -> None:
    assert probabilities("pfsp_variance", [0.0, 0.5, 0.9]).tolist() == pytest.approx([0.0, 0.25 / 0.34, 0.09 / 0.34])


@pytest.mark.parametrize("selection", ["pfsp_hard", "pfsp_variance"])
def test_whom_nobody_has_played_is_as_likely_as_the_most_likely_can_be(selection: str) -> None:
    hardest = 0.0 if selection == "pfsp_hard" else 0.5

    assert probabilities(selection, [None, hardest]).tolist() == [0.5, 0.5]  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize(
    ("selection", "shares"), [("pfsp_hard", [1.0, 1.0]), ("pfsp_variance", [0.0, 1.0])], ids=["wins", "certain"]
)
def test_where_nobody_is_preferred_everybody_is_drawn(selection: str, shares: list[float | None]) -> None:
    assert probabilities(selection, shares).tolist() == [0.5, 0.5]  # type: ignore[arg-type]  # by name


def test_old_games_fade() -> None:
    payoffs = Payoffs()
    for _ in range(300):
        payoffs.played(0, 0.0)
    before = payoffs.share(0)
    for _ in range(69):
        payoffs.played(0, 1.0)

    assert before == 0.0
    assert payoffs.share(0) == pytest.approx((1 - MEMORY**69) / (1 - MEMORY**369))
    assert payoffs.share(1) is None


def test_payoffs_and_draws_go_on_from_their_state() -> None:
    payoffs, restored = Payoffs(), Payoffs()
    payoffs.played(3, 1.0)
    payoffs.played(3, 0.0)
    payoffs.played(40, 0.5)

    restored.load_state_dict(payoffs.state_dict())
    assert (restored.share(3), restored.share(40)) == (payoffs.share(3), payoffs.share(40))
    restored.forget_before(10)
    assert (restored.share(3), restored.share(40)) == (None, 0.5)
