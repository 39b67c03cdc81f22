"""The stream of all runs of a project, over HTTP."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.runs.events.streams import StreamLimits
from tests.factories import make_run
from tests.server.app.test_access import token_of
from tests.server.app.world import World, build_services, open_world, serving
from tests.server.runs.events.test_streams import eventually_open, messages
from tests.waiting import eventually

PATH = "/v1/events:stream"
Told = tuple[str, int]
"""Name of a run and number of its event."""


class Follower:
    """Reads the stream in a thread, as a browser does, until it is let go or the stream ends."""

    def __init__(self, server: str, headers: dict[str, str] | None = None) -> None:
        self.kinds: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.last_id = ""
        self._server = server
        self._headers = headers or {}
        self._began = threading.Event()
        self._left = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()
        assert self._began.wait(60), "the stream has begun"

    @property
    def names(self) -> list[Told]:
        return [(told["run_name"], told["seq"]) for told in self.told if "run_name" in told]

    def _follow(self) -> None:
        with (
            httpx2.Client(base_url=self._server, timeout=60, headers=self._headers) as http,
            http.stream("GET", PATH) as answer,
        ):
            for _, kind, data in messages(self._noted(answer)):
                self.kinds.append(kind)
                self.told.append(data)

    def _noted(self, answer: httpx2.Response) -> Any:
        follower = self

        class Lines:
            def iter_lines(self) -> Iterator[str]:
                for line in answer.iter_lines():
                    if line.startswith("id: "):
                        follower.last_id = line[4:]
                    yield line
                    if follower.last_id and not line:
                        follower._began.set()

        return Lines()


def test_a_stream_begins_now_and_has_the_events_of_every_run(world: World) -> None:
    world.create(name="before")
    follower = Follower(world.server)

    trainer = world.claim(world.create(name="live")["id"])
    world.create(name="other")
    trainer.start().finish()
    eventually(lambda: {("live", 5), ("other", 1)} <= {*follower.names}, "all events have come")

    by_run = {name: [seq for each, seq in follower.names if each == name] for name in ("live", "other")}
    assert by_run == {"live": [1, 2, 3, 4, 5], "other": [1]}
    assert ("before", 1) not in follower.names
    assert {each["state"] for each in follower.told if each["type"] == "run_succeeded"} == {"SUCCEEDED"}
    assert {*follower.kinds} == {"message"}


def test_events_of_other_projects_are_not_seen(world: World) -> None:
    theirs = token_of(world, "run", "theirs")
    everywhere = Follower(world.server, {"Ludus-Project": "*"})
    their_follower, ours = Follower(world.server, theirs), Follower(world.server)

    created = world.http.post("/v1/runs", json={"config": "behaviors: {A: {}}", "name": "secret"}, headers=theirs)
    assert created.status_code == 201
    world.create(name="ours")
    eventually(lambda: len(everywhere.names) >= 2, "all events have come")
    eventually(lambda: their_follower.names, "theirs has come")
    eventually(lambda: ours.names, "ours has come")

    assert (their_follower.names, ours.names) == ([("secret", 1)], [("ours", 1)])
    assert sorted(everywhere.names) == [("ours", 1), ("secret", 1)]


def test_a_token_that_may_not_read_gets_no_stream(world: World) -> None:
    simulate = token_of(world, "simulate")

    assert world.http.get(PATH, headers=simulate).json()["code"] == "scope_missing"


@pytest.mark.parametrize("position", ["x", "-1", "1e9", str(2**60)])
def test_an_id_that_no_stream_has_given_is_refused(world: World, position: str) -> None:
    answer = world.http.get(PATH, headers={"Last-Event-ID": position})

    assert (answer.status_code, answer.json()["errors"][0]["location"]) == (422, "header")


@contextmanager
def started(home: Path, server: str = "") -> Iterator[str]:
    """Serve what lies in a folder, where it was served before."""
    with serving(build_services(home), int(server.rpartition(":")[2] or 0)) as address:
        yield address


def test_a_server_that_is_started_again_under_an_open_stream_loses_no_event(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        follower = Follower(server)
        with httpx2.Client(base_url=server) as http:
            http.post("/v1/runs?name=first", json={"config": "behaviors: {A: {}}"}).raise_for_status()
        eventually(lambda: follower.names, "the first event has come")
    follower.thread.join(60)
    assert not follower.thread.is_alive(), "a server that stops lets its streams go"
    away = build_services(tmp_path)
    make_run(away.database, name="while-away")
    away.database.close()

    with started(tmp_path) as server:
        with httpx2.Client(base_url=server) as http:
            http.post("/v1/runs?name=before", json={"config": "behaviors: {A: {}}"}).raise_for_status()
            again = Follower(server, {"Last-Event-ID": follower.last_id})
            http.post("/v1/runs?name=after", json={"config": "behaviors: {A: {}}"}).raise_for_status()
        eventually(lambda: ("after", 1) in again.names, "the last event has come")

    assert {*again.names} == {("first", 1), ("while-away", 1), ("before", 1), ("after", 1)}
    assert again.names.count(("after", 1)) == 1
    assert int(again.last_id) > int(follower.last_id)


def test_a_stream_that_breaks_before_its_first_event_has_a_position_already(tmp_path: Path) -> None:
    with started(tmp_path) as server:
        follower = Follower(server)
    follower.thread.join(60)
    away = build_services(tmp_path)
    make_run(away.database, name="while-away")
    away.database.close()

    with started(tmp_path) as server:
        again = Follower(server, {"Last-Event-ID": follower.last_id})

        eventually(lambda: again.names == [("while-away", 1)], "the event has come")


@pytest.mark.parametrize("first_is_of_a_run", [True, False])
def test_runs_and_projects_share_the_limit_of_streams(tmp_path: Path, first_is_of_a_run: bool) -> None:
    with open_world(tmp_path, limits=StreamLimits(clients=1)) as world:
        paths = [f"/v1/runs/{world.create()['id']}/events:stream", PATH]
        first, second = paths if first_is_of_a_run else reversed(paths)
        with world.http.stream("GET", first):
            eventually_open(world, 1)

            refused = world.http.get(second)

    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
