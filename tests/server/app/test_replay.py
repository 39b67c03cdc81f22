"""Replay of event streams while events are appended, on both databases."""

import random
import threading
from pathlib import Path

import httpx2
import pytest

from server.runs.events.repository import Note, record
from tests.server.app.world import World, open_world
from tests.server.runs.events.test_streams import messages

WRITERS, EVENTS, LISTENERS = 3, 30, 4


def listen(world: World, run_id: str, total: int, seed: int, heard: list[int]) -> None:
    """Hear everything, in connections that break after a few events each."""
    draw = random.Random(seed)
    with httpx2.Client(base_url=world.server, timeout=30) as http:
        while len(heard) < total:
            headers = {"Last-Event-ID": str(heard[-1])} if heard else {}
            patience = draw.randint(1, 15)
            with http.stream("GET", f"/v1/runs/{run_id}/events:stream", headers=headers) as answer:
                for seq, _, _ in messages(answer):
                    assert seq is not None
                    heard.append(seq)
                    patience -= 1
                    if not patience or len(heard) == total:
                        break


@pytest.mark.long
def test_listeners_that_come_and_go_hear_each_event_once_and_in_order_while_others_append(
    tmp_path: Path, database_url: str
) -> None:
    with open_world(tmp_path / "home", url=database_url) as world:
        run_id = world.create()["id"]

        def append(writer: int) -> None:
            for number in range(EVENTS):
                with world.services.database.write() as session:
                    record(session, run_id, Note("counted", f"{writer}: {number}"))

        total = 1 + WRITERS * EVENTS
        heard: list[list[int]] = [[] for _ in range(LISTENERS)]
        threads = [
            *(threading.Thread(target=append, args=(writer,)) for writer in range(WRITERS)),
            *(
                threading.Thread(target=listen, args=(world, run_id, total, seed, heard[seed]))
                for seed in range(LISTENERS)
            ),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert heard == [list(range(1, total + 1))] * LISTENERS
