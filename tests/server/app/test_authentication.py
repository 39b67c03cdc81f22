"""Who is let in: by a token, and without one only from this machine; guesses are counted."""

from pathlib import Path

import httpx2
import pytest

from tests.server.app.world import open_world


def test_a_token_is_demanded_where_one_is_set(tmp_path: Path) -> None:
    with open_world(tmp_path, token="open sesame") as world, httpx2.Client(base_url=world.server) as stranger:
        for header in (None, "Bearer wrong", "Basic open sesame", "Bearer", "Bearer öffne"):
            headers = {} if header is None else {"Authorization": header.encode()}
            answer = stranger.get("/v1/runs", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert stranger.get("/healthz").status_code == stranger.get("/version").status_code == 200
        assert stranger.get("/metrics").status_code == 401
        assert world.http.get("/v1/runs").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:8080"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:1", "Origin": "http://127.0.0.1:3000"}, 200),
    ],
)
def test_without_a_token_foreign_web_pages_are_kept_out(
    http: httpx2.Client, headers: dict[str, str], status: int
) -> None:
    assert http.get("/v1/runs", headers=headers).status_code == status


def test_guessing_tokens_is_limited_harder_and_those_who_are_in_stay_in(tmp_path: Path) -> None:
    with open_world(tmp_path, token="boss", api={"failures_per_minute": 5}) as world:
        guesses = [{"Authorization": f"Bearer guess-{n}"} for n in range(8)]

        statuses = [world.http.get("/v1/runs", headers=guess).status_code for guess in guesses]

        assert statuses == [401] * 5 + [429] * 3
        assert world.http.get("/v1/runs").status_code == 200
