"""A browser signs in with a token, keeps a cookie instead of it, and is signed out when either of them ends."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from server.access.models import BrowserSession, Token
from server.app import authentication
from server.kit import token_watcher
from tests.server.app.world import CARTPOLE, World, build_services, open_world, serving
from tests.server.runs.events.test_streams import messages
from tests.waiting import eventually

OWN = {"Sec-Fetch-Site": "same-origin"}
"""What a browser sends with requests of the server's own pages."""
DAY = 86400
ENDS_SECONDS = 30.0


@pytest.fixture(scope="module", autouse=True)
def _looks_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_watcher, "LOOK_SECONDS", 0.5)
        patch.setattr(authentication, "GRACE_SECONDS", 0.3)
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("sessions"), token="boss", api={"failures_per_minute": 0}) as world:
        yield world


def made(world: World, **body: Any) -> dict[str, Any]:
    answer = world.http.post("/v1/tokens", json={"name": "ann", "scopes": ["run"], **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


@contextmanager
def browser(world: World, token: str | None = None, **body: Any) -> Iterator[httpx2.Client]:
    """A browser on one of the server's pages, signed in with a token if one is given."""
    with httpx2.Client(base_url=world.server, timeout=30, headers=OWN) as http:
        if token is not None:
            answer = http.post("/ui/session", json={"token": token, **body})
            assert answer.status_code == 200, answer.text
        yield http


def cookie_of(answer: httpx2.Response) -> Any:
    (morsel,) = SimpleCookie(answer.headers["set-cookie"]).values()
    return morsel


def test_a_browser_signs_in_and_has_the_rights_of_the_token(world: World) -> None:
    token = made(world)
    with browser(world) as http:
        assert http.get("/v1/runs").status_code == http.get("/ui/session").status_code == 401

        signed = http.post("/ui/session", json={"token": token["token"]})

        assert (signed.status_code, signed.json()["name"], signed.json()["token_id"]) == (200, "ann", token["id"])
        assert signed.json() == http.get("/ui/session").json() == http.get("/v1/tokens/self").json()
        assert http.get("/v1/runs").status_code == 200
        run = http.post("/v1/runs", json={"config": CARTPOLE})
        assert run.status_code == 201
        assert http.get("/v1/tokens").json()["code"] == "scope_missing"
        assert token["token"] not in signed.text + signed.headers["set-cookie"]


def test_the_cookie_is_for_this_server_and_no_script(world: World) -> None:
    cookie = cookie_of(httpx2.post(f"{world.server}/ui/session", json={"token": "boss"}, headers=OWN))

    assert cookie.key == "ludus_session"
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["domain"]) == (True, "strict", "/", "")
    assert (int(cookie["max-age"]), cookie["secure"]) == (30 * DAY, "")
    short = made(world, expires_in_seconds=3600)
    answer = httpx2.post(f"{world.server}/ui/session", json={"token": short["token"]}, headers=OWN)
    assert 3500 < int(cookie_of(answer)["max-age"]) <= 3600


def test_signing_in_is_in_the_audit_log_and_so_is_what_the_session_changes(world: World) -> None:
    token = made(world, name="auditee", project="books")
    with browser(world, token["token"]) as http:
        http.post("/v1/runs", json={"config": CARTPOLE}).raise_for_status()
        http.delete("/ui/session").raise_for_status()

    query = {"filter": "actor = auditee"}
    entries = world.http.get("/v1/audit", params=query, headers={"Ludus-Project": "books"}).json()["entries"]

    assert [(each["method"], each["target"], each["status"], each["token_id"]) for each in entries] == [
        ("DELETE", "/ui/session", 204, token["id"]),
        ("POST", "/v1/runs", 201, token["id"]),
        ("POST", "/ui/session", 200, token["id"]),
    ]


@pytest.mark.parametrize("token", ["wrong", "ludus_0_x", "ludus_" + "0" * 26 + "_" + "x" * 43, "ses_x", "böss", "\x00"])
def test_a_wrong_token_signs_nobody_in(world: World, token: str) -> None:
    with browser(world) as http:
        answer = http.post("/ui/session", json={"token": token})

        assert (answer.status_code, answer.json()["code"]) == (401, "token_refused")
        assert "set-cookie" not in answer.headers
        assert token not in answer.text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"token": ""}, 422),
        ({"token": 1}, 422),
        ({"token": "x" * 1001}, 422),
        ({"token": "boss", "project": "../x"}, 422),
        ({"token": "boss", "next": "https://evil.example"}, 422),
        ([], 422),
    ],
)
def test_what_is_no_sign_in_is_refused_without_repeating_it(world: World, body: Any, status: int) -> None:
    with browser(world) as http:
        answer = http.post("/ui/session", json=body)

        assert answer.status_code == status
        assert "set-cookie" not in answer.headers
        assert "evil" not in answer.text
        assert http.post("/ui/session", content=b"token=boss").status_code == 415


