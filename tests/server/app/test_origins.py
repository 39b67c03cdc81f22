"""Pages of other origins change nothing with the session of a browser, and sign it in as nobody else."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.datastructures import Headers

from server.app.browsers import is_same_origin
from tests.server.app.routes import GUARDED, asked
from tests.server.app.world import CARTPOLE, World, open_world

HOST = "ludus.example:8080"
OWN = {"Sec-Fetch-Site": "same-origin"}


@pytest.mark.parametrize(
    ("headers", "same"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": ""}, False),
        ({"sec-fetch-site": "cross-site", "origin": f"http://{HOST}"}, False),
        ({"origin": f"http://{HOST}"}, True),
        ({"origin": f"https://{HOST}"}, True),
        ({"origin": f"http://{HOST.upper()}"}, True),
        ({"origin": "http://ludus.example"}, False),
        ({"origin": "http://ludus.example:8081"}, False),
        ({"origin": "http://evil.example:8080"}, False),
        ({"origin": f"http://{HOST}.evil.example"}, False),
        ({"origin": f"http://evil.example/{HOST}"}, False),
        ({"origin": f"http://{HOST}@evil.example:8080"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://"}, False),
        ({"origin": "http://[::1"}, False),
        ({"origin": "http://ludus.example:http"}, False),
        ({"origin": "file://"}, False),
        ({}, False),
        ({"referer": f"http://{HOST}/ui"}, False),
        ({"origin": "https://proxy.example", "x-forwarded-host": "proxy.example"}, False),
    ],
)
def test_a_request_is_of_the_same_origin_if_the_browser_says_so(headers: dict[str, str], same: bool) -> None:
    assert is_same_origin(Headers({"host": HOST, **headers}), proxied=False) is same


@pytest.mark.parametrize(
    ("host", "origin", "forwarded", "same"),
    [
        ("10.0.0.7:8080", "https://ludus.example", "ludus.example", True),
        ("10.0.0.7:8080", "https://ludus.example", "ludus.example:443", True),
        ("10.0.0.7:8080", "https://ludus.example", "ludus.example, inner.example", True),
        ("10.0.0.7:8080", "https://ludus.example", "inner.example, ludus.example", False),
        ("10.0.0.7:8080", "https://evil.example", "ludus.example", False),
        ("10.0.0.7:8080", "http://10.0.0.7:8080", "ludus.example", True),
        ("10.0.0.7:8080", "null", "", False),
        ("", "http://", "", False),
    ],
)
def test_behind_a_proxy_the_host_that_it_names_counts(host: str, origin: str, forwarded: str, same: bool) -> None:
    headers = Headers({"host": host, "origin": origin, "x-forwarded-host": forwarded})

    assert is_same_origin(headers, proxied=True) is same


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    api = {"requests_per_minute": 0, "failures_per_minute": 0}
    with open_world(tmp_path_factory.mktemp("origins"), token="boss", api=api) as world:
        yield world


@pytest.fixture(scope="module")
def browser(world: World) -> Iterator[httpx2.Client]:
    """A browser that is signed in, and that says nothing about the page that asks."""
    with httpx2.Client(base_url=world.server, timeout=30) as http:
        http.post("/ui/session", json={"token": "boss"}, headers=OWN).raise_for_status()
        yield http


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"},
    {"Origin": "http://127.0.0.1:3000"},
    {"Origin": "null"},
    {},
]
CHANGING = [(method, route) for method, route in GUARDED if method != "GET"]


@pytest.mark.parametrize(("method", "route"), CHANGING, ids=[f"{method} {route.path}" for method, route in CHANGING])
def test_no_foreign_page_changes_anything_with_a_session(
    world: World, browser: httpx2.Client, method: str, route: Any
) -> None:
    signed_in = World(world.services, world.server, browser)

    for foreign in FOREIGN:
        answer = asked(signed_in, method, route, foreign)
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin"), foreign
    assert browser.get("/ui/session").status_code == 200, "it is still signed in"
    assert world.http.get("/v1/runs").json()["runs"] == []


def test_a_form_of_a_foreign_page_changes_nothing(browser: httpx2.Client) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        headers = {"Origin": "https://evil.example", "Content-Type": media_type}
        answer = browser.post("/v1/runs", content=b'{"config": "x"}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")


def test_the_servers_own_pages_change_what_the_token_may(world: World, tmp_path: Path) -> None:
    with open_world(tmp_path, token="boss") as other, httpx2.Client(base_url=other.server, timeout=30) as http:
        for own in (OWN, {"Origin": other.server}):
            http.post("/ui/session", json={"token": "boss"}, headers=own).raise_for_status()
            answer = http.post("/v1/runs", json={"config": CARTPOLE}, headers=own)
            assert answer.status_code == 201, answer.text


def test_a_foreign_page_may_not_sign_a_browser_in(world: World) -> None:
    for foreign in FOREIGN:
        answer = httpx2.post(f"{world.server}/ui/session", json={"token": "boss"}, headers=foreign)
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
        assert "set-cookie" not in answer.headers


def test_no_answer_lets_a_foreign_page_read_it(world: World, browser: httpx2.Client) -> None:
    origin = {"Origin": "https://evil.example"}
    for method, path in (("GET", "/v1/runs"), ("OPTIONS", "/v1/runs"), ("GET", "/ui/session"), ("GET", "/")):
        answer = browser.request(method, path, headers=origin)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_token_needs_no_origin_and_precedes_the_cookie(world: World, browser: httpx2.Client) -> None:
    made = world.http.post("/v1/tokens", json={"name": "reader", "scopes": ["read"]}).json()["token"]
    bearer = {"Authorization": f"Bearer {made}"}

    assert browser.get("/ui/session", headers=bearer).json()["name"] == "reader"
    answer = browser.post("/v1/runs", json={"config": CARTPOLE}, headers=bearer)
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")
    wrong = {"Authorization": "Bearer wrong"}
    assert browser.get("/v1/runs", headers=wrong).status_code == 401


def test_a_trusted_proxy_says_which_host_and_protocol_the_browser_has(tmp_path: Path) -> None:
    forwarded = {"X-Forwarded-Host": "ludus.example", "X-Forwarded-Proto": "https", "Origin": "https://ludus.example"}
    with (
        open_world(tmp_path / "a", token="boss", api={"proxies": "127.0.0.1"}) as behind,
        open_world(tmp_path / "b", token="boss") as bare,
    ):
        signed = httpx2.post(f"{behind.server}/ui/session", json={"token": "boss"}, headers=forwarded)
        name, _, value = signed.headers["set-cookie"].partition(";")[0].partition("=")
        cookie = {"Cookie": f"{name}={value}"}

        assert signed.status_code == 200, signed.text
        assert name == "__Host-ludus_session"
        assert "Secure" in signed.headers["set-cookie"]
        created = httpx2.post(f"{behind.server}/v1/runs", json={"config": CARTPOLE}, headers={**forwarded, **cookie})
        assert created.status_code == 201, created.text
        foreign = {**forwarded, **cookie, "Origin": "https://evil.example"}
        assert httpx2.post(f"{behind.server}/v1/runs", json={}, headers=foreign).json()["code"] == "foreign_origin"
        # Without https the browser would not send it; the server does not read it there either.
        assert httpx2.get(f"{behind.server}/v1/runs", headers=cookie).status_code == 401
        refused = httpx2.post(f"{bare.server}/ui/session", json={"token": "boss"}, headers=forwarded)
        assert refused.json()["code"] == "foreign_origin"
        plain = httpx2.post(f"{bare.server}/ui/session", json={"token": "boss"}, headers={**forwarded, **OWN})
        assert plain.headers["set-cookie"].startswith("ludus_session=")
        assert "Secure" not in plain.headers["set-cookie"]
