"""Numbers, texts and names as documents write them."""

import math

import pytest

from server.config.resolution import resolve
from tests.server.config.checks import behavior, codes_of, ppo_of, problem_of


@pytest.mark.parametrize(
    ("written", "steps"), [(5e5, 500_000), ("5e5", 500_000), ("5.0e+5", 500_000), (50000.7, 50_000), (7, 7), ("12", 12)]
)
def test_max_steps_is_read_as_a_float_and_cut(written: object, steps: int) -> None:
    assert ppo_of(behavior(max_steps=written)).max_steps == steps


@pytest.mark.parametrize(("text", "rate"), [("3e-4", 0.0003), ("3.0e-4", 0.0003), ("1", 1.0), ("'5e-5'", 0.00005)])
def test_text_of_yaml_1_1_that_denotes_a_float_is_one(text: str, rate: float) -> None:
    config = resolve(f"behaviors: {{A: {{hyperparameters: {{learning_rate: {text}}}}}}}")

    assert config.behaviors["A"].hyperparameters.learning_rate == rate


@pytest.mark.parametrize("written", [2048, 2048.0, "2048", "2.048e3", "2_048"])
def test_whole_numbers_may_be_written_as_floats_and_text(written: object) -> None:
    config = resolve(behavior(hyperparameters={"batch_size": written}))

    assert config.behaviors["A"].hyperparameters.batch_size == 2048


@pytest.mark.parametrize("written", [64.5, "64.5", "many", True, None, [64], "", {}])
def test_what_is_no_whole_number_is_refused(written: object) -> None:
    problem = problem_of(behavior(hyperparameters={"batch_size": written}))

    assert (problem.path, problem.code) == ("behaviors.A.hyperparameters.batch_size", "wrong_type")
    assert "must be a whole number" in problem.message


@pytest.mark.parametrize("written", ["fast", False, None, [0.1]])
def test_what_is_no_number_is_refused(written: object) -> None:
    assert problem_of(behavior(hyperparameters={"beta": written})).code == "wrong_type"


@pytest.mark.parametrize("written", ["nan", "inf", "-1e999", 2**1024 - 1])
def test_numbers_that_are_not_finite_are_refused(written: object) -> None:
    assert codes_of(behavior(hyperparameters={"beta": written})) == {"behaviors.A.hyperparameters.beta": "not_finite"}


@pytest.mark.parametrize("written", ["inf", "nan"])
def test_max_steps_has_to_be_finite(written: str) -> None:
    assert codes_of(behavior(max_steps=written)) == {"behaviors.A.max_steps": "not_finite"}


@pytest.mark.parametrize("written", ["false", "true", 1, 0, None])
def test_truth_values_are_never_text_or_numbers(written: object) -> None:
    problem = problem_of(behavior(threaded=written))

    assert (problem.path, problem.code) == ("behaviors.A.threaded", "wrong_type")


@pytest.mark.parametrize(
    "name", ["", " A", "A ", "A?team=0", "a/b", "..", ".a", "a\\b", "C:", "a\nb", "x" * 101, "猫" * 61]
)
def test_a_behavior_name_can_be_a_file_name(name: str) -> None:
    (code,) = codes_of({"behaviors": {name: {}}}).values()

    assert code == "invalid_value"


@pytest.mark.parametrize("name", ["3DBall", "My Behavior", "a.b", "Läufer", "A-1_b"])
def test_behavior_names_of_games_are_legal(name: str) -> None:
    assert list(resolve({"behaviors": {name: {}}}).behaviors) == [name]


def test_a_seed_has_31_bits() -> None:
    assert resolve(behavior() | {"seed": 2**31 - 1}).seed == 2**31 - 1
    assert codes_of(behavior() | {"seed": 2**31}) == {"seed": "out_of_range"}
    assert codes_of(behavior() | {"seed": -1}) == {"seed": "out_of_range"}


def test_numbers_are_stored_as_numbers() -> None:
    stored = resolve(behavior(hyperparameters={"beta": "1e-3"}, max_steps="1e3")).model_dump(mode="json")

    assert math.isclose(stored["behaviors"]["A"]["hyperparameters"]["beta"], 0.001)
    assert stored["behaviors"]["A"]["max_steps"] == 1000
