"""Environment parameters: their forms, their mistakes, their seeds."""

from typing import Any

import pytest

from ludus.config.environment_parameters import describe
from ludus.config.run import RunConfig
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform
from server.config.resolution import resolve, review
from tests.server.config.checks import behavior, problem_of


def sampler(kind: str, **numbers: Any) -> dict[str, Any]:
    """Write a sampler."""
    return {"sampler_type": kind, "sampler_parameters": numbers}


def parameters(**forms: Any) -> dict[str, Any]:
    """Write a document with environment parameters."""
    return behavior() | {"environment_parameters": forms}


def lesson(value: Any, **criteria: Any) -> dict[str, Any]:
    """Write a lesson, with criteria if there are any."""
    return {"name": "L", "value": value} | ({"completion_criteria": {"behavior": "A", **criteria}} if criteria else {})


@pytest.mark.parametrize(
    "form",
    [
        9.81,
        "9.81",
        sampler("constant", value=9.81, seed=3),
        {"curriculum": [{"name": "only", "value": 9.81}]},
        {"curriculum": [{"name": 1, "value": sampler("constant", value="9.81")}]},
    ],
)
def test_a_constant_is_a_number_however_it_is_written(form: object) -> None:
    assert resolve(parameters(gravity=form)).samplers(0) == {"gravity": Constant(9.81)}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (sampler("uniform", min_value=1, max_value=2, seed=5), Uniform(1.0, 2.0, 5)),
        (sampler("gaussian", mean=1, st_dev=2, seed=5), Gaussian(1.0, 2.0, 5)),
        (
            sampler("multirangeuniform", intervals=[[1, 2], [3, 4]], seed=5),
            MultiRangeUniform(((1.0, 2.0), (3.0, 4.0)), 5),
        ),
        ({"curriculum": [lesson(sampler("uniform", seed=9), threshold=1), lesson(3)]}, Uniform(0.0, 1.0, 9)),
    ],
)
def test_a_parameter_begins_as_its_first_lesson_says(form: object, expected: ParameterValue) -> None:
    assert resolve(parameters(p=form)).samplers(0) == {"p": expected}


def test_seeds_count_up_over_all_values_without_one_constants_too() -> None:
    config = resolve(
        parameters(
            z=1,
            y=sampler("uniform"),
            x={"curriculum": [lesson(sampler("gaussian"), threshold=1), lesson(sampler("gaussian", seed=4))]},
            a=sampler("uniform"),
        )
    )

    # z takes 100, y 101, x 102 and none, a 103.
    assert config.samplers(100)["y"] == Uniform(0.0, 1.0, 101)
    assert config.samplers(100)["x"] == Gaussian(1.0, 1.0, 102)
    assert config.samplers(100)["a"] == Uniform(0.0, 1.0, 103)


def test_a_run_keeps_its_seeds_where_the_order_of_keys_is_lost() -> None:
    config = resolve(parameters(z=sampler("uniform"), a=sampler("uniform")))
    stored = config.with_seed(7).model_dump(mode="json")
    stored["environment_parameters"] = dict(sorted(stored["environment_parameters"].items()))

    loaded = RunConfig.model_validate(stored)

    assert loaded.seed == 7
    assert loaded.samplers(7) == config.samplers(7)


def test_seeds_stay_within_31_bits() -> None:
    config = resolve(parameters(a=sampler("uniform"), b=sampler("uniform")))

    assert config.samplers(2**31 - 1)["b"] == Uniform(0.0, 1.0, 0)


@pytest.mark.parametrize("form", [sampler("poisson"), {"sampler_type": ["uniform"]}, {}, [1], True, None])
def test_nonsense_is_no_parameter(form: object) -> None:
    problem = problem_of(parameters(g=form))

    assert (problem.path, problem.code) == ("environment_parameters.g", "wrong_type")
    assert "constant, uniform, gaussian or multirangeuniform" in problem.message


