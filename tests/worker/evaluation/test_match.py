"""Matches: which batches are played, what counts, and what another attempt goes on with."""

import json

import pytest
from pydantic import ValidationError

from ludus.collector.commands import CHAMPION_ALONE
from ludus.collector.messages import EndedGame
from ludus.config.assessment import MatchSettings
from ludus.protocol import batches
from worker.evaluation.evaluation import Outcome
from worker.evaluation.match import MatchEvaluator

CANDIDATE, CHAMPION = f"ckpt_{'a' * 26}", f"ckpt_{'b' * 26}"


def evaluator(
    seed_parameter: str | None = "seed", saved: dict[str, object] | None = None, seed: int = 3, **bounds: float
) -> MatchEvaluator:
    settings = MatchSettings(
        candidate=CANDIDATE,
        champion=CHAMPION,
        behavior="Duel",
        seed_parameter=seed_parameter,
        **bounds,  # type: ignore[arg-type]
    )
    return MatchEvaluator(settings, seed=seed, saved=saved)


def play(evaluator: MatchEvaluator, *outcomes: Outcome) -> None:
    """Play the next batch, with a game for each outcome."""
    games = [EndedGame(batches.Outcome[outcome.upper()], 0.0, 5, truncated=False) for outcome in outcomes]
    evaluator.count(evaluator.batch(evaluator.next_batch), games)


def test_each_seed_is_played_twice_with_sides_swapped() -> None:
    match = evaluator()

    batches = [match.batch(number) for number in range(4)]

    assert [batch.team for batch in batches] == [0, 1, 0, 1]
    assert batches[0].seed == batches[1].seed != batches[2].seed == batches[3].seed
    assert all(0 <= (batch.seed or 0) < 2**24 for batch in batches)


def test_seeds_are_those_of_the_run() -> None:
    assert evaluator(seed=3).batch(6) == evaluator().batch(6)
    assert evaluator(seed=4).batch(6).seed != evaluator().batch(6).seed


def test_without_seeds_sides_are_balanced_and_games_count_by_themselves() -> None:
    match = evaluator(None)

    play(match, "win", "loss")
    play(match, "draw")
    result = match.result()

    assert [match.batch(number).team for number in range(2)] == [0, 1]
    assert match.batch(0).seed is None
    assert (result["games"], result["wins"], result["draws"], result["losses"]) == (3, 1, 1, 1)
    assert (result["paired"], result["pairs"]) == (False, None)


def test_games_of_one_seed_count_together() -> None:
    match = evaluator()

    play(match, "win", "draw", "loss")
    before = match.result()
    play(match, "win", "loss", "loss")
    result = match.result()

    assert before["games"] == 0, "half a pair says nothing"
    assert result["pairs"] == [1, 1, 0, 0, 1]  # loss and loss, draw and loss, win and win
    assert (result["wins"], result["draws"], result["losses"]) == (2, 1, 3)
    assert result["score"] == pytest.approx(2.5 / 6)


def test_a_game_without_its_other_half_does_not_count() -> None:
    match = evaluator()

    play(match, "win", "win")
    play(match, "loss")

    assert match.result()["games"] == 2


def test_nothing_counts_after_the_verdict() -> None:
    match = evaluator(None, elo1=400.0)

    play(match, *["win"] * 50)

    assert match.verdict == "pass"
    assert match.games == match.result()["wins"] < 20
    assert match.result()["llr"] >= match.result()["llr_upper"]


def test_it_fails_and_says_so() -> None:
    match = evaluator(None, elo1=400.0)

    play(match, *["loss"] * 50)

    assert match.verdict == "fail"
    assert match.sentence().startswith("the candidate fails: a lead of 0 Elo explains its games better than one of 400")


def test_it_stays_undecided_at_the_most_games() -> None:
    match = evaluator(None, elo0=-1.0, elo1=1.0, max_games=10)

    play(match, *["win", "loss"] * 5)

    assert match.verdict == "undecided"
    assert match.result()["elo"] == pytest.approx(0.0)


