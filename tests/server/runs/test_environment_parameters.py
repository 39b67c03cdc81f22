"""Environment parameters over HTTP: where lessons are, and changes while a run goes on."""

from dataclasses import asdict
from typing import Any

import httpx2
import pytest

from ludus.config.curriculum import status_of
from ludus.config.environment_parameters import Lesson
from ludus.schemas.states import RunState
from tests.server.app.world import World

CONFIG: dict[str, Any] = {
    "seed": 7,
    "behaviors": {"Jumper": {}},
    "environment_parameters": {
        "wall": {
            "curriculum": [
                {
                    "name": "Low",
                    "value": 1,
                    "completion_criteria": {"behavior": "Jumper", "threshold": 0.8, "min_lesson_length": 100},
                },
                {"name": "High", "value": {"sampler_type": "uniform", "sampler_parameters": {"max_value": 4}}},
            ],
        },
        "gravity": 9.81,
    },
}


@pytest.fixture
def run(world: World) -> str:
    return str(world.create(CONFIG)["id"])


def path(run: str) -> str:
    return f"/v1/runs/{run}/environment_parameters"


def patch(world: World, run: str, **parameters: Any) -> httpx2.Response:
    return world.http.patch(path(run), json={"parameters": parameters})


def events(world: World, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.http.get(f"/v1/runs/{run}/events").json()["events"]
    return found


def test_a_run_that_has_not_begun_is_in_its_first_lesson(world: World, run: str) -> None:
    answer = world.http.get(path(run))

    assert answer.status_code == 200
    wall, gravity = sorted(answer.json()["parameters"], key=lambda each: -each["lessons"])
    assert wall == {
        "name": "wall",
        "lesson": 1,
        "lessons": 2,
        "lesson_name": "Low",
        "value": 1.0,
        "measure": "reward",
        "measured": None,
        "threshold": 0.8,
        "episodes": 0,
        "min_lesson_length": 100,
        "waits_for": "lesson 1 of 2 'Low': waits for the behavior 'Jumper', which has no trainer yet",
    }
    assert (gravity["value"], gravity["waits_for"]) == (9.81, "no curriculum: Float: value=9.81")
    assert answer.json()["pending"] == []


def test_what_the_trainer_says_is_answered(world: World, run: str) -> None:
    trainer = world.claim(run).start()
    lessons = [Lesson.model_validate(each) for each in CONFIG["environment_parameters"]["wall"]["curriculum"]]
    status = status_of("wall", lessons, 0, 1.0, measured=0.61, episodes=74, trained=True)

    trainer.ledger.parameters.publish([asdict(status)], 0)

    (wall,) = world.http.get(path(run)).json()["parameters"]
    assert (wall["measured"], wall["episodes"]) == (0.61, 74)
    assert wall["waits_for"] == "lesson 1 of 2 'Low': smoothed reward 0.61, needs > 0.80; 74 of 100 episodes"
    trainer.finish()


def test_changes_wait_until_the_trainer_has_done_them(world: World, run: str) -> None:
    answer = patch(world, run, wall={"lesson": "High"}, gravity={"value": 1.5})
    assert answer.status_code == 200
    wanted = [(each["seq"], each["parameter"], each["change"]) for each in answer.json()["pending"]]
    assert wanted == [(1, "wall", {"lesson": 2}), (2, "gravity", {"value": 1.5})]

    trainer = world.claim(run).start()
    assert trainer.ledger.parameters.edits(0) == wanted
    assert trainer.ledger.parameters.edits(1) == wanted[1:]
    trainer.ledger.parameters.publish([], 1)

    assert [each["seq"] for each in world.http.get(path(run)).json()["pending"]] == [2]
    trainer.finish()


def test_a_change_is_an_event(world: World, run: str) -> None:
    sampler = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 2, "max_value": 3}}

    patch(world, run, wall={"lesson": 2, "value": sampler})

    event = events(world, run)[-1]
    assert event["type"] == "parameter_change_requested"
    assert event["message"] == (
        "A user asked for lesson 2 of 2 'High' with the value Uniform sampler: min=2.0, max=3.0 of parameter 'wall'."
    )
    assert event["data"]["value"]["sampler_parameters"] == {"seed": 7, "min_value": 2.0, "max_value": 3.0}


@pytest.mark.parametrize(
    ("parameters", "where", "message"),
    [
        ({"wal": {"lesson": 1}}, "parameters.wal", "the run has no environment parameter"),
        ({"wall": {"lesson": 3}}, "parameters.wall.lesson", 'lessons are counted from 1, there is 1 "Low", 2 "High"'),
        ({"wall": {"lesson": 0}}, "parameters.wall.lesson", "there is no lesson 0"),
        ({"gravity": {"lesson": "Low"}}, "parameters.gravity.lesson", 'there is 1 "gravity"'),
    ],
)
def test_what_a_run_does_not_have_is_refused_by_name(
    world: World, run: str, parameters: Any, where: str, message: str
) -> None:
    before = len(events(world, run))

    answer = (
        patch(world, run, gravity={"value": 3}, **parameters)
        if "gravity" not in parameters
        else patch(world, run, **parameters)
    )

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_edit")
    (error,) = problem["errors"]
    assert (error["path"], error["code"]) == (where, "not_found")
    assert message in error["message"]
    assert len(events(world, run)) == before, "all changes are asked for, or none"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"wall": {}},
        {"wall": {"lesson": None}},
        {"wall": {"lesson": 1.5}},
        {"wall": {"lesson": True}},
        {"wall": {"value": "high"}},
        {"wall": {"value": 1e39}},
        {"wall": {"value": {"sampler_type": "poisson"}}},
        {"wall": {"value": {"curriculum": []}}},
        {"wall": {"values": 1}},
        {"": {"value": 1}},
    ],
)
def test_nonsense_is_refused_with_its_path(world: World, run: str, parameters: Any) -> None:
    answer = patch(world, run, **parameters)

    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["path"].startswith("parameters")


def test_a_run_that_has_ended_takes_no_changes(world: World, run: str) -> None:
    world.claim(run).start().finish(RunState.CANCELLED)

    answer = patch(world, run, gravity={"value": 1})

    assert (answer.status_code, answer.json()["code"]) == (409, "run_ended")
    assert "CANCELLED" in answer.json()["detail"]
    assert "starting_lesson" in answer.json()["detail"]


def test_a_run_that_is_not_there_has_no_parameters(world: World) -> None:
    assert world.http.get(path("nobody")).json()["code"] == "run_not_found"
    assert patch(world, "nobody", gravity={"value": 1}).json()["code"] == "run_not_found"


def test_the_same_request_twice_is_one_change(world: World, run: str) -> None:
    headers = {"Idempotency-Key": "once"}
    body = {"parameters": {"gravity": {"value": 1}}}

    first = world.http.patch(path(run), json=body, headers=headers)
    second = world.http.patch(path(run), json=body, headers=headers)

    assert second.headers["Idempotency-Replayed"] == "true"
    assert second.json() == first.json()
    assert len(world.http.get(path(run)).json()["pending"]) == 1
