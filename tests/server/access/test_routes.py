"""Tokens and the audit log over HTTP."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.access.bootstrap import create_first_token
from server.access.repository import AuditRepository
from server.app.serve import Exposed, serve_api
from server.controller.controller import old_row_jobs
from server.kit.jobs import JobLoop
from server.kit.settings import ControllerSettings, Settings
from tests.server.app.world import CARTPOLE, World, open_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("tokens"), token="boss") as world:
        yield world


def made(world: World, **body: Any) -> dict[str, Any]:
    answer = world.http.post("/v1/tokens", json={"name": "ci", "scopes": ["run"], **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def bearer(token: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {token['token']}"}


def entries(world: World, **parameters: Any) -> list[dict[str, Any]]:
    answer = world.http.get("/v1/audit", params=parameters)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["entries"])


def test_a_token_is_shown_once_and_opens_what_it_is_for(world: World) -> None:
    token = made(world, expires_in_seconds=3600)

    shown = world.http.get(f"/v1/tokens/{token['id']}").json()
    own = world.http.get("/v1/tokens/self", headers=bearer(token)).json()

    assert "token" not in shown
    assert token["token"] not in world.http.get("/v1/tokens").text
    assert (shown["created_by"], shown["scopes"], shown["project"]) == ("configured token", ["run"], "default")
    assert shown["expires_at"] > shown["created_at"]
    assert (own["name"], own["scopes"]) == ("ci", ["read", "run", "simulate"])
    assert world.http.post("/v1/runs", json={"config": CARTPOLE}, headers=bearer(token)).status_code == 201


def test_a_repeated_request_makes_no_second_token_and_shows_no_secret_again(world: World) -> None:
    body = {"name": "once", "scopes": ["read"]}
    key = {"Idempotency-Key": "make-once"}

    first = world.http.post("/v1/tokens", json=body, headers=key)
    again = world.http.post("/v1/tokens", json=body, headers=key)

    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == {**first.json(), "token": None}
    assert len(world.http.get("/v1/tokens", params={"filter": "name = once"}).json()["tokens"]) == 1


def test_a_revoked_token_is_refused_at_once_by_the_process_that_revoked_it(world: World) -> None:
    token = made(world)
    assert world.http.get("/v1/runs", headers=bearer(token)).status_code == 200

    assert world.http.delete(f"/v1/tokens/{token['id']}").status_code == 204

    answer = world.http.get("/v1/runs", headers=bearer(token))
    assert (answer.status_code, answer.json()["code"]) == (401, "token_refused")
    assert "revoked" in answer.json()["detail"]
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert world.http.get(f"/v1/tokens/{token['id']}").json()["revoked_at"]
    assert world.http.delete("/v1/tokens/tok_0").json()["code"] == "token_not_found"


def test_nobody_gives_more_than_it_has(world: World) -> None:
    mine = bearer(made(world, scopes=["admin"], project="mine"))

    def asked(**body: Any) -> httpx2.Response:
        return world.http.post("/v1/tokens", json={"name": "x", "scopes": ["run"], **body}, headers=mine)

    assert asked().json()["project"] == "mine"
    assert asked(project="*").json()["code"] == "project_forbidden"
    assert asked(project="other").json()["code"] == "project_forbidden"
    runner = bearer(made(world))
    answer = world.http.post("/v1/tokens", json={"name": "x", "scopes": ["admin"]}, headers=runner)
    assert answer.json()["code"] == "scope_missing"


@pytest.mark.parametrize(
    "body",
    [
        {"scopes": []},
        {"scopes": ["root"]},
        {"name": "a\nb"},
        {"name": "\x1b[31m"},
        {"project": "../x"},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": 1e300},
        {"scopes": ["run"], "run": "x"},
        {"colour": "red"},
    ],
)
def test_what_is_no_token_is_refused(world: World, body: dict[str, Any]) -> None:
    answer = world.http.post("/v1/tokens", json={"name": "x", "scopes": ["run"], **body})

    assert answer.status_code == 422, answer.text


def test_a_token_for_simulators_of_a_run_is_for_nothing_else(world: World) -> None:
    run = world.create()
    runner = bearer(made(world))

    token = world.http.post(f"/v1/runs/{run['id']}/simulator_tokens", json={}, headers=runner).json()

    assert (token["scopes"], token["run_id"], token["name"]) == (["simulate"], run["id"], f"simulators-of-{run['id']}")
    assert world.http.get(f"/v1/runs/{run['id']}", headers=bearer(token)).json()["code"] == "scope_missing"
    assert world.http.get("/v1/tokens/self", headers=bearer(token)).json()["run_id"] == run["id"]


def test_every_change_is_entered_with_who_what_and_from_where(world: World) -> None:
    token = made(world, name="auditee")
    run = world.http.post("/v1/runs", json={"config": CARTPOLE}, headers={**bearer(token), "X-Request-Id": "req-17"})
    run_id = run.json()["id"]
    world.http.post(f"/v1/runs/{run_id}:cancel", headers=bearer(token))
    world.http.get(f"/v1/runs/{run_id}", headers=bearer(token))
    world.http.delete("/v1/ladders/nothing", headers=bearer(token))

    found = entries(world, filter="actor = auditee")

    assert [(each["method"], each["route"], each["target"], each["status"]) for each in found] == [
        ("DELETE", "/v1/ladders/{ladder:name}", "/v1/ladders/nothing", 404),
        ("POST", "/v1/runs/{run:name}:cancel", f"/v1/runs/{run_id}:cancel", 200),
        ("POST", "/v1/runs", "/v1/runs", 201),
    ]
    first = found[-1]
    assert (first["request_id"], first["client"], first["token_id"]) == ("req-17", "127.0.0.1", token["id"])
    assert entries(world, filter="actor = auditee AND status >= 400")[0]["status"] == 404


def test_an_entry_is_committed_with_its_change_or_not_at_all(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:
        world.create()
        assert [(each["actor"], each["status"]) for each in entries(world)] == [("anonymous loopback", 201)]
        with world.services.database.engine.connect() as connection:
            connection.exec_driver_sql(
                "CREATE TRIGGER full BEFORE INSERT ON audit_entries BEGIN SELECT RAISE(ABORT, 'no entry'); END"
            )
            connection.commit()

        answer = world.http.post("/v1/runs", json={"config": CARTPOLE})

        assert answer.status_code == 500
        assert len(world.http.get("/v1/runs").json()["runs"]) == 1


def test_old_entries_are_forgotten(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:
        world.create()
        database = world.services.database
        with database.write() as session:
            session.connection().exec_driver_sql("UPDATE audit_entries SET at = at - 3 * 86400")
        world.create()

        JobLoop(old_row_jobs(database, ControllerSettings(audit_days=2)), 0.0).tick()

        assert len(entries(world)) == 1
        with database.write() as session:
            assert AuditRepository(session).forget(0.0, 10) == 1


def test_too_many_requests_of_one_token_are_told_to_wait_and_others_are_not(tmp_path: Path) -> None:
    with open_world(tmp_path, token="boss", api={"requests_per_minute": 20}) as world:
        token = bearer(made(world))
        answers = [world.http.get("/v1/runs", headers=token) for _ in range(25)]

        refused = answers[-1]
        assert [each.status_code for each in answers[:20]] == [200] * 20
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert refused.headers["content-type"] == "application/problem+json"
        assert world.http.get("/v1/runs").status_code == 200
        assert world.http.get("/healthz").status_code == 200


def test_without_configured_token_those_of_the_database_are_demanded(tmp_path: Path) -> None:
    with open_world(tmp_path, api={"require_token": True}) as world:
        assert world.http.get("/v1/runs").status_code == 401
        _, text = create_first_token(world.services.settings, "first", ["admin"])

        assert world.http.get("/v1/runs", headers={"Authorization": f"Bearer {text}"}).status_code == 200
        assert world.http.get("/v1/workers", headers={"Authorization": f"Bearer {text}"}).status_code == 200
    with pytest.raises(Exposed):
        serve_api(Settings(home=tmp_path, api={"host": "0.0.0.0"}))


def test_on_loopback_a_token_narrows_and_anothers_server_token_does_not_matter(tmp_path: Path) -> None:
    with open_world(tmp_path, api={"failures_per_minute": 2}) as world:
        token = made(world, scopes=["read"])

        assert world.http.post("/v1/runs", json={"config": CARTPOLE}, headers=bearer(token)).status_code == 403
        other = {"Authorization": "Bearer of-another-server"}
        for _ in range(3):
            assert world.http.post("/v1/runs", json={"config": CARTPOLE}, headers=other).status_code == 201
        world.http.delete(f"/v1/tokens/{token['id']}")
        assert world.http.get("/v1/runs", headers=bearer(token)).json()["code"] == "token_refused"


@pytest.mark.long
def test_many_at_once_are_told_apart(world: World) -> None:
    tokens = [made(world, name=f"t{n}", project=f"p{n}") for n in range(6)]
    found: dict[int, set[str]] = {}

    def ask(n: int) -> None:
        with httpx2.Client(base_url=world.server, headers=bearer(tokens[n]), timeout=30) as http:
            http.post("/v1/runs", json={"config": CARTPOLE})
            found[n] = {each["project"] for _ in range(5) for each in http.get("/v1/runs").json()["runs"]}

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {n: {f"p{n}"} for n in range(6)}
