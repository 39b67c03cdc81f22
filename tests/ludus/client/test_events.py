"""Following the events of all runs of a project."""

import json
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import pytest

from ludus.client import Client, ProblemAnswer
from ludus.client.events import ServerSent, server_sent
from ludus.schemas import ProjectEvent
from tests.server.app.world import CARTPOLE, World, build_services, open_world, serving
from tests.waiting import eventually


class Follower:
    """Follows in a thread, until so many events have come."""

    def __init__(self, client: Client, services: Any, count: int) -> None:
        self.events: list[ProjectEvent] = []
        before = services.streams.open
        self.thread = threading.Thread(target=self._follow, args=(client, count), daemon=True)
        self.thread.start()
        eventually(lambda: services.streams.open > before, "the stream is open")

    @property
    def names(self) -> list[tuple[str, int]]:
        return [(event.run_name, event.seq) for event in self.events]

    def _follow(self, client: Client, count: int) -> None:
        self.events.extend(islice(client.events.follow_project(), count))


def test_the_events_of_all_runs_are_followed(client: Client, world: World) -> None:
    follower = Follower(client, world.services, 2)

    run = client.runs.create(CARTPOLE, name="followed")
    client.runs.cancel(run.id)
    follower.thread.join(60)

    created, cancelled = follower.events
    assert (created.run_id, created.run_name, created.seq, created.type) == (run.id, "followed", 1, "run_created")
    assert (cancelled.type, cancelled.state) == ("run_cancelled", "CANCELLED")
    assert cancelled.at.tzinfo is not None


def test_a_server_that_is_started_again_loses_no_event_and_repeats_none(tmp_path: Path) -> None:
    services = build_services(tmp_path)
    with serving(services) as address:
        client = Client(address)
        follower = Follower(client, services, 3)
        client.runs.create(CARTPOLE, name="a")
        eventually(lambda: follower.names == [("a", 1)], "the first event has come")

    services = build_services(tmp_path)
    with client, serving(services, int(address.rpartition(":")[2])), Client(address) as other:
        other.runs.create(CARTPOLE, name="b")
        eventually(lambda: len(follower.names) == 2, "it is connected again")
        other.runs.cancel("a")
        follower.thread.join(60)

    assert follower.names == [("a", 1), ("b", 1), ("a", 2)]


def test_who_follows_a_project_is_told_when_the_token_is_revoked(tmp_path: Path) -> None:
    with open_world(tmp_path, token="boss") as world, Client(world.server, "boss") as boss:
        token = boss.tokens.create("follower", ["read"])
        with Client(world.server, token.token) as client:
            revoking = threading.Timer(0.3, boss.tokens.revoke, (token.id,))
            revoking.start()

            with pytest.raises(ProblemAnswer, match="revoked") as caught:
                next(client.events.follow_project())
            revoking.join()

    assert (caught.value.status, caught.value.code) == (401, "token_refused")


def message(position: int, run: str, seq: int) -> str:
    data = {
        "run_id": run,
        "run_name": run,
        "state": "RUNNING",
        "seq": seq,
        "at": "2026-01-01T00:00:00Z",
        "type": "something_happened",
        "level": "info",
        "message": "It did.",
    }
    return f"id: {position}\ndata: {json.dumps(data)}\n\n"


def test_what_comes_twice_or_says_to_read_lists_again_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.client.backoff.ServerBackoff.wait", lambda _self, _error: None)
    streams = [
        ": hello\n\nid: 100\n\n" + message(100, "a", 1) + ": ping\n\n" + message(200, "b", 7),
        ": hello\n\n" + message(200, "b", 6) + message(200, "b", 7) + message(200, "a", 2) + "id: 300\n\n",
        ": hello\n\nid: 400\nevent: reset\ndata: {}\n\nid: 400\n\n" + message(500, "a", 9),
    ]
    asked: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers.get("Last-Event-ID"))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=streams[len(asked) - 1])

    with Client("http://127.0.0.1", transport=httpx2.MockTransport(answer)) as client:
        events: Iterator[ProjectEvent] = client.events.follow_project()
        found = [(event.run_id, event.seq) for _, event in zip(range(4), events, strict=False)]

    assert found == [("a", 1), ("b", 7), ("a", 2), ("a", 9)]
    assert asked == [None, "200", "300"]


def test_an_id_holds_until_the_next_one_and_may_come_alone() -> None:
    stream = "id: 1\ndata: a\n\n: ping\n\nevent: reset\ndata: b\ndata: c\n\nid: 2\n\ndata:d\n\n"

    assert list(server_sent(iter(stream.splitlines()))) == [
        ServerSent("message", "a", "1"),
        ServerSent("reset", "b\nc", "1"),
        ServerSent("message", "", "2"),
        ServerSent("message", "d", "2"),
    ]
