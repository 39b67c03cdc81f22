"""A wrong experiment is refused with a sentence that names the key, and nothing is created."""

import re
import sys
from typing import Any

import pytest

from server.lifecycle.experiments.requests import Budget, ExperimentSpec, Objective, Parameter
from tests.server.app.world import World
from tests.server.lifecycle.experiments.fleet import CONFIG, EPOCHS, LR

GOOD: dict[str, Any] = {
    "name": "good",
    "config": CONFIG,
    "parameters": {LR: {"min": 1e-5, "max": 1e-2, "scale": "log"}},
    "budget": {"runs": 10},
}
UNKNOWN = "behaviors.CartPole.hyperparameters.learning_rat"


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"budget": {"runs": 0}}, "budget.runs", "must be at least 1"),
        ({"budget": {"hours": 0}}, "budget.hours", "must be greater than 0"),
        ({"budget": {"steps": -1}}, "budget.steps", "must be at least 1"),
        ({"budget": {"gpu_hours": 0}}, "budget.gpu_hours", "must be greater than 0"),
        ({"budget": {}}, "", "has no budget, and no sampler but grid ends by itself"),
        ({"budget": {"minutes": 3}}, "budget.minutes", "is not known here"),
        ({"budget": {"runs": 4}, "seeds": 5}, "", "has budget.runs 4, and one setting takes 5"),
        ({"sampler": "bayes"}, "sampler", "must be 'tpe', 'random', 'grid', 'qmc', 'cmaes' or 'gp'"),
        ({"sampler": "grid"}, "", f"has the sampler grid, and {LR} has neither values nor a step"),
        ({"sampler": "grid", "parameters": {LR: {"values": [1e-3]}}, "baseline": True}, "", "leave baseline out"),
        ({"parameters": {LR: {}}}, f"parameters.{LR}", "give either values, or min and max"),
        ({"parameters": {LR: {"min": 1}}}, f"parameters.{LR}", "give either values, or min and max"),
        ({"parameters": {LR: {"values": []}}}, f"parameters.{LR}.values", "must not have fewer entries than 1"),
        ({"parameters": {LR: {"values": [1, 1]}}}, f"parameters.{LR}", "has a value twice"),
        ({"parameters": {LR: {"min": 2, "max": 1}}}, f"parameters.{LR}", "has no room: min is 2, and max is 1"),
        ({"parameters": {LR: {"min": 0, "max": 1, "scale": "log"}}}, f"parameters.{LR}", "needs a min above 0"),
        ({"parameters": {"seed": {"values": [1, 2]}}}, "", "varies seed, which each run gets by seeds"),
        ({"parameters": {UNKNOWN: {"values": [1e-3]}}}, f"parameters.{UNKNOWN}", "learning_rate"),
        ({"parameters": {LR: {"min": 1e-3, "max": 2.0}}}, f"parameters.{LR}", "with 2.0: "),
        ({"parameters": {EPOCHS: {"min": 0, "max": 3}}}, f"parameters.{EPOCHS}", "with 0: "),
        ({"parameters": {EPOCHS: {"values": ["many"]}}}, f"parameters.{EPOCHS}", "with 'many': "),
        ({"parameters": {"nothing.at.all": {"values": [1]}}}, "parameters.nothing.at.all", "nothing"),
        ({"early_stopping": {"type": "asha", "min_steps": 0}}, "early_stopping.min_steps", "must be at least 1"),
        ({"early_stopping": {"min_steps": 9, "max_steps": 9}}, "early_stopping", "not above min_steps, 9"),
        ({"early_stopping": {"min_steps": 10000}}, "early_stopping", "is not above min_steps, 10000"),
        ({"parameters": {}, "sampler": "grid", "budget": {}}, "", "neither values nor a step"),
        (
            {"parameters": {EPOCHS: {"min": 1, "max": 10**9}}, "sampler": "grid"},
            "",
            "1,000,000,000 settings; 100,000 are the most",
        ),
        ({"objective": {"evaluate": {"episodez": 5}}}, "objective.evaluate.episodez", "is not known here"),
        ({"objective": {"match": {"champion": "nope"}}}, "objective.match.champion", "nope"),
        (
            {"population": {"members": 4, "interval": 10}},
            "population.interval",
            "below behaviors.CartPole.checkpoint_interval, 500000",
        ),
        ({"early_stopping": {}, "objective": {"evaluate": {}}}, "", "leave objective.evaluate out"),
        ({"objective": {"evaluate": {}, "match": {}}}, "objective", "give one of evaluate, match and rating"),
        ({"objective": {"mode": "best"}}, "objective.mode", "must be 'max' or 'min'"),
        ({"config": None}, "", "give either config or config_name"),
        ({"config": {"behaviors": {}}}, "", ""),
        ({"config": "behaviors: ["}, "", ""),
        ({"name": "a/b"}, "name", "must be"),
        ({"parallelism": 0}, "parallelism", "must be at least 1"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_with_its_place(world: World, changes: dict[str, Any], path: str, words: str) -> None:
    answer = world.http.post("/v1/experiments", json={**GOOD, **changes})

    assert answer.status_code in {400, 422}, answer.text
    problems = {item["path"]: item["message"] for item in answer.json().get("errors", [])}
    assert any(words in message for message in problems.values()), problems
    assert path in problems or not path, problems
    assert world.http.get("/v1/experiments").json()["experiments"] == []


def test_a_sampler_that_lacks_a_package_is_refused_when_the_experiment_is_created(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)  # as where it is not installed

    answer = world.http.post("/v1/experiments", json={**GOOD, "sampler": "cmaes"})

    assert answer.json()["code"] == "sampler_failed"
    assert "The sampler cmaes failed: " in answer.json()["detail"]
    assert world.http.get("/v1/experiments").json()["experiments"] == []


def test_validate_only_answers_every_default_and_creates_nothing(world: World) -> None:
    answer = world.http.post(
        "/v1/experiments", json={**GOOD, "parameters": {}, "early_stopping": {}, "validate_only": True}
    )

    planned = answer.json()
    assert answer.status_code == 200, answer.text
    assert LR in planned["spec"]["parameters"]
    assert planned["spec"]["early_stopping"] == {
        "type": "asha",
        "min_steps": 1000,
        "max_steps": 9000,
        "reduction_factor": 3,
    }
    assert planned["spec"]["objective"]["metric"] == "Environment/Cumulative Reward"
    assert planned["spec"]["baseline"] is True
    assert isinstance(planned["spec"]["seed"], int)
    assert world.http.get("/v1/experiments").json()["experiments"] == []


def test_the_usual_keys_hold_the_values_of_the_configuration_and_add_no_reward_signal(world: World) -> None:
    behavior = {
        **CONFIG["behaviors"]["CartPole"],
        "hyperparameters": {"learning_rate": 1e-2, "batch_size": 48, "buffer_size": 480, "beta": 0.0},
        "reward_signals": {"curiosity": {}},
    }
    request = {**GOOD, "config": {"behaviors": {"CartPole": behavior}}, "parameters": {}, "validate_only": True}

    parameters = world.http.post("/v1/experiments", json=request).json()["spec"]["parameters"]

    keys = "behaviors.CartPole.hyperparameters"
    assert parameters[f"{keys}.learning_rate"]["max"] == 1e-2
    assert 48 in parameters[f"{keys}.batch_size"]["values"]
    assert 480 in parameters[f"{keys}.buffer_size"]["values"]
    assert parameters[f"{keys}.beta"]["min"] == 1e-4, "a logarithm has no 0"
    assert not [path for path in parameters if "reward_signals" in path]


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ({"min": 2, "max": 8, "step": 3}, [2, 5, 8]),
        ({"min": 2, "max": 9, "step": 3}, [2, 5, 8]),
        ({"min": 0.1, "max": 0.3, "step": 0.1}, [0.1, 0.2, 0.3]),
        ({"min": 1, "max": 3}, [1, 2, 3]),
        ({"values": [True, 1, None, "x"]}, [True, 1, None, "x"]),
    ],
)
def test_the_grid_of_a_key_has_both_ends_and_only_values_that_it_holds(
    parameter: dict[str, Any], values: list[Any]
) -> None:
    read = Parameter.model_validate(parameter)

    assert read.grid == pytest.approx(values) if all(type(value) is float for value in values) else read.grid == values
    assert all(read.holds(value) for value in read.grid)
    assert not read.holds("none of them")


def test_a_stored_spec_reads_as_it_was() -> None:
    spec = ExperimentSpec(parameters={LR: Parameter(values=[1e-3])}, budget=Budget(runs=1), objective=Objective())

    assert ExperimentSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert re.fullmatch("Environment/.*", spec.objective.metric)