def test_counting_goes_on_where_another_attempt_was() -> None:
    whole, first = evaluator(), evaluator()
    plan: list[tuple[Outcome, ...]] = [("win", "draw"), ("loss", "draw"), ("win", "win"), ("draw", "win")]
    for outcomes in plan:
        play(whole, *outcomes)
    for outcomes in plan[:3]:
        play(first, *outcomes)

    second = evaluator(saved=json.loads(json.dumps(first.state())))
    assert second.next_batch == 3
    play(second, *plan[3])

    assert second.result() == whole.result()
    assert second.state() == whole.state()


def test_what_counts_is_numbered_with_the_candidates_side() -> None:
    match = evaluator()
    play(match, "win")

    counted = match.count(match.batch(1), [EndedGame(batches.Outcome.LOSS, 0.0, 5, truncated=False)])

    assert counted == [(1, 0, "win"), (2, 1, "loss")]


def returns(evaluator: MatchEvaluator, *values: float) -> None:
    """Play the next batch, with an episode for each return."""
    games = [EndedGame(batches.Outcome.DRAW, value, 5, truncated=False) for value in values]
    assert evaluator.count(evaluator.batch(evaluator.next_batch), games) == []


def alone(saved: dict[str, object] | None = None, **bounds: float) -> MatchEvaluator:
    settings = MatchSettings(
        candidate=CANDIDATE,
        champion=CHAMPION,
        behavior="CartPole",
        seed_parameter="seed",
        compare="return",
        **{"elo0": -40.0, "elo1": 0.0, **bounds},  # type: ignore[arg-type]
    )
    return MatchEvaluator(settings, seed=3, saved=saved)


def test_a_game_of_one_player_is_played_by_each_policy_in_turn_with_one_seed() -> None:
    match = alone()

    planned = [match.batch(number) for number in range(4)]

    assert match.teams == 1
    assert [batch.team for batch in planned] == [None, CHAMPION_ALONE, None, CHAMPION_ALONE]
    assert planned[0].seed == planned[1].seed != planned[2].seed == planned[3].seed


def test_the_higher_return_wins_a_game_and_the_interval_is_that_of_the_differences() -> None:
    match = alone()

    returns(match, 10.0, 5.0, 7.0)
    returns(match, 8.0, 5.0, 9.0)
    result = match.result()

    assert (result["wins"], result["draws"], result["losses"], result["games"]) == (1, 1, 1, 3)
    assert (result["mean"], result["champion_mean"]) == pytest.approx((22 / 3, 22 / 3))
    # differences 2, 0, -2: mean 0, variance 8 / 3, standard error sqrt(8 / 3 / 2)
    assert result["difference_high"] == pytest.approx(1.96 * (8 / 3 / 2) ** 0.5)
    assert result["difference_low"] == -result["difference_high"]


def test_an_equal_policy_is_not_worse_and_a_worse_one_is() -> None:
    for mine, verdict in ((500.0, "pass"), (400.0, "fail")):
        match = alone()
        while match.verdict is None:
            returns(match, *[mine] * 8)
            returns(match, *[500.0] * 8)
        assert match.verdict == verdict
        assert match.result()["games"] < 200


def test_another_attempt_goes_on_between_the_two_halves_of_a_game() -> None:
    whole, match = alone(), alone()
    returns(match, 3.0, 1.0)
    again = alone(saved=json.loads(json.dumps(match.state())))

    for each in (whole, again):
        if each is whole:
            returns(each, 3.0, 1.0)
        returns(each, 2.0, 2.0)

    assert again.result() == whole.result()


def test_returns_are_not_compared_on_a_ladder() -> None:
    with pytest.raises(ValidationError, match="leave ladder out"):
        MatchSettings(candidate=CANDIDATE, champion=CHAMPION, behavior="B", ladder="league", compare="return")
