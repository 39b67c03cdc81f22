"""What is open when its token is revoked or expires: it ends soon, and says why where it still can."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
from sqlalchemy import update

from server.access.models import Token
from server.app import authentication
from server.kit import token_watcher
from tests.server.app.world import World, open_world
from tests.server.runs.events.test_streams import eventually_open, flood, messages, stalled_reader
from tests.waiting import eventually

BOUND_SECONDS = 10.0
"""So much later at the latest everything has ended."""
BIG = bytes(range(256)) * (1 << 18)
"""64 MiB: more than what is on its way between two sockets."""


@pytest.fixture(scope="module", autouse=True)
def _looks_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_watcher, "LOOK_SECONDS", 0.5)
        patch.setattr(authentication, "GRACE_SECONDS", 0.3)
        yield


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("open"), token="boss") as world:
        yield world


@pytest.fixture
def token(world: World) -> dict[str, Any]:
    return made(world)


def made(world: World, **body: Any) -> dict[str, Any]:
    answer = world.http.post("/v1/tokens", json={"name": "t", "scopes": ["run"], **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def bearer(token: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {token['token']}"}


def revoke(world: World, token: dict[str, Any]) -> None:
    assert world.http.delete(f"/v1/tokens/{token['id']}").status_code == 204


def revoke_elsewhere(world: World, token: dict[str, Any]) -> None:
    """As another process does, or an administrator in the database."""
    with world.services.database.write() as session:
        session.execute(update(Token).where(Token.id == token["id"]).values(revoked_at=1.0))


def wait_for_open(world: World, count: int) -> None:
    """Wait until `count` requests are open with tokens that are valid."""
    eventually(lambda: world.services.watcher.open == count, f"{count} requests are open", BOUND_SECONDS)


class Follower:
    """Reads a stream of events to its end, in a thread."""

    def __init__(self, world: World, run_id: str | None, token: dict[str, Any] | None) -> None:
        """Without a run: the stream of the project."""
        self.heard: list[tuple[str, dict[str, object]]] = []
        self._world = world
        self._path = "/v1/events:stream" if run_id is None else f"/v1/runs/{run_id}/events:stream"
        self._headers = {"Authorization": "Bearer boss"} if token is None else bearer(token)
        self.thread = threading.Thread(target=self._follow, daemon=True)
        before = world.services.streams.open
        self.thread.start()
        eventually(lambda: world.services.streams.open != before, "the stream is open")

    def _follow(self) -> None:
        with (
            httpx2.Client(base_url=self._world.server, timeout=60, headers=self._headers) as http,
            http.stream("GET", self._path) as answer,
        ):
            self.heard += [(kind, data) for _, kind, data in messages(answer)]


@pytest.mark.parametrize("end", [revoke, revoke_elsewhere])
def test_a_stream_of_events_ends_with_a_problem(world: World, token: dict[str, Any], end: Any) -> None:
    run = world.create()
    follower, other, configured = (
        Follower(world, run["id"], token),
        Follower(world, run["id"], made(world)),
        Follower(world, run["id"], None),
    )
    end(world, token)
    follower.thread.join(BOUND_SECONDS)

    assert not follower.thread.is_alive()
    kind, problem = follower.heard[-1]
    assert kind == "error"
    assert (problem["code"], problem["status"]) == ("token_refused", 401)
    assert problem["instance"] == f"/v1/runs/{run['id']}/events:stream"
    assert "revoked" in str(problem["detail"])
    world.http.post(f"/v1/runs/{run['id']}:stop")
    for each in (other, configured):
        each.thread.join(BOUND_SECONDS)
        assert each.heard[-1][0] == "end"


@pytest.mark.parametrize("end", [revoke, revoke_elsewhere])
def test_a_stream_of_a_projects_events_ends_with_a_problem(world: World, token: dict[str, Any], end: Any) -> None:
    follower = Follower(world, None, token)
    end(world, token)
    follower.thread.join(BOUND_SECONDS)

    assert not follower.thread.is_alive()
    kind, problem = follower.heard[-1]
    assert (kind, problem["code"], problem["status"]) == ("error", "token_refused", 401)
    assert problem["instance"] == "/v1/events:stream"


def test_a_stream_of_events_ends_when_its_token_expires(world: World) -> None:
    follower = Follower(world, world.create()["id"], made(world, expires_in_seconds=1.0))

    follower.thread.join(1.0 + BOUND_SECONDS)

    assert not follower.thread.is_alive()
    assert "expired" in str(follower.heard[-1][1]["detail"])


def test_who_takes_nothing_of_a_stream_is_thrown_out_too(world: World, token: dict[str, Any]) -> None:
    trainer = world.claim(world.create()["id"]).start()
    before = world.services.streams.open
    with stalled_reader(world, trainer.run_id, token["token"]):
        eventually_open(world, before + 1)
        flood(trainer, megabytes=8)
        revoke(world, token)

        eventually_open(world, before, BOUND_SECONDS)


def test_who_waits_for_a_run_is_refused(world: World, token: dict[str, Any]) -> None:
    run = world.create()
    threading.Timer(0.5, revoke, (world, token)).start()
    began = time.monotonic()

    answer = world.http.get(f"/v1/runs/{run['id']}?wait=terminal&timeout=60", headers=bearer(token))

    assert (answer.status_code, answer.json()["code"]) == (401, "token_refused")
    assert time.monotonic() - began < BOUND_SECONDS


def test_a_download_is_broken_off_and_not_resumed(world: World, token: dict[str, Any], tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.save(100, {"buffer.npz": BIG}, tmp_path)
    path = f"/v1/runs/{trainer.run_id}/checkpoints/latest/files/buffer.npz"

    with (
        structlog.testing.capture_logs() as lines,
        world.http.stream("GET", path, headers=bearer(token)) as answer,
    ):
        blocks = answer.iter_raw(1 << 16)
        arrived = [next(blocks)]
        revoke(world, token)
        # nothing is taken meanwhile, so that the answer cannot be complete
        eventually(lambda: any(line["event"] == "answer_cut_off" for line in lines), seconds=BOUND_SECONDS)
        with pytest.raises(httpx2.TransportError):
            arrived.extend(blocks)

    received = sum(map(len, arrived))
    assert received < len(BIG)
    again = world.http.get(path, headers={**bearer(token), "Range": f"bytes={received}-"})
    assert (again.status_code, again.json()["code"]) == (401, "token_refused")


def test_an_upload_that_was_begun_with_a_token_that_is_revoked_meanwhile_is_refused(
    world: World, token: dict[str, Any]
) -> None:
    def body() -> Iterator[bytes]:
        yield b"x" * 1000
        wait_for_open(world, 1)
        revoke(world, token)
        wait_for_open(world, 0)
        yield b"x" * 1000

    headers = {**bearer(token), "Content-Type": "application/octet-stream"}
    answer = world.http.post("/v1/demonstrations?name=late", content=body(), headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (401, "token_refused")
    assert world.http.get("/v1/demonstrations").json()["demonstrations"] == []


def test_short_answers_with_a_token_that_ends_meanwhile_are_whole(world: World, token: dict[str, Any]) -> None:
    world.create()
    assert json.loads(world.http.get("/v1/runs", headers=bearer(token)).content)["runs"]
    revoke(world, token)

    assert world.http.get("/v1/runs", headers=bearer(token)).status_code == 401
    wait_for_open(world, 0)
