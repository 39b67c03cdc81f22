"""Nothing in a request is passed over: over the table of all routes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from tests.server.app.routes import BODIES, QUERIES, ROUTES, filled, names_in, one_of_everything
from tests.server.app.world import CARTPOLE, World, open_world

BINARY = {"Content-Type": "application/octet-stream"}
IDS = [f"{method} {route.path}" for method, route in ROUTES]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, dict[str, str]]]:
    folder: Path = tmp_path_factory.mktemp("everything")
    with open_world(folder / "home") as world:
        yield world, one_of_everything(world, folder)


@pytest.mark.parametrize(("method", "route"), ROUTES, ids=IDS)
def test_an_unknown_parameter_is_refused_by_every_route(
    method: str, route: APIRoute, ours: tuple[World, dict[str, str]]
) -> None:
    world, names = ours
    query = {**QUERIES.get(route.path, {}), "validate_onl": "true"}
    file = route.path in {"/v1/checkpoints", "/v1/demonstrations"} and method == "POST"
    body = {"content": b"x"} if file else {"json": BODIES.get(f"{method} {route.path}", {})}
    headers = {"Ludus-Project": "ours", "Origin": world.server, **(BINARY if file else {})}
    reads = method in {"GET", "DELETE"}

    answer = world.http.request(
        method, filled(route, **names_in(route, names)), params=query, headers=headers, **({} if reads else body)
    )

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
    assert [(each["location"], each["path"]) for each in answer.json()["errors"]] == [("query", "validate_onl")]


WITHOUT_BODY = [
    (method, route)
    for method, route in ROUTES
    if method in {"POST", "PUT", "PATCH"} and "requestBody" not in (route.openapi_extra or {})
]


@pytest.mark.parametrize(("method", "route"), WITHOUT_BODY, ids=[route.path for _, route in WITHOUT_BODY])
def test_a_body_is_refused_where_none_is_read(method: str, route: APIRoute, ours: tuple[World, dict[str, str]]) -> None:
    world, names = ours
    path = filled(route, **names_in(route, names))

    answer = world.http.request(method, path, headers={"Ludus-Project": "ours"}, json={"dry_run": True})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), answer.text
    assert [each["location"] for each in answer.json()["errors"]] == ["body"]


def test_a_mistyped_parameter_makes_no_run(world: World) -> None:
    answer = world.http.post("/v1/runs?validate_onl=true", json={"config": CARTPOLE, "name": "mistyped"})

    assert answer.status_code == 422
    assert world.http.get("/v1/runs/mistyped").status_code == 404


def test_a_parameter_that_is_taken_once_is_not_given_twice(world: World) -> None:
    twice = world.http.get("/v1/runs?page_size=1&page_size=2")

    assert [each["message"] for each in twice.json()["errors"]] == ["is given more than once"]
    assert world.http.get("/v1/runs?metrics=reward&metrics=length").status_code == 200
