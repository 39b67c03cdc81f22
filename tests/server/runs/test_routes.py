"""Changes of runs over HTTP: numbered, with old and new, all or none."""

from typing import Any

import httpx2
import pytest

from ludus.schemas.states import RunState
from tests.server.app.world import World

CONFIG: dict[str, Any] = {
    "seed": 7,
    "behaviors": {"Walker": {"max_steps": 1000, "hyperparameters": {"learning_rate": 3e-4}}},
    "environment_parameters": {"gravity": 9.81},
}
RATE = "behaviors.Walker.hyperparameters.learning_rate"


@pytest.fixture
def run(world: World) -> str:
    return str(world.create(CONFIG)["id"])


def patch(world: World, run: str, body: Any, **headers: str) -> httpx2.Response:
    return world.http.patch(f"/v1/runs/{run}", json=body, headers=headers)


def rate(value: object) -> dict[str, Any]:
    return {"behaviors": {"Walker": {"hyperparameters": {"learning_rate": value}}}}


def amendments(world: World, run: str) -> dict[str, Any]:
    return dict(world.http.get(f"/v1/runs/{run}/amendments").json())


def events(world: World, run: str, kind: str) -> list[dict[str, Any]]:
    found = world.http.get(f"/v1/runs/{run}/events").json()["events"]
    return [event for event in found if event["type"] == kind]


def test_the_configuration_is_the_changed_one_and_the_original_stays_readable(world: World, run: str) -> None:
    answer = patch(world, run, rate(1e-4))

    assert answer.status_code == 200, answer.text
    assert answer.json()["config"]["behaviors"]["Walker"]["hyperparameters"]["learning_rate"] == 1e-4
    patch(world, run, {"behaviors": {"Walker": {"max_steps": 500}}})
    found = amendments(world, run)
    assert found["original_config"]["behaviors"]["Walker"]["hyperparameters"]["learning_rate"] == 3e-4
    assert found["config"] == world.http.get(f"/v1/runs/{run}").json()["config"]
    assert [(each["seq"], each["changes"], each["applied"]) for each in found["amendments"]] == [
        (1, [{"path": RATE, "old": 3e-4, "new": 1e-4}], False),
        (2, [{"path": "behaviors.Walker.max_steps", "old": 1000, "new": 500}], False),
    ]
    asked = events(world, run, "hyperparameter_change_requested")
    assert [each["data"]["seq"] for each in asked] == [1, 2]
    assert f"{RATE} from 0.0003 to 0.0001" in asked[0]["message"]


def test_a_run_that_nobody_changed_is_its_original(world: World, run: str) -> None:
    found = amendments(world, run)

    assert found["original_config"] == found["config"]
    assert found["amendments"] == []


def test_a_worker_gets_the_changed_configuration_and_says_what_it_has_made_of_it(world: World, run: str) -> None:
    patch(world, run, rate(1e-4))
    trainer = world.claim(run).start()
    claim = trainer.claim
    assert claim.config["behaviors"]["Walker"]["hyperparameters"]["learning_rate"] == 1e-4
    assert [each.seq for each in claim.amendments] == [1]

    patch(world, run, rate(1e-5))
    (second,) = trainer.ledger.amendments.after(1)
    trainer.ledger.amendments.applied(second.seq, second.changes, step=640)

    assert [each["applied"] for each in amendments(world, run)["amendments"]] == [True, True]
    (event,) = events(world, run, "hyperparameters_changed")
    assert event["data"] == {"seq": 2, "step": 640, "changes": [{"path": RATE, "old": 1e-4, "new": 1e-5}]}
    assert event["message"] == f"Changed {RATE} from 0.0001 to 1e-05 at step 640."
    trainer.finish()


def test_environment_parameters_change_in_the_same_request(world: World, run: str) -> None:
    answer = patch(world, run, {**rate(1e-4), "environment_parameters": {"gravity": {"value": 1.5}}})

    assert answer.status_code == 200, answer.text
    (pending,) = world.http.get(f"/v1/runs/{run}/environment_parameters").json()["pending"]
    assert pending["change"] == {"value": 1.5}


def test_all_changes_are_made_or_none(world: World, run: str) -> None:
    answer = patch(world, run, {**rate(1e-4), "environment_parameters": {"gravitas": {"value": 1.5}}})

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_edit")
    assert [each["path"] for each in problem["errors"]] == ["environment_parameters.gravitas"]
    assert amendments(world, run)["amendments"] == []


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, ""),
        ({"behaviors": {"Walker": 3}}, "behaviors.Walker"),
        ({"behaviors": {"Walker": {"time_horizon": 3}}}, "behaviors.Walker.time_horizon"),
        (rate("fast"), RATE),
        (rate(None), RATE),
        (rate(float("1e9")), RATE),
        ({"state": "PAUSED"}, "state"),
        ({"behaviors": {"Nobody": {"max_steps": 1}}}, "behaviors.Nobody"),
    ],
)
def test_nonsense_is_refused_with_its_path(world: World, run: str, body: Any, path: str) -> None:
    answer = patch(world, run, body)

    assert answer.status_code == 422, answer.text
    assert path in answer.json()["errors"][0]["path"]


def test_the_present_value_leaves_no_trace(world: World, run: str) -> None:
    assert patch(world, run, rate(3e-4)).status_code == 200

    assert amendments(world, run)["amendments"] == []


def test_the_same_request_twice_is_one_change(world: World, run: str) -> None:
    first = patch(world, run, rate(1e-4), **{"Idempotency-Key": "once"})
    second = patch(world, run, rate(1e-4), **{"Idempotency-Key": "once"})

    assert second.headers["Idempotency-Replayed"] == "true"
    assert second.json() == first.json()
    assert len(amendments(world, run)["amendments"]) == 1


def test_a_run_goes_on_with_the_changes_that_come_with_its_resumption(world: World, run: str) -> None:
    assert world.http.post(f"/v1/runs/{run}:pause").json()["state"] == "PAUSED"
    mistaken = world.http.post(f"/v1/runs/{run}:resume", json={"behaviors": {"Walker": {"max_steps": 0}}})
    assert (mistaken.status_code, mistaken.json()["errors"][0]["path"]) == (422, "behaviors.Walker.max_steps")
    assert world.http.get(f"/v1/runs/{run}").json()["state"] == "PAUSED"

    answer = world.http.post(f"/v1/runs/{run}:resume", json=rate(1e-4))

    assert answer.json()["state"] == "QUEUED"
    assert answer.json()["config"]["behaviors"]["Walker"]["hyperparameters"]["learning_rate"] == 1e-4
    trainer = world.claim(run)
    assert [each.seq for each in trainer.claim.amendments] == [1]
    trainer.finish(RunState.CANCELLED)