@pytest.mark.parametrize(
    ("form", "path", "code"),
    [
        ("heavy", "", "wrong_type"),
        (1e39, "", "out_of_range"),
        ({"sampler_type": "uniform"}, ".sampler_parameters", "missing"),
        ({**sampler("uniform"), "seed": 1}, ".seed", "unknown_key"),
        (sampler("uniform", mean=1), ".sampler_parameters.mean", "unknown_key"),
        (sampler("uniform", min_value=2), ".sampler_parameters.min_value", "contradiction"),
        (sampler("uniform", seed=2**31), ".sampler_parameters.seed", "out_of_range"),
        (sampler("multirangeuniform", intervals=[[1]]), ".sampler_parameters.intervals", "invalid_value"),
        (sampler("multirangeuniform", intervals=[[1, 2, 3]]), ".sampler_parameters.intervals", "invalid_value"),
        (sampler("multirangeuniform", intervals=[[2, 1]]), ".sampler_parameters.intervals", "contradiction"),
        (sampler("multirangeuniform", intervals=[]), ".sampler_parameters.intervals", "out_of_range"),
        ({"curriculum": []}, ".curriculum", "out_of_range"),
        ({"curriculum": [lesson(1)], "value": 1}, ".value", "unknown_key"),
        ({"curriculum": [lesson(1), lesson(2)]}, ".curriculum", "invalid_value"),
        ({"curriculum": [{"value": 1}]}, ".curriculum[0].name", "missing"),
        ({"curriculum": [{"name": "L"}]}, ".curriculum[0].value", "missing"),
        ({"curriculum": [lesson("x")]}, ".curriculum[0].value", "wrong_type"),
        ({"curriculum": [lesson({"curriculum": []})]}, ".curriculum[0].value", "wrong_type"),
        (
            {"curriculum": [lesson(sampler("gaussian", mean="x"))]},
            ".curriculum[0].value.sampler_parameters.mean",
            "wrong_type",
        ),
        (
            {"curriculum": [lesson(1, measure="Reward"), lesson(2)]},
            ".curriculum[0].completion_criteria.measure",
            "invalid_value",
        ),
        (
            {"curriculum": [lesson(1, measure="a\nb"), lesson(2)]},
            ".curriculum[0].completion_criteria.measure",
            "invalid_value",
        ),
        (
            {"curriculum": [lesson(1, measure="Elo"), lesson(2)]},
            ".curriculum[0].completion_criteria.measure",
            "contradiction",
        ),
        (
            {"curriculum": [lesson(1, behavior="B"), lesson(2)]},
            ".curriculum[0].completion_criteria.behavior",
            "not_found",
        ),
        (
            {"curriculum": [lesson(1, fall_back_below=0.1, threshold=0.5), lesson(2)]},
            ".curriculum[0].completion_criteria.fall_back_below",
            "contradiction",
        ),
        (
            {"curriculum": [lesson(1, threshold=0), lesson(2, fall_back_below=0.6, threshold=0.5), lesson(3)]},
            ".curriculum[1].completion_criteria.fall_back_below",
            "contradiction",
        ),
        (
            {"curriculum": [lesson(1, threshold=0), lesson(2, measure="progress", fall_back_below=0.1)]},
            ".curriculum[1].completion_criteria.fall_back_below",
            "contradiction",
        ),
        ({"curriculum": [lesson(1)], "starting_lesson": 2}, ".starting_lesson", "invalid_value"),
        ({"curriculum": [lesson(1)], "starting_lesson": 0}, ".starting_lesson", "invalid_value"),
        ({"curriculum": [lesson(1)], "starting_lesson": "High"}, ".starting_lesson", "invalid_value"),
        ({"curriculum": [lesson(1)], "starting_lesson": True}, ".starting_lesson", "wrong_type"),
        (
            {"curriculum": [lesson(1, measure="progress", threshold=1.5), lesson(2)]},
            ".curriculum[0].completion_criteria.threshold",
            "out_of_range",
        ),
        (
            {"curriculum": [lesson(1, min_length=3), lesson(2)]},
            ".curriculum[0].completion_criteria.min_length",
            "unknown_key",
        ),
    ],
)
def test_a_mistake_in_a_parameter_is_reported_where_it_is(form: object, path: str, code: str) -> None:
    problem = problem_of(parameters(p=form))

    assert (problem.path, problem.code) == (f"environment_parameters.p{path}", code)


def test_rewards_may_have_any_threshold() -> None:
    resolve(parameters(p={"curriculum": [lesson(1, threshold=-300), lesson(2)]}))


