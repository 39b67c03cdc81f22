"""What every request passes: problems, request ids, probes."""

import re
from pathlib import Path

import httpx2
import pytest

from server.kit import errors as domain
from server.kit.db.migrate import downgrade_database
from server.kit.errors import BrokerUnavailable, DatabaseUnavailable, LudusError
from server.kit.http import errors as http_errors
from server.kit.http.errors import STATUS, status_of
from server.kit.http.problems import Problem
from tests.server.app.world import World, open_world


def leaves(error: type[LudusError]) -> list[type[LudusError]]:
    children = error.__subclasses__()
    return [error] if not children else [leaf for child in children for leaf in leaves(child)]


def test_every_error_has_a_status_and_a_code_of_its_own() -> None:
    found = [error for error in leaves(LudusError) if error.__module__ in {domain.__name__, http_errors.__name__}]

    assert set(STATUS) == set(domain.ErrorKind)
    assert all(400 <= status_of(error) < 600 for error in found)
    codes = [error.code for error in found if error.__name__ not in {"Unauthenticated", "Forbidden"}]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v2/nothing", 404, "route_not_found"),
        ("DELETE", "/v1/runs", 405, "method_not_allowed"),
        ("GET", "/v1/runs/nobody", 404, "run_not_found"),
        ("GET", "/v1/runs/no%00body", 422, "invalid_request"),
        ("GET", "/v1/runs?filter=x", 422, "invalid_filter"),
        ("GET", "/v1/runs?order_by=config", 422, "invalid_order"),
        ("GET", "/v1/runs?page_size=x", 422, "invalid_request"),
        ("POST", "/v1/runs", 415, "unsupported_media_type"),
    ],
)
def test_every_way_to_fail_has_the_same_shape(world: World, method: str, path: str, status: int, code: str) -> None:
    answer = world.http.request(method, path)

    problem = Problem.model_validate(answer.json())
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem.status, problem.code) == (status, status, code)
    assert problem.type == f"/problems/{code}"
    assert problem.request_id == answer.headers["x-request-id"]
    meaning = world.http.get(problem.type).json()
    assert (meaning["code"], meaning["status"]) == (code, status)
    assert meaning["meaning"]


def test_a_method_that_is_not_allowed_says_which_are(http: httpx2.Client) -> None:
    assert http.put("/v1/runs").headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert http.post("/v1/runs/nobody").headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH"


def test_a_callers_request_id_is_kept_if_it_is_sane(http: httpx2.Client) -> None:
    assert http.get("/healthz", headers={"X-Request-Id": "build-17.2"}).headers["x-request-id"] == "build-17.2"
    assert http.get("/healthz", headers={"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"


def test_values_of_a_wrong_request_are_not_repeated(http: httpx2.Client) -> None:
    answer = http.post("/v1/runs", json={"config": "behaviors: {}", "pasword": "secret-text"})

    assert answer.status_code == 422
    assert "secret-text" not in answer.text


def test_a_request_that_breaks_the_server_is_a_500_with_an_id(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:
        world.services.database.engine.dispose()
        for file in tmp_path.glob("ludus.db*"):
            file.unlink()
        (tmp_path / "ludus.db").write_bytes(b"this is no database" * 100)

        answer = world.http.get("/v1/runs")

    assert answer.status_code in {500, 503}
    assert Problem.model_validate(answer.json()).request_id


def test_an_api_without_a_broker_is_ready_and_one_without_a_database_is_not(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:

        def gone() -> None:
            raise BrokerUnavailable("connection refused")

        def away() -> None:
            raise DatabaseUnavailable("connection refused")

        world.services.wake_up.ping = gone  # type: ignore[method-assign]
        without_broker = world.http.get("/readyz")
        world.services.database.ping = away  # type: ignore[method-assign]
        without_database = world.http.get("/readyz")
        alive = world.http.get("/healthz")

    assert (without_broker.status_code, without_broker.json()) == (200, {"status": "ok"})
    problem = without_database.json()
    assert (without_database.status_code, problem["code"]) == (503, "not_ready")
    assert [(item["path"], item["code"]) for item in problem["errors"]] == [("database", "database_unavailable")]
    assert alive.status_code == 200


@pytest.mark.long
def test_a_database_without_a_schema_is_not_ready(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:
        downgrade_database(world.services.database, "base")

        answer = world.http.get("/readyz")

    assert answer.status_code == 503
    assert [item["path"] for item in answer.json()["errors"]] == ["database"]


def test_the_version_and_the_operational_metrics_are_shown(http: httpx2.Client) -> None:
    http.get("/v1/runs")

    assert set(http.get("/version").json()) == {"version", "api"}
    text = http.get("/metrics").text
    assert 'ludus_http_requests_total{method="GET",route="/v1/runs",status="200"}' in text