def test_failures_to_sign_in_and_wrong_cookies_count_as_wrong_tokens(tmp_path: Path) -> None:
    for attempt in (
        lambda http: http.post("/ui/session", json={"token": "wrong"}),
        lambda http: http.get("/v1/runs", headers={"Cookie": "ludus_session=wrong"}),
        lambda http: http.get("/v1/runs", headers={"Authorization": "Bearer wrong"}),
    ):
        home = tmp_path / str(id(attempt))
        with open_world(home, token="boss", api={"failures_per_minute": 3}) as world, browser(world) as http:
            token = made(world)["token"]
            assert [attempt(http).status_code for _ in range(5)] == [401, 401, 401, 429, 429]
            refused = attempt(http)
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
            assert int(refused.headers["retry-after"]) >= 1
            right = {"Authorization": f"Bearer {token}"}
            assert http.get("/v1/runs", headers=right).status_code == 200, "others of the address are not shut out"
            assert http.post("/ui/session", json={"token": token}).status_code == 200
            assert http.get("/v1/runs").status_code == 200, "nor are their cookies"
            assert attempt(http).status_code == 429


def test_an_ended_session_is_no_failure(tmp_path: Path) -> None:
    """A page that is left open asks again and again; its address must still be able to sign in."""
    with open_world(tmp_path, token="boss", api={"failures_per_minute": 3}) as world, browser(world, "boss") as http:
        cookie = {"Cookie": f"ludus_session={http.cookies['ludus_session']}"}
        http.delete("/ui/session").raise_for_status()

        codes = [http.get("/v1/runs", headers=cookie).json()["code"] for _ in range(6)]

        assert codes == ["session_ended"] * 6
        assert http.post("/ui/session", json={"token": "boss"}).status_code == 200


def sign_out(world: World, http: httpx2.Client, _token: dict[str, Any]) -> None:
    answer = http.delete("/ui/session")
    assert answer.status_code == 204
    assert answer.headers["clear-site-data"] == '"cache"'
    cookie = cookie_of(answer)
    assert (cookie.value, cookie["max-age"], cookie["path"], cookie["httponly"]) == ("", "0", "/", True)
    assert "ludus_session" not in http.cookies


def revoke(world: World, _http: httpx2.Client, token: dict[str, Any]) -> None:
    assert world.http.delete(f"/v1/tokens/{token['id']}").status_code == 204


def expire(world: World, _http: httpx2.Client, token: dict[str, Any]) -> None:
    with world.services.database.write() as session:
        session.execute(update(Token).where(Token.id == token["id"]).values(expires_at=1.0))
    world.services.sessions.forget()


def age(world: World, _http: httpx2.Client, token: dict[str, Any]) -> None:
    with world.services.database.write() as session:
        session.execute(update(BrowserSession).where(BrowserSession.token_id == token["id"]).values(expires_at=1.0))
    world.services.sessions.forget()


ENDS = pytest.mark.parametrize(
    ("end", "code"),
    [
        (sign_out, "session_ended"),
        (revoke, "token_refused"),
        (expire, "token_refused"),
        (age, "session_ended"),
    ],
)


