"""Evaluations: episodes that count, and the verdict on their mean."""

import json
from collections.abc import Sequence

import pytest

from ludus.collector.messages import EndedGame
from ludus.config.assessment import EvaluateSettings
from ludus.protocol.batches import Outcome
from worker.evaluation.evaluation import EpisodeEvaluator


def evaluator(saved: dict[str, object] | None = None, **fields: object) -> EpisodeEvaluator:
    settings = EvaluateSettings.model_validate({"checkpoint": f"ckpt_{'a' * 26}", "behavior": "CartPole", **fields})
    return EpisodeEvaluator(settings, seed=3, saved=saved)


def play(evaluator: EpisodeEvaluator, returns: Sequence[float]) -> None:
    games = [EndedGame(Outcome.DRAW, value, int(value), truncated=False) for value in returns]
    evaluator.count(evaluator.batch(evaluator.next_batch), games)


@pytest.mark.parametrize(
    ("threshold", "verdict"), [(8.0, "pass"), (10.0, "undecided"), (12.0, "fail"), (None, "pass"), (-5.0, "pass")]
)
def test_the_whole_interval_decides(threshold: float | None, verdict: str) -> None:
    evaluation = evaluator(episodes=40, threshold=threshold)

    play(evaluation, [9.0, 11.0] * 20)  # mean 10, error 1 / sqrt(40) = 0.16

    result = evaluation.result()
    assert evaluation.verdict == result["verdict"] == verdict
    assert result["mean"] == 10.0
    assert 9.5 < result["low"] < 10.0 < result["high"] < 10.5


def test_there_is_no_verdict_before_all_episodes_are_played() -> None:
    evaluation = evaluator(episodes=3, threshold=1.0)

    play(evaluation, [5.0, 5.0])

    assert evaluation.verdict is None
    assert evaluation.result()["episodes"] == 2


def test_episodes_beyond_those_wanted_do_not_count() -> None:
    evaluation = evaluator(episodes=3, threshold=1.0)

    play(evaluation, [5.0, 5.0, 5.0, -1000.0])

    assert (evaluation.verdict, evaluation.result()["mean"], evaluation.result()["episodes"]) == ("pass", 5.0, 3)


def test_an_interval_without_width_reaches_the_threshold_that_it_equals() -> None:
    evaluation = evaluator(episodes=2, threshold=500.0)

    play(evaluation, [500.0, 500.0])

    assert evaluation.verdict == "pass"


@pytest.mark.parametrize("threshold", [-1000.0, 475.0, 10_000.0])
def test_one_episode_decides_nothing(threshold: float) -> None:
    evaluation = evaluator(episodes=1, threshold=threshold)

    play(evaluation, [500.0])

    result = evaluation.result()
    assert (evaluation.verdict, result["mean"], result["low"], result["high"]) == ("undecided", 500.0, None, None)
    assert evaluation.sentence().startswith("undecided: a return of 500 in a single episode, which has no interval")


def test_one_episode_without_a_threshold_passes() -> None:
    evaluation = evaluator(episodes=1)

    play(evaluation, [500.0])

    assert (evaluation.verdict, evaluation.result()["low"]) == ("pass", None)


def test_seeds_are_the_same_in_every_evaluation_of_a_run_seed() -> None:
    one, other = evaluator(seed_parameter="seed"), evaluator(seed_parameter="seed", episodes=7, threshold=3.0)

    seeds = [one.batch(number).seed for number in range(5)]

    assert seeds == [other.batch(number).seed for number in range(5)]
    assert len(set(seeds)) == 5
    assert evaluator().batch(0).seed is None


def test_counting_goes_on_where_another_attempt_was() -> None:
    first = evaluator(episodes=4)
    play(first, [1.0])
    play(first, [2.0])

    second = evaluator(json.loads(json.dumps(first.state())), episodes=4)
    assert second.next_batch == 2
    play(second, [3.0, 4.0])

    assert second.result()["mean"] == 2.5
    assert second.sentence().startswith("a mean return of 2.5 over 4 episodes")
