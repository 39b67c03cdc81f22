"""PATCH: merge patches (RFC 7396), and changes that are made only to what was read (`If-Match`, RFC 9110)."""

import json
from typing import Any

import pytest

from tests.server.app.routes import EXPERIMENT, ROUTES
from tests.server.app.world import CARTPOLE, World

MERGE_PATCH = "application/merge-patch+json"
PATCHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/runs/{run:name}": ({"tags": ["a"]}, {"tags": ["b"]}),
    "/v1/runs/{run:name}/environment_parameters": (
        {"parameters": {"mass": {"value": 2.0}}},
        {"parameters": {"mass": {"value": 3.0}}},
    ),
    "/v1/experiments/{experiment:name}": ({"description": "a"}, {"description": "b"}),
    "/v1/webhooks/{webhook:name}": ({"description": "a"}, {"description": "b"}),
}
"""Each route with PATCH, and two changes of what it is about."""


@pytest.fixture
def made(world: World) -> dict[str, str]:
    """A run, a webhook and an experiment, by the names of parameters of paths."""
    run = world.create({**CARTPOLE, "environment_parameters": {"mass": 1.0}}, name="changed")
    webhook = world.http.post("/v1/webhooks", json={"url": "https://example.org/hook", "description": "hook"}).json()
    name = f"changed-{run['id']}"
    experiment = world.http.post("/v1/experiments", json={**EXPERIMENT, "name": name}).json()
    return {"run:name": run["id"], "webhook:name": webhook["id"], "experiment:name": experiment["id"]}


def path_of(route: str, made: dict[str, str]) -> str:
    for name, value in made.items():
        route = route.replace(f"{{{name}}}", value)
    return route


def test_every_patch_is_among_these() -> None:
    assert {route.path for method, route in ROUTES if method == "PATCH"} == set(PATCHES)


@pytest.mark.parametrize("route", PATCHES)
def test_a_change_is_made_only_to_what_was_read(world: World, made: dict[str, str], route: str) -> None:
    path, (first, second) = path_of(route, made), PATCHES[route]
    read = world.http.get(path).headers["ETag"]

    changed = world.http.patch(path, json=first, headers={"If-Match": read})
    assert changed.status_code == 200, changed.text
    late = world.http.patch(path, json=second, headers={"If-Match": read})
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    now = world.http.get(path)
    assert now.headers["ETag"] != read
    assert "b" not in str(now.json().get("tags")) + str(now.json().get("description"))

    again = world.http.patch(path, json=second, headers={"If-Match": f"{read}, {now.headers['ETag']}"})
    assert again.status_code == 200, again.text
    assert world.http.patch(path, json=first, headers={"If-Match": "*"}).status_code == 200


@pytest.mark.parametrize("route", PATCHES)
@pytest.mark.parametrize("media_type", [MERGE_PATCH, "application/json"])
def test_a_merge_patch_has_two_media_types(world: World, made: dict[str, str], route: str, media_type: str) -> None:
    answer = world.http.patch(
        path_of(route, made), headers={"Content-Type": media_type}, content=json.dumps(PATCHES[route][0])
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("route", PATCHES)
def test_other_patches_are_refused_with_the_media_types(world: World, made: dict[str, str], route: str) -> None:
    answer = world.http.patch(
        path_of(route, made), headers={"Content-Type": "application/json-patch+json"}, content=b"[]"
    )
    assert answer.status_code == 415
    assert MERGE_PATCH in answer.json()["detail"]
    assert answer.headers["Accept-Patch"] == MERGE_PATCH


def test_null_is_the_default_and_what_is_left_out_stays(world: World, made: dict[str, str]) -> None:
    webhook, run = f"/v1/webhooks/{made['webhook:name']}", f"/v1/runs/{made['run:name']}"

    named = world.http.patch(run, json={"tags": ["kept"]}).json()
    assert (named["name"], named["tags"]) == ("changed", ["kept"])
    unnamed = world.http.patch(run, json={"name": None}).json()
    assert (unnamed["name"], unnamed["tags"]) == (made["run:name"], ["kept"])
    assert world.http.patch(run, json={"tags": None}).json()["tags"] == []

    assert world.http.patch(webhook, json={"enabled": False}).json()["description"] == "hook"
    assert world.http.patch(webhook, json={"description": None}).json()["description"] == ""
