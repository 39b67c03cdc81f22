import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from ludus.schemas.states import RunState
from server.kit.errors import DatabaseUnavailable
from server.runs.events.streams import PAGE_SIZE, DatabaseEvents, StreamLimits
from server.runs.events.tailer import Entry
from tests.server.app.world import Trainer, World, open_world, serving
from tests.waiting import eventually


def messages(answer: httpx2.Response) -> Iterator[tuple[int | None, str, dict[str, object]]]:
    """Parse a stream into (id, event, data)."""
    seq, kind, data = None, "message", ""
    for line in answer.iter_lines():
        if line.startswith("id: "):
            seq = int(line[4:])
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            data = line[6:]
        elif not line and data:
            yield seq, kind, json.loads(data)
            seq, kind, data = None, "message", ""


def test_a_stream_gives_the_past_then_the_present_and_ends_with_the_run(world: World) -> None:
    run = world.create()
    trainer = world.claim(run["id"])
    later = threading.Timer(0.4, lambda: trainer.start().finish())
    later.start()

    with world.http.stream("GET", f"/v1/runs/{run['id']}/events:stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        found = list(messages(answer))

    *events, (_, last_kind, last) = found
    assert [seq for seq, _, _ in events] == list(range(1, len(events) + 1))
    assert [str(data["type"]) for _, _, data in events] == [
        "run_created",
        "run_claimed",
        "trainer_listening",
        "run_started",
        "run_succeeded",
    ]
    assert (last_kind, last) == ("end", {"state": "SUCCEEDED"})
    assert world.http.get(f"/v1/runs/{run['id']}/events").json()["events"] == [data for _, _, data in events]


def test_the_accept_header_asks_for_the_stream_too(world: World) -> None:
    run = world.create()
    world.http.post(f"/v1/runs/{run['id']}:stop")

    with world.http.stream("GET", f"/v1/runs/{run['id']}/events", headers={"Accept": "text/event-stream"}) as answer:
        assert [kind for _, kind, _ in messages(answer)] == ["message", "message", "end"]


def test_a_client_that_reconnects_goes_on_exactly_where_it_was(world: World) -> None:
    run = world.create()
    trainer = world.claim(run["id"]).start()
    path = f"/v1/runs/{run['id']}/events:stream"
    with world.http.stream("GET", path) as answer:
        first = [seq for seq, _, _ in (next(stream) for stream in [messages(answer)] for _ in range(2))]
    trainer.ledger.event("something_happened", "While nobody was connected.")
    threading.Timer(0.3, trainer.finish).start()

    with world.http.stream("GET", path, headers={"Last-Event-ID": "2"}) as answer:
        second = [seq for seq, kind, _ in messages(answer) if kind == "message"]

    assert first + second == list(range(1, len(first + second) + 1))


def test_a_finished_run_whose_events_are_all_known_says_not_to_reconnect(world: World) -> None:
    run = world.create()
    world.http.post(f"/v1/runs/{run['id']}:stop")

    answer = world.http.get(f"/v1/runs/{run['id']}/events:stream", headers={"Last-Event-ID": "2"})

    assert (answer.status_code, answer.content) == (204, b"")


@pytest.mark.long
def test_a_long_past_is_given_whole_and_in_order(world: World) -> None:
    run = world.create()
    trainer = world.claim(run["id"])
    for i in range(2 * PAGE_SIZE):
        trainer.ledger.event("counted", f"{i}")
    trainer.finish(RunState.CANCELLED)

    with world.http.stream("GET", f"/v1/runs/{run['id']}/events:stream") as answer:
        seqs = [seq for seq, kind, _ in messages(answer) if kind == "message"]

    assert seqs == list(range(1, 2 * PAGE_SIZE + 4))


def test_pages_of_events_follow_each_other(world: World) -> None:
    run = world.create()
    trainer = world.claim(run["id"])
    for i in range(5):
        trainer.ledger.event("counted", f"{i}")

    seqs: list[int] = []
    token, more = "", True
    while more:
        page = world.http.get(f"/v1/runs/{run['id']}/events", params={"page_token": token, "page_size": 3}).json()
        seqs += [item["seq"] for item in page["events"]]
        token = page["next_page_token"]
        more = bool(token)

    assert seqs == list(range(1, 8))


def test_events_of_an_unknown_run_are_not_found(http: httpx2.Client) -> None:
    for path in ("/v1/runs/nobody/events", "/v1/runs/nobody/events:stream"):
        assert http.get(path).json()["code"] == "run_not_found"
    wrong = http.get("/v1/runs/nobody/events", headers={"Last-Event-ID": "x"})
    assert (wrong.status_code, wrong.json()["errors"][0]["location"]) == (422, "header")


def test_silence_is_filled_with_pings(tmp_path: Path) -> None:
    with open_world(tmp_path, limits=StreamLimits(ping_seconds=0.1)) as world:
        run = world.create()
        with world.http.stream("GET", f"/v1/runs/{run['id']}/events:stream") as answer:
            lines = answer.iter_lines()
            while next(lines) != ": ping":
                pass


def test_a_stream_outlasts_a_database_that_does_not_answer_for_a_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.create()
    world.http.post(f"/v1/runs/{run['id']}:stop")
    answers, outages = DatabaseEvents.after, iter([DatabaseUnavailable("gone"), DatabaseUnavailable("gone")])

    def after(source: DatabaseEvents, log_id: str, seq: int, limit: int) -> Sequence[Entry]:
        for outage in outages:
            raise outage
        return answers(source, log_id, seq, limit)

    monkeypatch.setattr(DatabaseEvents, "after", after)
    with world.http.stream("GET", f"/v1/runs/{run['id']}/events:stream") as answer:
        found = list(messages(answer))

    assert next(outages, None) is None
    assert [kind for _, kind, _ in found] == ["message", "message", "end"]


def stalled_reader(world: World, run_id: str, token: str = "") -> socket.socket:
    """Connect, ask for the stream and read nothing."""
    address = urlsplit(world.server)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((address.hostname, address.port))
    head = f"GET /v1/runs/{run_id}/events:stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}"
    reader.sendall(f"{head}\r\n\r\n".encode())
    return reader


def flood(trainer: Trainer, megabytes: int) -> None:
    for _ in range(megabytes * 10):
        trainer.ledger.event("flooded", "x" * 100_000)


def eventually_open(world: World, count: int, seconds: float = 30) -> None:
    eventually(lambda: world.services.streams.open == count, f"{count} streams are open", seconds)


def test_a_client_that_stalls_is_dropped_and_disturbs_nobody(tmp_path: Path) -> None:
    with open_world(tmp_path, limits=StreamLimits(send_seconds=0.5)) as world, ExitStack() as stack:
        run = world.create()
        trainer = world.claim(run["id"]).start()
        stack.enter_context(stalled_reader(world, run["id"]))
        eventually_open(world, 1)
        seen: list[int | None] = []

        def follow() -> None:
            with (
                httpx2.Client(base_url=world.server, timeout=30) as http,
                http.stream("GET", f"/v1/runs/{run['id']}/events:stream") as answer,
            ):
                seen.extend(seq for seq, kind, _ in messages(answer) if kind == "message")

        healthy = threading.Thread(target=follow)
        healthy.start()
        eventually_open(world, 2)

        flood(trainer, megabytes=8)
        eventually_open(world, 1)
        trainer.finish()
        healthy.join(60)

        assert seen == list(range(1, len(seen) + 1))
        assert len(seen) > 80
        eventually_open(world, 0)


def test_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:
        run = world.create()
        with world.http.stream("GET", f"/v1/runs/{run['id']}/events:stream"):
            eventually_open(world, 1)

        eventually_open(world, 0)


def test_streams_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    with open_world(tmp_path, limits=StreamLimits(clients=1)) as world:
        run = world.create()
        with world.http.stream("GET", f"/v1/runs/{run['id']}/events:stream"):
            eventually_open(world, 1)

            refused = world.http.get(f"/v1/runs/{run['id']}/events:stream")

        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")


def test_a_stopping_server_lets_its_watchers_go(tmp_path: Path) -> None:
    with open_world(tmp_path) as world:
        run = world.create()
        read: list[str] = []

        def follow(server: str) -> None:
            with (
                httpx2.Client(base_url=server, timeout=30) as http,
                http.stream("GET", f"/v1/runs/{run['id']}/events:stream") as answer,
            ):
                read.extend(answer.iter_lines())

        with serving(world.services) as second:
            follower = threading.Thread(target=follow, args=(second,))
            follower.start()
            eventually_open(world, 1)
            before = time.monotonic()

        follower.join(30)
        assert not follower.is_alive()
        assert time.monotonic() - before < 3
        assert not any(line == "event: end" for line in read)