@ENDS
def test_an_ended_session_reads_nothing_and_changes_nothing(world: World, end: Callable[..., None], code: str) -> None:
    token = made(world)
    with browser(world, token["token"]) as http, browser(world, made(world)["token"]) as other:
        cookie = {"Cookie": f"ludus_session={http.cookies['ludus_session']}"}
        assert http.get("/v1/runs").status_code == 200

        end(world, http, token)

        for answer in (
            httpx2.get(f"{world.server}/v1/runs", headers=cookie),
            httpx2.get(f"{world.server}/ui/session", headers=cookie),
            httpx2.post(f"{world.server}/v1/runs", json={"config": CARTPOLE}, headers={**OWN, **cookie}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (401, code)
        assert other.get("/v1/runs").status_code == 200


@ENDS
def test_a_stream_that_is_open_with_a_session_ends_with_it(world: World, end: Callable[..., None], code: str) -> None:
    run = world.create()
    token = made(world)
    heard: list[tuple[str, dict[str, object]]] = []
    with browser(world, token["token"]) as http, browser(world, token["token"]) as reader:
        reader.cookies = http.cookies
        before = world.services.streams.open

        def follow() -> None:
            with reader.stream("GET", f"/v1/runs/{run['id']}/events:stream", timeout=60) as answer:
                heard.extend((kind, data) for _, kind, data in messages(answer))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        eventually(lambda: world.services.streams.open != before, "the stream is open")

        end(world, http, token)

        thread.join(ENDS_SECONDS)
        assert not thread.is_alive()
    kind, problem = heard[-1]
    assert (kind, problem["code"], problem["status"]) == ("error", code, 401)


@pytest.mark.long
def test_a_session_ends_with_the_run_that_its_token_is_for(world: World) -> None:
    run = world.create()["id"]
    token = made(world, scopes=["read"], run=run, name="link")
    with browser(world, token["token"]) as http:
        assert http.get("/ui/session").json()["run_id"] == run
        assert http.get(f"/v1/runs/{run}").status_code == 200
        assert http.get("/v1/runs").json()["code"] == "token_bound"
        world.http.post(f"/v1/runs/{run}:cancel").raise_for_status()

        assert world.http.delete(f"/v1/runs/{run}").status_code == 204

        eventually(lambda: http.get("/ui/session").status_code == 401, "the session ends")


def test_sessions_of_the_settings_token_end_when_the_server_starts_with_another_one(tmp_path: Path) -> None:
    with open_world(tmp_path, token="boss") as world, browser(world, "boss") as http:
        assert http.get("/ui/session").json()["name"] == "configured token"
        cookie = {"Cookie": f"ludus_session={http.cookies['ludus_session']}"}
    for token, status in (("boss", 200), ("another", 401), ("boss", 200)):
        services = build_services(tmp_path, api={"token": token})
        with serving(services) as server:
            assert httpx2.get(f"{server}/v1/runs", headers=cookie).status_code == status


def test_signing_in_again_ends_the_browsers_former_session(world: World) -> None:
    first, second = made(world, name="first"), made(world, name="second")
    with browser(world, first["token"]) as http, browser(world, first["token"]) as other:
        former = {"Cookie": f"ludus_session={http.cookies['ludus_session']}"}

        assert http.post("/ui/session", json={"token": second["token"]}).json()["name"] == "second"

        world.services.sessions.forget()
        assert httpx2.get(f"{world.server}/v1/runs", headers=former).json()["code"] == "session_ended"
        assert http.get("/ui/session").json()["name"] == "second"
        assert other.get("/ui/session").json()["name"] == "first"


def test_a_session_acts_in_the_project_that_was_chosen(world: World) -> None:
    with browser(world, "boss", project="bots") as http:
        assert http.get("/ui/session").json()["acts_in"] == "bots"
        assert http.post("/v1/runs", json={"config": CARTPOLE}).json()["project"] == "bots"
        assert http.get("/ui/session", headers={"Ludus-Project": "other"}).json()["acts_in"] == "other"
    with browser(world, "boss", project="*") as http:
        assert http.get("/v1/runs").status_code == 200
        assert http.post("/v1/runs", json={"config": CARTPOLE}).json()["code"] == "invalid_project"
    with browser(world, made(world, project="bots")["token"]) as http:
        assert http.get("/ui/session").json()["acts_in"] == "bots"
        answer = http.post("/ui/session", json={"token": made(world, project="bots")["token"], "project": "default"})
        assert (answer.status_code, answer.json()["code"]) == (403, "project_forbidden")


def test_a_browser_keeps_no_answer_that_it_could_show_without_asking(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.save(100, {"CartPole.onnx": b"model"}, tmp_path)
    run = f"/v1/runs/{trainer.run_id}"
    with browser(world, "boss") as http:
        for path in ("/v1/runs", run, f"{run}/checkpoints/latest/files/CartPole.onnx", "/v1/runs/nothing", "/metrics"):
            answer = http.get(path)
            assert answer.headers["cache-control"] == "private, no-cache", path
        trainer.finish()  # what a live run waits for changes by the second
        etag = http.get(run).headers["etag"]
        assert http.get(run, headers={"If-None-Match": etag}).status_code == 304
        http.delete("/ui/session").raise_for_status()
        again = http.get(run, headers={"If-None-Match": etag})
        assert (again.status_code, again.json()["code"]) == (401, "unauthenticated")


def test_where_no_token_is_demanded_a_session_narrows_what_its_browser_may_do_until_it_ends(tmp_path: Path) -> None:
    with open_world(tmp_path, api={"failures_per_minute": 2}) as world, browser(world) as http:
        token = made(world, scopes=["read"], run=world.create()["id"])
        assert http.get("/ui/session").json()["name"] == "anonymous loopback"
        assert http.post("/ui/session", json={"token": "wrong"}).status_code == 401

        http.post("/ui/session", json={"token": token["token"]}).raise_for_status()

        ended = {"Cookie": f"ludus_session={http.cookies['ludus_session']}"}
        assert http.get("/v1/tokens/self").json()["run_id"] == token["run_id"]
        assert http.get(f"/v1/runs/{token['run_id']}").status_code == 200
        assert http.get("/v1/runs").status_code == 403
        assert http.delete("/ui/session").status_code == 204
        for headers in (ended, {"Cookie": "ludus_session=wrong"}, {}):
            assert {http.get("/v1/runs", headers=headers).status_code for _ in range(6)} == {200}, "as everybody"


def test_the_sessions_routes_redirect_nowhere(world: World) -> None:
    with browser(world, "boss") as http:
        for path in ("/ui/session?next=https://evil.example", "/ui/session/", "//evil.example", "/v1/runs/"):
            for method in ("GET", "POST", "DELETE"):
                answer = http.request(method, path, json={"token": "boss"})
                assert not answer.is_redirect, (method, path)
                assert "location" not in answer.headers, (method, path)
                assert "evil" not in str(answer.headers)
            http.post("/ui/session", json={"token": "boss"}).raise_for_status()
