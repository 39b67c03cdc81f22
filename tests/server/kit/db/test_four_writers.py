"""Four processes write at once: no acknowledged write is lost, and none is refused without a clear message."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.runs.events.repository import EventRepository
from server.runs.models import Run
from tests.factories import make_ledger, read_metric, read_run


@pytest.mark.parametrize("seconds", [pytest.param(2, marks=pytest.mark.long), pytest.param(60, marks=pytest.mark.slow)])
def test_four_writers_lose_nothing(database_url: str, seconds: int) -> None:
    database = Database(database_url)
    make_ledger(database, name="contended")
    run = read_run(database, "contended")
    arguments = [sys.executable, "-m", "tests.server.kit.db.writer", database_url, run.id, str(run.attempt)]
    writers = [
        subprocess.Popen(
            [*arguments, str(number), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[4],
        )
        for number in range(4)
    ]
    for number, writer in enumerate(writers):
        assert writer.stdout is not None
        assert writer.stdout.readline() == f"ready {number}\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    said = [line.split(maxsplit=1) for writer in writers for line in writer.communicate()[0].splitlines()]

    assert [writer.returncode for writer in writers] == [0] * 4
    kinds = ("event", "run", "paused")
    acknowledged = {kind: {name.strip() for said_kind, name in said if said_kind == kind} for kind in kinds}
    points = {name.strip() for kind, name in said if kind == "point"}
    assert {name.split("-")[0] for name in points} == set("0123"), "every writer gets its turn"
    assert not [message for kind, message in said if kind == "refused"]
    with database.read() as session:
        events = EventRepository(session).page(run.id, limit=10**6)
        names = set(session.scalars(select(Run.name)))
        paused = set(session.scalars(select(Run.name).where(Run.state == RunState.PAUSED, Run.event_seq == 2)))
    histories = {number: read_metric(database, run.id, f"behavior-{number}", "value") for number in range(4)}
    database.close()

    assert {event.message for event in events} >= acknowledged["event"]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert names >= acknowledged["run"]
    assert paused >= acknowledged["paused"]
    for name in points:
        writer, number = name.split("-")
        history = histories[int(writer)]
        assert history is not None
        assert int(number) in history.steps
