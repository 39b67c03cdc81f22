"""Values for native simulators: from the right distribution, repeatable, different in each simulator."""

import statistics

from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform
from ludus.sdk.environment_parameters import EnvironmentParameters, ParameterDraws


def drawn(value: ParameterValue, number: int = 0, count: int = 4000) -> list[float]:
    """Draw one parameter again and again."""
    draws = ParameterDraws({"p": value}, number)
    return [draws.next()["p"] for _ in range(count)]


def test_a_constant_stays() -> None:
    assert drawn(Constant(9.81), count=3) == [9.81, 9.81, 9.81]


def test_a_uniform_value_lies_anywhere_between_its_bounds() -> None:
    values = drawn(Uniform(2.0, 4.0, seed=1))

    assert min(values) >= 2
    assert max(values) <= 4
    # The mean of 4,000 such values has a standard error of (4 - 2) / sqrt(12 * 4000) = 0.009.
    assert abs(statistics.fmean(values) - 3) < 0.05


def test_a_gaussian_value_has_its_mean_and_deviation() -> None:
    values = drawn(Gaussian(10.0, 2.0, seed=1))

    assert abs(statistics.fmean(values) - 10) < 0.15
    assert abs(statistics.stdev(values) - 2) < 0.15


def test_a_negative_deviation_is_that_of_its_magnitude() -> None:
    assert abs(statistics.stdev(drawn(Gaussian(0.0, -2.0, seed=1))) - 2) < 0.15


def test_wider_intervals_are_drawn_from_more_often() -> None:
    values = drawn(MultiRangeUniform(((0.0, 1.0), (5.0, 8.0), (9.0, 9.0)), seed=1))

    low = sum(value <= 1 for value in values)
    assert all(0 <= value <= 1 or 5 <= value <= 8 for value in values)
    assert abs(low / len(values) - 0.25) < 0.03


def test_intervals_that_are_points_are_drawn_from_alike() -> None:
    assert set(drawn(MultiRangeUniform(((1.0, 1.0), (2.0, 2.0)), seed=1), count=100)) == {1.0, 2.0}


def test_draws_repeat_with_seed_and_number_and_differ_otherwise() -> None:
    value = Uniform(0.0, 1.0, seed=-7)

    assert drawn(value, 3, 10) == drawn(value, 3, 10)
    assert drawn(value, 3, 10) != drawn(value, 4, 10)
    assert drawn(value, 3, 10) != drawn(Uniform(0.0, 1.0, seed=8), 3, 10)


def test_parameters_do_not_disturb_each_other() -> None:
    alone = drawn(Uniform(0.0, 1.0, seed=5), 0, 5)

    both = ParameterDraws({"a": Gaussian(0.0, 1.0, seed=5), "p": Uniform(0.0, 1.0, seed=5)}, 0)

    assert [both.next()["p"] for _ in range(5)] == alone


def test_unchanged_samplers_go_on_when_others_change() -> None:
    both = {"wind": Uniform(0.0, 1.0, seed=1), "mass": Uniform(0.0, 1.0, seed=2)}
    undisturbed, changed = ParameterDraws(both, 3), ParameterDraws(both, 3)
    assert undisturbed.next() == changed.next()

    changed.change({**both, "mass": Uniform(0.0, 1.0, seed=9), "gap": Constant(1.0)})

    one, other = undisturbed.next(), changed.next()
    assert one["wind"] == other["wind"]
    assert one["mass"] != other["mass"]
    assert other["gap"] == 1.0


def test_a_game_reads_what_it_was_told_and_draws_where_there_are_samplers() -> None:
    parameters = EnvironmentParameters({"wind": 0.5, "gravity": 9.5}, {"wind": Uniform(2.0, 3.0, seed=1)}, number=4)

    assert dict(parameters) == {"wind": 0.5, "gravity": 9.5}
    first, second = parameters.draw(), parameters.draw()
    assert first["gravity"] == second["gravity"] == 9.5
    assert 2.0 <= first["wind"] <= 3.0
    assert first["wind"] != second["wind"]
    assert dict(parameters) == {"wind": 0.5, "gravity": 9.5}, "drawing changes nothing"


def test_a_games_draws_are_repeatable_and_others_in_each_simulator_and_not_the_servers() -> None:
    sampler = {"wind": Uniform(0.0, 1.0, seed=1)}

    first = EnvironmentParameters({}, sampler, number=4).draw()

    assert EnvironmentParameters({}, sampler, number=4).draw() == first
    assert EnvironmentParameters({}, sampler, number=5).draw() != first
    assert ParameterDraws(sampler, 4).next() != first
