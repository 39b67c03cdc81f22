"""Measurements become points at multiples of `summary_freq`, aggregated as they say."""

import pytest

from ludus.collector.messages import StatsReported
from ludus.protocol.batches import Aggregation as Reported
from ludus.schemas import ScoredBy
from server.metrics.points import MetricPoint
from worker.trainer.messages import Metrics
from worker.trainer.recorder import (
    CUMULATIVE_REWARD,
    CUMULATIVE_REWARD_STD,
    EPISODE_LENGTH,
    EVALUATION_LENGTH,
    EVALUATION_REWARD,
    EXTRINSIC_REWARD,
    GROUP_REWARD,
    STEPS_PER_SECOND,
    Aggregation,
    Recorder,
)


def recorder_at(step: int = 0) -> tuple[Recorder, list[MetricPoint]]:
    points: list[MetricPoint] = []

    def post(metrics: Metrics) -> None:
        points.extend(metrics.points)

    return Recorder("Ball", 100, post, step, strength=0.5), points


def values(points: list[MetricPoint]) -> dict[str, float]:
    return {point.key: point.value for point in points if point.key != STEPS_PER_SECOND}


def test_a_summary_is_the_mean_of_what_was_measured_since_the_last_one() -> None:
    recorder, points = recorder_at()
    recorder.episode(10.0, 5)
    recorder.episode(20.0, 7, group_return=8.0)

    recorder.advance(105)

    # extrinsic: half of (10 + 28), the mean of both episodes, times the strength of 0.5; both lie 5 from their mean
    assert values(points) == {
        CUMULATIVE_REWARD: 15.0,
        CUMULATIVE_REWARD_STD: 5.0,
        EPISODE_LENGTH: 6.0,
        EXTRINSIC_REWARD: 9.5,
    }
    assert {point.step for point in points} == {100}


def test_no_return_is_invented_for_a_period_without_a_finished_episode() -> None:
    recorder, points = recorder_at()
    recorder.episode(10.0, 5)
    recorder.advance(100)
    points.clear()

    recorder.advance(200)

    assert values(points) == {}


def test_a_resumed_recorder_waits_for_the_next_multiple() -> None:
    recorder, points = recorder_at(step=150)
    recorder.episode(1.0, 1)

    recorder.advance(199)
    assert points == []

    recorder.advance(200)
    assert {point.step for point in points} == {200}


def test_last_and_sum_are_aggregated_as_such() -> None:
    recorder, points = recorder_at()
    for value in (1.0, 2.0, 4.0):
        recorder.measure("last", value, Aggregation.LAST)
        recorder.measure("sum", value, Aggregation.SUM)

    recorder.advance(100)

    assert values(points) == {"last": 4.0, "sum": 7.0}


def test_reported_averages_weigh_every_value_alike() -> None:
    recorder, points = recorder_at()
    recorder.reported(StatsReported("goal", Reported.AVERAGE, count=1, total=1.0, last=1.0, values=()))
    recorder.reported(StatsReported("goal", Reported.AVERAGE, count=3, total=0.0, last=0.0, values=()))

    recorder.advance(100)

    assert values(points) == {"goal": 0.25}


def test_the_checkpoint_return_is_of_the_last_episodes_and_not_of_the_whole_run() -> None:
    recorder, _ = recorder_at()
    assert recorder.take_checkpoint_return() is None
    for step in range(200):
        recorder.episode(float(step), 1)
        recorder.advance(step + 1)
    recorder.learned({})
    for _ in range(5):
        recorder.episode(1000.0, 1)

    few = (5 * 1000.0 + sum(range(185, 200))) / 20
    assert recorder.take_checkpoint_return() == (few, ScoredBy(kind="episodes", episodes=20, from_step=185))
    for _ in range(150):
        recorder.episode(2000.0, 1)
    assert recorder.take_checkpoint_return() == (2000.0, ScoredBy(kind="episodes", episodes=100, from_step=200))


def test_the_checkpoint_return_is_of_the_newest_policy_where_it_has_enough_episodes() -> None:
    recorder, _ = recorder_at()
    for _ in range(60):
        recorder.episode(1.0, 1)
    recorder.learned({})
    for _ in range(30):
        recorder.episode(7.0, 1)

    assert recorder.take_checkpoint_return() == (7.0, ScoredBy(kind="episodes", episodes=30, from_step=0))


def test_many_updates_within_one_summary_are_averaged_each_once() -> None:
    recorder, points = recorder_at()
    for loss in (1.0, 2.0, 6.0):
        recorder.learned({"Losses/Value Loss": loss})

    recorder.advance(100)
    recorder.advance(200)

    assert values(points) == {"Losses/Value Loss": 3.0}
    assert [point.step for point in points if point.key != STEPS_PER_SECOND] == [100], "the second period has no update"


def test_steps_that_come_in_one_burst_have_the_speed_of_the_time_before_and_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("worker.trainer.recorder.time.monotonic", lambda: clock[0])
    recorder, points = recorder_at()

    for seconds, step in ((2.0, 100), (0.0001, 200), (2.0, 300)):
        clock[0] += seconds
        recorder.advance(step)

    speeds = {point.step: point.value for point in points if point.key == STEPS_PER_SECOND}
    assert speeds == {100: 50.0, 300: pytest.approx(100.0, rel=1e-3)}


def test_an_evaluation_is_a_point_at_its_own_step() -> None:
    recorder, points = recorder_at()

    recorder.evaluated(130, [1.0, 2.0], [10, 30])

    assert values(points) == {EVALUATION_REWARD: 1.5, EVALUATION_LENGTH: 20.0}
    assert {point.step for point in points} == {130}
    assert recorder.take_checkpoint_return() == (1.5, ScoredBy(kind="evaluation", episodes=2, from_step=130))


def test_without_an_extrinsic_signal_there_is_no_extrinsic_reward() -> None:
    points: list[MetricPoint] = []
    recorder = Recorder("Ball", 100, lambda metrics: points.extend(metrics.points), strength=None)
    recorder.episode(10.0, 5)

    recorder.advance(100)

    assert values(points) == {CUMULATIVE_REWARD: 10.0, CUMULATIVE_REWARD_STD: 0.0, EPISODE_LENGTH: 5.0}


def test_groups_have_their_rewards_beside() -> None:
    points: list[MetricPoint] = []
    recorder = Recorder("Ball", 100, lambda metrics: points.extend(metrics.points), groups=True)
    recorder.episode(10.0, 5, group_return=4.0)

    recorder.advance(100)

    assert values(points)[GROUP_REWARD] == 4.0
    assert values(points)[EXTRINSIC_REWARD] == 14.0
