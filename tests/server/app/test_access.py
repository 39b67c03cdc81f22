"""Who may do what, route by route: scopes, and rows of other projects."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from ludus.schemas.tokens import Scope
from server.kit.http.auth import READING, need_of
from server.kit.principal import including
from server.kit.scheduling import SchedulingSettings
from server.lifecycle.claims.repository import RunQueue
from tests.server.app.routes import (
    EMPTY,
    EXPERIMENT,
    GUARDED,
    IDS,
    asked,
    filled,
    names_in,
    one_of_everything,
    token_of,
)
from tests.server.app.world import CARTPOLE, World, build_services, serving

EXCEPTIONS = {
    "GET /v1/tokens": (Scope.ADMIN, False),
    "POST /v1/tokens": (Scope.ADMIN, False),
    "GET /v1/tokens/{token:token}": (Scope.ADMIN, False),
    "DELETE /v1/tokens/{token:token}": (Scope.ADMIN, False),
    "GET /v1/tokens/self": (None, False),
    "GET /ui/session": (None, False),
    "DELETE /ui/session": (None, False),
    "GET /v1/audit": (Scope.ADMIN, False),
    "GET /v1/runs/{run:name}/recordings/{recording:name}/file": (Scope.RUN, False),
    "GET /v1/runs/{run:name}/recordings/{recording:name}/frames": (Scope.RUN, False),
    "GET /v1/workers": (Scope.ADMIN, True),
    "POST /v1/workers/{worker:worker}:cordon": (Scope.ADMIN, True),
    "POST /v1/workers/{worker:worker}:drain": (Scope.ADMIN, True),
    "POST /v1/workers/{worker:worker}:uncordon": (Scope.ADMIN, True),
    "GET /v1/queue": (Scope.READ, True),
    "GET /metrics": (Scope.READ, True),
}
"""All other routes need `read` to GET, and `run` for everything else."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    services = build_services(tmp_path_factory.mktemp("access"), api={"token": "boss", "requests_per_minute": 0})
    with (
        serving(services) as server,
        httpx2.Client(base_url=server, timeout=30, headers={"Authorization": "Bearer boss"}) as http,
    ):
        yield World(services, server, http)


@pytest.fixture(scope="module")
def tokens(world: World) -> dict[str, dict[str, str]]:
    return {scope: token_of(world, scope) for scope in Scope}


@pytest.mark.parametrize(("method", "route"), GUARDED, ids=IDS)
def test_every_route_needs_what_its_method_or_its_exception_says(method: str, route: APIRoute) -> None:
    ordinary = (Scope.READ if method in READING else Scope.RUN, False)

    need = need_of(route)

    assert (need.scope, need.everywhere) == EXCEPTIONS.get(f"{method} {route.path}", ordinary)


@pytest.mark.parametrize(("method", "route"), GUARDED, ids=IDS)
def test_every_route_refuses_lesser_tokens_and_takes_the_others(
    world: World, tokens: dict[str, dict[str, str]], method: str, route: APIRoute
) -> None:
    need = need_of(route)

    assert world.http.request(method, filled(route), headers={"Authorization": ""}).status_code == 401
    for scope in Scope:
        answer = asked(world, method, route, tokens[scope])

        if need.scope is None or (need.scope in including([scope]) and not need.everywhere):
            assert answer.status_code not in {401, 403}, scope
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing"), scope
    assert asked(world, method, route, {}).status_code not in {401, 403}


