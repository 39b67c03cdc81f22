"""HEAD, OPTIONS and other methods, over the table of all routes."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from fastapi.routing import APIRoute

from tests.server.app.routes import QUERIES, ROUTES, filled, names_in, one_of_everything
from tests.server.app.world import World, open_world

CHANGES = {"date", "x-request-id", "transfer-encoding"}
"""Headers that two answers to one question differ in, and the one that is about a body."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, dict[str, str]]]:
    folder: Path = tmp_path_factory.mktemp("everything")
    with open_world(folder / "home") as world:
        yield world, one_of_everything(world, folder)


def headers_of(world: World, method: str, path: str, query: dict[str, str] | None) -> tuple[int, dict[str, str], bytes]:
    """Ask; return status, headers and body. Of an answer without an end the body is left out."""
    with world.http.stream(method, path, params=query, headers={"Ludus-Project": "ours"}) as answer:
        endless = method == "GET" and "event-stream" in answer.headers.get("content-type", "")
        body = b"" if endless else answer.read()
        return answer.status_code, {k: v for k, v in answer.headers.items() if k not in CHANGES}, body


READS = [route for method, route in ROUTES if method == "GET"]


@pytest.mark.parametrize("route", READS, ids=[route.path for route in READS])
def test_head_is_answered_as_get_is_without_a_body(route: APIRoute, ours: tuple[World, dict[str, str]]) -> None:
    world, names = ours
    path = filled(route, **names_in(route, names))

    query = QUERIES.get(route.path)

    status, headers, _ = headers_of(world, "GET", path, query)
    head_status, head_headers, body = headers_of(world, "HEAD", path, query)
    later = headers_of(world, "GET", path, query)[1]

    assert (head_status, body) == (status, b"")
    assert head_headers.keys() == headers.keys()
    for name in headers:
        if headers[name] == later[name]:  # numbers of what lives change between two answers
            assert head_headers[name] == headers[name]


@pytest.mark.parametrize("path", ["/", "/ui/runs", "/docs", "/docs/swagger-ui.css", "/openapi.json"])
def test_pages_answer_head_too(path: str, ours: tuple[World, dict[str, str]]) -> None:
    answer = ours[0].http.head(path)

    assert (answer.status_code, answer.content) == (200, b"")


def test_head_finds_what_get_finds_and_nothing_else(ours: tuple[World, dict[str, str]]) -> None:
    http: httpx2.Client = ours[0].http

    assert http.head("/v1/runs/nobody").status_code == http.get("/v1/runs/nobody").status_code == 404
    assert http.head("/v1/checkpoints:prune").status_code == 405
    etag = http.head("/v1/presets").headers["etag"]
    assert http.head("/v1/presets", headers={"If-None-Match": etag}).status_code == 304


@pytest.mark.parametrize(("method", "route"), ROUTES, ids=[f"{method} {route.path}" for method, route in ROUTES])
def test_options_names_the_methods_and_lets_no_foreign_page_write(
    method: str, route: APIRoute, ours: tuple[World, dict[str, str]]
) -> None:
    world, names = ours
    path = filled(route, **names_in(route, names))
    preflight = {"Origin": "https://other.example", "Access-Control-Request-Method": method}

    answer = world.http.options(path)
    foreign = world.http.options(path, headers=preflight)

    assert answer.status_code == 204
    assert {method, "OPTIONS", *({"HEAD"} if method == "GET" else ())} <= set(answer.headers["allow"].split(", "))
    for each in (answer, foreign):
        assert not [name for name in each.headers if name.startswith("access-control-")]
