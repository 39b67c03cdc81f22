"""Runs get other names and tags, also after their end."""

import threading
from typing import Any

import pytest

from ludus.schemas.states import RunState
from server.kit.principal import ANONYMOUS
from tests.server.app.world import CARTPOLE, World


def patch(world: World, run: str, **body: Any) -> Any:
    return world.http.patch(f"/v1/runs/{run}", json=body)


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_is_renamed_and_tagged_and_found_by_both(world: World, ended: bool) -> None:
    name = f"before-{ended}"
    run = world.create(name=name, tags=["old", "kept"])["id"]
    if ended:
        world.claim(run).start().finish(RunState.FAILED, reason="diverged")

    answer = patch(world, run, name=f"after-{ended}", add_tags=["new", "kept"], remove_tags=["old", "never"]).json()

    found = world.http.get("/v1/runs", params={"filter": f"tags = new AND name = after-{ended}"}).json()["runs"]
    events = world.http.get(f"/v1/runs/{run}/events").json()["events"][-2:]
    assert (answer["name"], answer["tags"]) == (f"after-{ended}", ["kept", "new"])
    assert [each["id"] for each in found] == [run]
    assert world.http.get("/v1/runs", params={"filter": f"tags = old AND name = after-{ended}"}).json()["runs"] == []
    assert world.http.get(f"/v1/runs/after-{ended}").json()["id"] == run
    assert world.http.get(f"/v1/runs/{name}").status_code == 404
    assert [(each["type"], each["data"]) for each in events] == [
        ("run_renamed", {"from": name, "to": f"after-{ended}", "by": ANONYMOUS}),
        ("run_tagged", {"added": ["new"], "removed": ["old"], "by": ANONYMOUS}),
    ]


def test_the_answer_says_of_a_paused_run_that_somebody_has_to_act(world: World) -> None:
    run = world.create(name="halted")["id"]
    trainer = world.claim(run).start()
    trainer.ledger.move(RunState.PAUSING)
    trainer.finish(RunState.PAUSED)

    answer = patch(world, run, add_tags=["paused"]).json()

    assert answer["needs_action"]
    assert answer == world.http.get(f"/v1/runs/{run}").json()


def test_a_run_is_not_called_what_may_be_the_id_of_another_run(world: World) -> None:
    one, other = world.create(name="one")["id"], world.create(name="other")["id"]
    body = {"config": CARTPOLE, "name": other}

    for refused in (patch(world, one, name=other), world.http.post("/v1/runs", json=body)):
        assert refused.status_code == 422
        assert "has the form of a run's id" in refused.json()["errors"][0]["message"]
    assert world.http.get(f"/v1/runs/{one}").json()["name"] == "one"
    assert patch(world, one, name="run_of_the_week").status_code == 200


def test_what_a_run_has_already_changes_nothing(world: World) -> None:
    run = world.create(name="same", tags=["ci"])
    before = len(world.http.get(f"/v1/runs/{run['id']}/events").json()["events"])

    patch(world, run["id"], name="same", add_tags=["ci"], remove_tags=["other"])

    assert len(world.http.get(f"/v1/runs/{run['id']}/events").json()["events"]) == before


def test_tags_that_several_add_at_once_are_all_there(world: World) -> None:
    run = world.create()["id"]
    threads = [threading.Thread(target=patch, args=(world, run), kwargs={"add_tags": [f"t{i}"]}) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert world.http.get(f"/v1/runs/{run}").json()["tags"] == [f"t{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"name": ""}, "invalid_request"),
        ({"name": "a b"}, "invalid_request"),
        ({"add_tags": ["a*"]}, "invalid_request"),
        ({"tags": ["a*"]}, "invalid_request"),
        ({"add_tags": ["x"], "remove_tags": ["x"]}, "invalid_request"),
        ({"add_tags": [f"more-{i}" for i in range(50)]}, "too_many_tags"),
        ({"name": "renamed", "behaviors": {"Nobody": {"max_steps": 1}}}, "invalid_edit"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(world: World, body: dict[str, Any], code: str) -> None:
    run = world.create(name="refusing", tags=["one"])["id"]

    refused = patch(world, run, **body).json()

    after = world.http.get(f"/v1/runs/{run}").json()
    assert refused["code"] == code
    assert (after["name"], after["tags"]) == ("refusing", ["one"])


def test_a_run_is_deleted_over_http_by_its_id_alone_and_the_audit_log_knows(world: World) -> None:
    run = world.create(name="gone")["id"]
    assert world.http.delete(f"/v1/runs/{run}").json()["code"] == "run_not_ended"
    world.http.post(f"/v1/runs/{run}:cancel")

    assert world.http.delete("/v1/runs/gone").json()["code"] == "run_not_found"
    assert world.http.delete(f"/v1/runs/{run}").status_code == 204
    assert world.http.delete(f"/v1/runs/{run}").status_code == 204
    assert world.http.get(f"/v1/runs/{run}").status_code == 404
    entries = world.http.get("/v1/audit", params={"filter": f'target = "/v1/runs/{run}"'}).json()["entries"]
    assert {(each["method"], each["status"]) for each in entries} >= {("DELETE", 204), ("DELETE", 409)}