def test_criteria_of_the_last_lesson_are_warned_of() -> None:
    _, warnings = review(parameters(p={"curriculum": [lesson(1, threshold=0), lesson(2, threshold=1)]}))

    assert [(warning.path, warning.code) for warning in warnings] == [
        ("environment_parameters.p.curriculum[1].completion_criteria", "no_effect")
    ]


def test_the_last_lesson_may_fall_back() -> None:
    curriculum = {"curriculum": [lesson(1, threshold=0.5), lesson(2, fall_back_below=0.2)]}

    assert review(parameters(p=curriculum))[1] == []


def test_an_unknown_behavior_in_a_criterion_is_refused_with_those_that_there_are() -> None:
    problem = problem_of(parameters(p={"curriculum": [lesson(1, behavior="Walker"), lesson(2)]}))

    assert problem.message == '"Walker" is not trained in this run, so the lesson would never end; there is A'


def test_a_template_trains_every_behavior() -> None:
    document = parameters(p={"curriculum": [lesson(1, behavior="B"), lesson(2)]})

    resolve({**document, "default_settings": {"trainer_type": "ppo"}})


def test_self_play_can_be_measured_by_elo() -> None:
    document = parameters(p={"curriculum": [lesson(1, measure="Elo", threshold=1300), lesson(2)]})

    assert resolve({**document, **behavior(self_play={})}).lessons()["p"][0].completion_criteria is not None


@pytest.mark.parametrize("measure", ["Environment/Success", "Goals", "reward/mean"])
def test_a_measure_may_be_any_metric(measure: str) -> None:
    config = resolve(parameters(p={"curriculum": [lesson(1, measure=measure), lesson(2)]}))

    criteria = config.lessons()["p"][0].completion_criteria
    assert criteria is not None
    assert criteria.measure == measure


@pytest.mark.parametrize(("written", "meant"), [("Reward", "reward"), ("elo", "Elo"), ("progres", "progress")])
def test_a_misspelt_measure_is_no_metric(written: str, meant: str) -> None:
    problem = problem_of(parameters(p={"curriculum": [lesson(1, measure=written), lesson(2)]}))

    assert problem.message.endswith(f"did you mean `{meant}`?")


@pytest.mark.parametrize("starting_lesson", [2, "2", "High"])
def test_a_parameter_may_begin_with_another_lesson(starting_lesson: object) -> None:
    lessons = [{**lesson(1, threshold=0), "name": "Low"}, {**lesson(2), "name": "High"}]
    config = resolve(parameters(p={"curriculum": lessons, "starting_lesson": starting_lesson}))

    assert config.first_lessons() == {"p": 1}
    assert config.samplers(0) == {"p": Constant(2.0)}


def test_a_name_of_digits_goes_before_a_number() -> None:
    lessons = [{**lesson(1, threshold=0), "name": "2"}, {**lesson(2), "name": "1"}]

    assert resolve(parameters(p={"curriculum": lessons, "starting_lesson": "2"})).first_lessons() == {"p": 0}
    assert resolve(parameters(p={"curriculum": lessons, "starting_lesson": 2})).first_lessons() == {"p": 1}


def test_a_lesson_that_is_not_there_is_refused_with_those_that_are() -> None:
    problem = problem_of(parameters(p={"curriculum": [lesson(1, threshold=0), lesson(2)], "starting_lesson": 3}))

    assert problem.message == 'there is no lesson 3; lessons are counted from 1, there is 1 "L", 2 "L"'


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (3, "Float: value=3.0"),
        (sampler("constant", value=3), "Float: value=3.0"),
        (sampler("uniform", min_value=1, max_value=2), "Uniform sampler: min=1.0, max=2.0"),
        (sampler("gaussian", mean=1, st_dev=2), "Gaussian sampler: mean=1.0, stddev=2.0"),
        (sampler("multirangeuniform", intervals=[[1, 2]]), "MultiRangeUniform sampler: intervals=[[1.0, 2.0]]"),
    ],
)
def test_values_are_written_as_in_the_log_of_ml_agents(value: object, line: str) -> None:
    (only,) = resolve(parameters(p=value)).lessons()["p"]

    assert describe(only.value) == line
