"""Packing and thinning of metrics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.metrics.points import MetricPoint, Points, Series, Window, common_edges, smoothed


def line(count: int) -> Points:
    steps = np.arange(count, dtype=np.int64) * 10
    return Points(steps, steps.astype(float), np.sin(steps))


def test_packing_keeps_every_bit() -> None:
    points = Points(np.array([1, 2**40], np.int64), np.array([0.1, 1.7e9]), np.array([np.nan, -np.inf]))

    again = Points.unpack(*points.pack())

    assert again.pack() == points.pack()


def test_of_several_points_with_one_step_the_last_counts() -> None:
    points = Points.of([MetricPoint("B", "k", step, 0.0, value) for step, value in [(2, 1.0), (1, 5.0), (2, 3.0)]])

    assert points.steps.tolist() == [1, 2]
    assert points.values.tolist() == [5.0, 3.0]


def test_few_points_are_not_thinned() -> None:
    series = Series.thin("run", "B", "k", line(10), 10)

    assert series.counts.tolist() == [1] * 10
    assert np.array_equal(series.values, line(10).values)


def test_a_bucket_keeps_mean_minimum_and_maximum_and_stands_at_its_last_point() -> None:
    points = Points(np.arange(1, 5), np.arange(1.0, 5.0), np.array([0.0, 10.0, 2.0, 4.0]))

    series = Series.thin("run", "B", "k", points, 2)

    assert series.steps.tolist() == [2, 4]
    assert series.values.tolist() == [5.0, 3.0]  # (0 + 10) / 2, (2 + 4) / 2
    assert series.minima.tolist() == [0.0, 2.0]
    assert series.maxima.tolist() == [10.0, 4.0]


@given(count=st.integers(0, 3000), buckets=st.integers(1, 700))
def test_thinning_loses_no_point_no_spike_and_no_end(count: int, buckets: int) -> None:
    points = line(count)

    series = Series.thin("run", "B", "k", points, buckets)

    assert len(series.steps) == min(count, buckets)
    assert series.total == count
    if count:
        assert series.counts.max() - series.counts.min() <= 1
        assert series.steps[-1] == points.steps[-1]
        assert series.minima.min() == points.values.min()
        assert series.maxima.max() == points.values.max()
        assert np.average(series.values, weights=series.counts) == pytest.approx(points.values.mean())


def test_values_that_are_not_finite_do_not_spoil_their_bucket() -> None:
    values = np.array([1.0, np.nan, 3.0, np.nan, np.nan, np.nan])

    series = Series.thin("run", "B", "k", Points(np.arange(6), np.arange(6.0), values), 2)

    assert series.values[0] == 2.0
    assert np.isnan(series.values[1])


@given(
    steps=st.lists(st.sets(st.integers(0, 10_000), max_size=300), min_size=1, max_size=6), buckets=st.integers(1, 200)
)
def test_common_edges_put_each_point_of_each_series_into_the_bucket_of_its_step(
    steps: list[set[int]], buckets: int
) -> None:
    histories = [
        Points(np.array(sorted(each), np.int64), np.array(sorted(each), float), np.sin(sorted(each))) for each in steps
    ]

    edges = common_edges(histories, buckets)
    all_series = [Series.between("run", "B", "k", history, edges) for history in histories]

    assert len(edges) - 1 <= buckets
    for history, series in zip(histories, all_series, strict=True):
        assert series.steps.tolist() == edges[1:].tolist()
        assert series.total == len(history)
        for first, last, count, at, lowest, mean in zip(
            edges, edges[1:], series.counts, series.times, series.minima, series.values, strict=False
        ):
            inside = (history.steps > first) & (history.steps <= last)
            assert count == inside.sum()
            if count:
                assert at == history.steps[inside].max()
                assert lowest == history.values[inside].min()
                assert mean == pytest.approx(history.values[inside].mean())
            else:
                assert np.isnan([at, lowest, mean]).all()


def test_as_few_steps_as_there_are_buckets_have_a_bucket_each() -> None:
    first = Points(np.array([10, 20, 30]), np.arange(3.0), np.arange(3.0))
    second = Points(np.array([20, 40]), np.arange(2.0), np.arange(2.0))

    assert common_edges([first, second], 4).tolist() == [9, 10, 20, 30, 40]
    assert common_edges([first, second], 3).tolist() == [9, 19, 29, 40]


def test_no_points_have_no_common_edges() -> None:
    edges = common_edges([Points.empty()], 10)

    assert Series.between("run", "B", "k", Points.empty(), edges).steps.tolist() == []


@given(
    values=st.lists(st.floats(-100, 100) | st.just(np.nan), max_size=300),
    smoothing=st.sampled_from([0.1, 0.6, 0.9, 0.99, 0.999]),
    new=st.integers(0, 50),
)
def test_smoothing_is_the_debiased_average_and_new_values_leave_the_past_as_it_was(
    values: list[float], smoothing: float, new: int
) -> None:
    expected, total, weight = [], 0.0, 0.0
    for value in values:
        if np.isfinite(value):
            total, weight = smoothing * total + value, smoothing * weight + 1
        expected.append(total / weight if weight else np.nan)

    found = smoothed(np.array(values), smoothing)

    assert found == pytest.approx(np.array(expected), rel=1e-9, abs=1e-9, nan_ok=True)
    later = smoothed(np.array([*values, *range(new)], float), smoothing)
    assert later[: len(values)] == pytest.approx(found, rel=1e-12, abs=1e-12, nan_ok=True)


def test_smoothed_values_of_a_bucket_stand_at_its_last_point_and_are_the_same_in_a_window() -> None:
    history = line(1000)
    full = smoothed(history.values, 0.9)

    whole = Series.thin("run", "B", "k", history, 10).smooth(history, 0.9)
    window = Series.thin("run", "B", "k", history.within(Window(5000, 6990)), 4).smooth(history, 0.9)

    assert whole.smoothed is not None
    assert whole.smoothed.tolist() == full[99::100].tolist()
    assert window.smoothed is not None
    assert window.smoothed.tolist() == full[549:700:50].tolist()


def test_a_bucket_without_points_has_no_smoothed_value() -> None:
    history = Points(np.array([10, 40]), np.arange(2.0), np.array([1.0, 2.0]))

    series = Series.between("run", "B", "k", history, np.array([0, 20, 30, 40])).smooth(history, 0.5)

    assert series.smoothed is not None
    assert np.isnan(series.smoothed).tolist() == [False, True, False]
