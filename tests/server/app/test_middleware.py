"""Turns of requests with a body, and probes beside any load."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import httpx2
import pytest

from server.app.middleware import AT_ONCE, WAITING_BYTES, Turns
from server.kit.http.errors import TooManyBodies
from tests.server.app.world import World, build_services, serving
from tests.waiting import eventually


def test_a_sender_has_a_few_turns_at_once_and_another_one_its_own() -> None:
    started: list[str] = []

    async def handle(turns: Turns, name: str, done: anyio.Event) -> None:
        async with turns.take(name, 1):
            started.append(name)
            await done.wait()

    async def main() -> None:
        turns, done = Turns(), anyio.Event()
        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE + 3):
                group.start_soon(handle, turns, "greedy", done)
            group.start_soon(handle, turns, "modest", done)
            await anyio.wait_all_tasks_blocked()
            assert sorted(started) == ["greedy"] * AT_ONCE + ["modest"]
            done.set()
        assert sorted(started) == ["greedy"] * (AT_ONCE + 3) + ["modest"]

    anyio.run(main)


def test_bodies_that_wait_beyond_the_limit_are_refused_and_leave_no_turn_taken() -> None:
    async def main() -> None:
        turns, done = Turns(), anyio.Event()

        async def handle() -> None:
            async with turns.take("greedy", WAITING_BYTES // 8):
                await done.wait()

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(handle)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(TooManyBodies):
                async with turns.take("greedy", 1):
                    pass
            done.set()
        async with turns.take("greedy", WAITING_BYTES):
            pass

    anyio.run(main)


@pytest.fixture
def narrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An API with few threads."""
    monkeypatch.setattr("server.app.app.THREADS", 2)
    monkeypatch.setattr("server.app.app.WAITERS", 0)
    with serving(services := build_services(tmp_path)) as server, httpx2.Client(base_url=server, timeout=30) as http:
        yield World(services, server, http)


def test_probes_answer_while_every_thread_of_the_api_is_busy(narrow: World) -> None:
    busy = [narrow.create(name=f"busy-{number}")["id"] for number in range(2)]
    path = "/v1/runs/{}?wait=RUNNING&timeout=60"

    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(narrow.http.get, path.format(run)) for run in busy]
        waiters = narrow.services.telemetry.waiters
        eventually(lambda: waiters._value.get() == 2)

        assert narrow.http.get("/healthz").json() == {"status": "ok"}
        assert narrow.http.get("/readyz").json() == {"status": "ok"}

        for run in busy:
            narrow.claim(run).start()
        assert [answer.result().status_code for answer in answers] == [200, 200]