@pytest.fixture(scope="module")
def ours(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return one_of_everything(world, tmp_path_factory.mktemp("ours"))


OF_NO_PROJECT = {
    "POST /v1/configs/{name:name}/versions": "makes one's own",
    "GET /v1/presets/{name:name}": "comes with the server",
}
NAMING = [
    (method, route) for method, route in GUARDED if "{" in route.path and f"{method} {route.path}" not in OF_NO_PROJECT
]


@pytest.mark.parametrize(("method", "route"), NAMING, ids=[f"{method} {route.path}" for method, route in NAMING])
def test_what_another_project_has_is_not_there(
    world: World, ours: dict[str, str], method: str, route: APIRoute
) -> None:
    stranger = {"Ludus-Project": "theirs"}
    names = names_in(route, ours)

    answer = asked(world, method, route, stranger, **names)

    assert answer.status_code == 404, answer.text
    if method == "GET" and f"{method} {route.path}" not in EMPTY:
        assert asked(world, method, route, {"Ludus-Project": "ours"}, **names).status_code == 200


def test_a_token_of_another_project_sees_and_changes_nothing(world: World, ours: dict[str, str]) -> None:
    stranger = token_of(world, "admin", "theirs")

    assert world.http.get(f"/v1/runs/{ours['run']}", headers=stranger).json()["code"] == "run_not_found"
    assert world.http.get("/v1/runs/our-run", headers=stranger).status_code == 404
    assert world.http.post(f"/v1/runs/{ours['run']}:cancel", headers=stranger).status_code == 404
    for path, field in (
        ("/v1/runs", "runs"),
        ("/v1/configs", "configs"),
        ("/v1/demonstrations", "demonstrations"),
        ("/v1/checkpoints", "checkpoints"),
        ("/v1/experiments", "experiments"),
        ("/v1/ladders", "ladders"),
    ):
        assert world.http.get(path, headers=stranger).json()[field] == [], path
        assert world.http.get(path, headers={"Ludus-Project": "ours"}).json()[field] != [], path
    tokens = world.http.get("/v1/tokens", headers=stranger).json()["tokens"]
    assert {each["project"] for each in tokens} == {"theirs"}
    assert world.http.get("/v1/runs", headers={**stranger, "Ludus-Project": "ours"}).json()["code"] == (
        "project_forbidden"
    )


@pytest.mark.parametrize(
    "behavior",
    [
        lambda ours: {"initialize_from": ours["checkpoint"]},
        lambda ours: {"initialize_from": ours["uploaded"]},
        lambda ours: {"reward_signals": {"gail": {"demonstrations": [ours["demonstration"]]}}},
        lambda ours: {"self_play": {"ladder": "our-ladder"}},
    ],
)
def test_a_configuration_cannot_name_what_another_project_has(
    world: World, ours: dict[str, str], behavior: Any
) -> None:
    body = {"config": {"behaviors": {"CartPole": behavior(ours)}}, "validate_only": True}

    answer = world.http.post("/v1/runs", json=body, headers={"Ludus-Project": "theirs"})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config"), answer.text
    assert {item["code"] for item in answer.json()["errors"]} == {"not_found"}
    mine = world.http.post("/v1/runs", json=body, headers={"Ludus-Project": "ours"})
    assert "not_found" not in {item["code"] for item in mine.json().get("errors", [])}, mine.text


def test_the_same_name_in_two_projects_is_two_things(world: World, ours: dict[str, str]) -> None:
    theirs = {"Ludus-Project": "theirs-too"}

    stored = world.http.post("/v1/configs/our-config/versions", json={"config": CARTPOLE}, headers=theirs)

    assert (stored.status_code, stored.json()["version"], stored.json()["project"]) == (201, 1, "theirs-too")
    run = world.http.post("/v1/runs", json={"config": CARTPOLE, "name": "our-run"}, headers=theirs).json()
    assert world.http.get("/v1/runs/our-run", headers=theirs).json()["id"] == run["id"]
    assert world.http.get("/v1/runs/our-run", headers={"Ludus-Project": "ours"}).json()["id"] == ours["run"]
    both = world.http.get("/v1/configs", headers={"Ludus-Project": "*"}).json()["configs"]
    assert {"ours", "theirs-too"} <= {each["project"] for each in both if each["name"] == "our-config"}
    ladder = world.http.post("/v1/ladders", json={"name": "our-ladder"}, headers=theirs).json()
    assert world.http.get("/v1/ladders/our-ladder", headers=theirs).json()["id"] == ladder["id"] != ours["ladder"]
    assert world.http.get("/v1/ladders/our-ladder", headers={"Ludus-Project": "ours"}).json()["id"] == ours["ladder"]


def test_a_name_of_several_projects_is_addressed_by_project_or_id(
    world: World, ours: dict[str, str], tmp_path: Path
) -> None:
    twice = {"Ludus-Project": "twice"}
    run = world.http.post("/v1/runs", json={"config": CARTPOLE}, headers=twice).json()["id"]
    checkpoint = world.claim(run).start().save(100, {"CartPole.onnx": b"model"}, tmp_path)
    world.http.put("/v1/aliases/our-alias", headers=twice, json={"checkpoint_id": checkpoint}).raise_for_status()
    world.http.post("/v1/ladders", headers=twice, json={"name": "our-ladder"}).raise_for_status()
    world.http.post("/v1/configs/our-config/versions", headers=twice, json={"config": CARTPOLE}).raise_for_status()
    world.http.post("/v1/experiments", headers=twice, json=EXPERIMENT).raise_for_status()
    every = {"Ludus-Project": "*"}

    for method, path in (
        ("GET", "/v1/experiments/our-experiment"),
        ("DELETE", "/v1/experiments/our-experiment"),
        ("GET", "/v1/ladders/our-ladder"),
        ("DELETE", "/v1/ladders/our-ladder"),
        ("GET", "/v1/ladders/our-ladder/matches"),
        ("GET", "/v1/aliases/our-alias"),
        ("GET", "/v1/aliases/our-alias/history"),
        ("DELETE", "/v1/aliases/our-alias"),
        ("GET", "/v1/configs/our-config/versions"),
        ("GET", "/v1/configs/our-config/versions/latest"),
        ("GET", "/v1/configs/our-config/versions/1/source"),
    ):
        answer = world.http.request(method, path, headers=every)
        assert (answer.status_code, answer.json()["code"]) == (409, "name_ambiguous"), path
        assert all(project in answer.json()["detail"] for project in ("ours", "twice")), path
        if method == "GET":
            assert world.http.get(path, headers=twice).status_code == 200
    assert world.http.get(f"/v1/ladders/{ours['ladder']}", headers=every).json()["project"] == "ours"
    aliases = [
        alias["project"]
        for page in pages(world, "/v1/aliases", {"filter": "name = our-alias", "page_size": 1}, every)
        for alias in page["aliases"]
    ]
    assert aliases == ["ours", "twice"]


def pages(world: World, path: str, params: dict[str, Any], headers: dict[str, str]) -> Iterator[dict[str, Any]]:
    token = ""
    while True:
        page = world.http.get(path, params={**params, "page_token": token}, headers=headers).json()
        yield page
        token = page["next_page_token"]
        if not token:
            return


def test_an_idempotency_key_brings_no_answer_of_another_project(world: World) -> None:
    key = {"Idempotency-Key": "the-same"}
    body = {"config": CARTPOLE, "name": "secret-plans"}
    first = world.http.post("/v1/runs", json=body, headers={**key, "Ludus-Project": "p1"}).json()

    other = world.http.post("/v1/runs", json=body, headers={**key, "Ludus-Project": "p2"})

    assert "idempotency-replayed" not in other.headers
    assert other.json()["id"] != first["id"]


def test_all_projects_at_once_can_be_read_and_not_added_to(world: World, ours: dict[str, str]) -> None:
    every = {"Ludus-Project": "*"}

    assert ours["run"] in {each["id"] for each in world.http.get("/v1/runs", headers=every).json()["runs"]}
    assert world.http.get(f"/v1/runs/{ours['run']}", headers=every).json()["project"] == "ours"
    assert world.http.post("/v1/runs", json={"config": CARTPOLE}, headers=every).json()["code"] == "invalid_project"
    assert world.http.get("/v1/runs", headers=token_of(world, "admin") | every).status_code == 403
    for wrong in ("", "a b", "../x", "x" * 65):
        answer = world.http.get("/v1/runs", headers={"Ludus-Project": wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_project"), wrong


def test_a_link_names_its_project_in_its_query_and_a_change_does_not(world: World, ours: dict[str, str]) -> None:
    linked = {"project": "ours"}

    assert world.http.get(f"/v1/runs/{ours['run']}").status_code == 404
    assert world.http.get(f"/v1/runs/{ours['run']}", params=linked).json()["project"] == "ours"
    assert world.http.get("/v1/runs", params={"project": "a b"}).json()["code"] == "invalid_project"
    stranger = token_of(world, "read", "theirs")
    assert world.http.get("/v1/runs", params=linked, headers=stranger).json()["code"] == "project_forbidden"
    header = {"Ludus-Project": "theirs"}
    assert world.http.get(f"/v1/runs/{ours['run']}", params=linked, headers=header).status_code == 404
    made = world.http.post("/v1/runs", json={"config": CARTPOLE}, params=linked)
    assert (made.status_code, made.json()["errors"][0]["path"]) == (422, "project"), "else it would be another one's"


def test_a_small_project_among_many_runs_is_listed_in_order(world: World) -> None:
    small = {"Ludus-Project": "small"}
    created = [world.http.post("/v1/runs", json={"config": CARTPOLE}, headers=small).json()["id"] for _ in range(3)]

    listed = [[run["id"] for run in page["runs"]] for page in pages(world, "/v1/runs", {"page_size": 2}, small)]

    assert listed == [created[:0:-1], created[:1]]


def test_a_run_counts_for_the_token_that_created_it_whatever_owner_it_names(world: World) -> None:
    first, second = token_of(world, "run", "arena"), token_of(world, "run", "arena")
    queue = RunQueue(world.services.database, SchedulingSettings(runs_per_token=1))

    def create(name: str, headers: dict[str, str], **fields: Any) -> dict[str, Any]:
        body = {"config": CARTPOLE, "name": name, **fields}
        return dict(world.http.post("/v1/runs", json=body, headers=headers).json())

    ours = [create("first", first, owner="ada"), create("evading", first, owner="somebody-else", priority=1000)]
    theirs = create("second", second, owner="ada")

    assert ours[0]["token_id"] == ours[1]["token_id"] != theirs["token_id"]
    names = []
    while (claim := queue.claim("host/1/1", 60)) is not None:
        names.append(claim.name)
    assert {"first", "second", "evading"} & set(names) == {"evading", "second"}, "one of each token"
    assert create("by-the-configured-token", {"Ludus-Project": "arena"})["token_id"] is None
    assert create("pretending", second, token_id=ours[0]["token_id"])["code"] == "invalid_request"


def test_the_page_of_routes_is_complete(tmp_path: Path) -> None:
    assert len(GUARDED) > 50
    assert EXCEPTIONS.keys() <= set(IDS)
