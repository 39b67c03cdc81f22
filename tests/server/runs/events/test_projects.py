"""The logs of projects: what one look after the other finds."""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event, text, update

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.db.projects import DEFAULT, EVERY
from server.lifecycle.service import DeletionService
from server.runs.events import projects
from server.runs.events.projects import ProjectEvents
from server.runs.events.repository import EventRepository, Note, record
from server.runs.events.tailer import Tailer
from server.runs.models import Event, Run
from tests.factories import make_run
from tests.plans import plans_of
from tests.waiting import eventually, never

Told = tuple[str, int]
"""Name of a run and number of its event."""
RESET = ("reset", 0)


def told(messages: bytes) -> list[Told]:
    """Read the messages of a stream."""
    found: list[Told] = []
    for message in messages.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in message.splitlines())
        if lines.get("event") == "reset":
            found.append(RESET)
        elif "data" in lines:
            data = json.loads(lines["data"])
            found.append((data["run_name"], data["seq"]))
    return found


class Listener:
    """Reads the log of a project from now on, or from an earlier position."""

    def __init__(self, events: ProjectEvents, project: str = DEFAULT, position: int | None = None) -> None:
        self.seq, opening = events.open(project, position)
        self.past = told(opening)
        self.position = int(opening.decode().rstrip().rpartition("id: ")[2])
        self._events = events
        self._project = project

    def look(self) -> list[Told]:
        """Return what has come since the last look."""
        self._events.heads([self._project])
        found: list[Told] = []
        while entries := self._events.after(self._project, self.seq, 3):
            self.seq = entries[-1].seq
            found += told(b"".join(entry.chunk for entry in entries))
        return found


def say(database: Database, *run_ids: str) -> None:
    """Append an event to each run."""
    for run_id in run_ids:
        with database.write() as session:
            record(session, run_id, Note("something_happened", "It did."))


def age(database: Database, seconds: float) -> None:
    """Make everything that has happened so much older."""
    with database.write() as session:
        session.execute(update(Run).values(stored_updated_at=Run.stored_updated_at - seconds))
        session.execute(update(Event).values(at=Event.at - seconds))


@pytest.fixture
def events(database: Database) -> ProjectEvents:
    return ProjectEvents(database)


def test_a_listener_hears_what_happens_from_now_on_with_name_and_state_of_the_run(
    database: Database, events: ProjectEvents
) -> None:
    run = make_run(database, name="walker")
    seq, opening = events.open(DEFAULT, None)
    say(database, run.id)

    events.heads([DEFAULT])
    [entry] = events.after(DEFAULT, seq, 10)

    assert told(opening) == []
    first, second, *_ = entry.chunk.decode().splitlines()
    assert first.startswith("id: ")
    data = json.loads(second.removeprefix("data: "))
    assert (data["run_id"], data["run_name"], data["state"]) == (run.id, "walker", "QUEUED")
    assert (data["seq"], data["type"], data["message"]) == (2, "something_happened", "It did.")


def test_events_of_other_projects_are_not_seen_and_all_are_seen_by_who_may_see_all(
    database: Database, events: ProjectEvents
) -> None:
    ours, theirs, all_of_them = Listener(events), Listener(events, "theirs"), Listener(events, EVERY)

    make_run(database, name="a")
    make_run(database.within("theirs"), name="b")

    assert (ours.look(), theirs.look()) == ([("a", 1)], [("b", 1)])
    assert sorted(all_of_them.look()) == [("a", 1), ("b", 1)]
    assert Listener(events, "theirs", position=0).past == [("b", 1)]
    assert sorted(Listener(events, EVERY, position=0).past) == [("a", 1), ("b", 1)]


def test_nothing_is_lost_or_out_of_order_among_concurrent_writers(database: Database, events: ProjectEvents) -> None:
    """Four writers, who change runs at once, two of them the same one, while others look and join."""
    runs = [make_run(database, name=f"run-{number}") for number in range(3)]
    listener = Listener(events)
    start = threading.Barrier(5)

    def write(run_id: str) -> None:
        start.wait(60)
        for _ in range(25):
            say(database, run_id)

    writers = [threading.Thread(target=write, args=(runs[number % 3].id,)) for number in range(4)]
    for writer in writers:
        writer.start()
    start.wait(60)
    heard: list[Told] = []
    while any(writer.is_alive() for writer in writers):
        heard += listener.look()
        Listener(events)
    heard += listener.look()

    by_run: defaultdict[str, list[int]] = defaultdict(list)
    for name, seq in heard:
        by_run[name].append(seq)
    assert by_run == {
        "run-0": list(range(2, 52)),
        "run-1": list(range(2, 27)),
        "run-2": list(range(2, 27)),
    }


def test_an_event_that_is_committed_late_is_not_lost(database: Database, events: ProjectEvents) -> None:
    late, other = make_run(database, name="late"), make_run(database, name="other")
    listener = Listener(events)
    concurrent = database.engine.dialect.name == "postgresql"  # SQLite has one writer

    with database.write() as session:
        record(session, late.id, Note("something_happened", "It did."))
        took = projects.MARGIN_SECONDS - 5
        session.execute(update(Run).where(Run.id == late.id).values(stored_updated_at=Run.stored_updated_at - took))
        session.execute(update(Event).where(Event.run_id == late.id).values(at=Event.at - took))
        if concurrent:
            say(database, other.id)
        before = listener.look()

    assert before == ([("other", 2)] if concurrent else [])
    assert listener.look() == [("late", 2)]


@pytest.mark.parametrize("looks", [1, 3])
def test_a_run_that_was_quiet_for_long_is_heard_with_its_new_events_alone(
    database: Database, events: ProjectEvents, looks: int
) -> None:
    run = make_run(database, name="quiet")
    say(database, run.id)
    age(database, 1000)
    listener = Listener(events)
    for _ in range(looks):
        assert listener.look() == []

    say(database, run.id)

    assert listener.look() == [("quiet", 3)]
    assert listener.look() == []


def test_who_comes_back_with_a_position_misses_nothing_in_any_process(
    database: Database, events: ProjectEvents
) -> None:
    quiet, busy = make_run(database, name="quiet"), make_run(database, name="busy")
    age(database, 1000)
    first = Listener(events)
    say(database, busy.id, busy.id)
    assert first.look() == [("busy", 2), ("busy", 3)]

    say(database, busy.id, quiet.id)
    second = Listener(ProjectEvents(database), position=first.position)
    say(database, quiet.id)

    assert {("busy", 4), ("quiet", 2)} <= {*second.past}
    assert ("busy", 1) not in second.past, "it is older than the position and its margin"
    assert [seq for name, seq in second.past if name == "busy"] == sorted(
        seq for name, seq in second.past if name == "busy"
    )
    assert second.position > first.position
    assert second.look() == [("quiet", 3)]


def test_who_comes_back_after_too_much_is_told_to_read_the_lists_again(
    database: Database, events: ProjectEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(database, name="busy")
    say(database, run.id, run.id)
    monkeypatch.setattr(projects, "REPLAYED", 3)
    assert len(Listener(events, position=0).past) == 3

    say(database, run.id)
    listener = Listener(events, position=0)
    say(database, run.id)

    assert listener.past == [RESET]
    assert listener.look() == [("busy", 5)]


def test_who_is_too_slow_is_told_to_read_the_lists_again(
    database: Database, events: ProjectEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projects, "LOG_SIZE", 4)
    run = make_run(database, name="busy")
    slow, quick = Listener(events), Listener(events)

    say(database, *[run.id] * 4)
    assert quick.look() == [("busy", seq) for seq in (2, 3, 4, 5)]
    say(database, run.id)

    assert quick.look() == [("busy", 6)]
    assert slow.look() == [RESET]
    say(database, run.id)
    assert slow.look() == [("busy", 7)]


def test_who_listens_while_the_database_is_away_for_long_is_told_to_read_the_lists_again(
    database: Database, events: ProjectEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(database, name="busy")
    listener, of_a_quiet_project = Listener(events), Listener(events, "quiet")

    say(database, run.id)
    with monkeypatch.context() as patch:
        patch.setattr(projects, "LONGEST_PAUSE_SECONDS", 0.0)
        heard = listener.look()
    say(database, run.id)

    assert heard == [RESET]
    assert listener.look() == [("busy", 3)]
    assert of_a_quiet_project.look() == [RESET]
    assert Listener(events).look() == []


def test_a_run_that_is_deleted_meanwhile_disturbs_nobody(database: Database, events: ProjectEvents) -> None:
    gone, stays = make_run(database, name="gone"), make_run(database, name="stays")
    listener = Listener(events)
    with database.write() as session:
        record(session, gone.id, Note("run_cancelled", "It was."), state=RunState.CANCELLED)
    assert listener.look() == [("gone", 2)]
    say(database, gone.id, stays.id)
    with database.write() as session:
        DeletionService(session).delete(gone.id)

    assert listener.look() == [("stays", 2)]
    assert {name for name, _ in Listener(events, position=listener.position).past} == {"stays"}


def test_a_run_that_is_deleted_while_its_events_are_read_has_no_more_of_them(database: Database) -> None:
    run = make_run(database)
    with database.read() as session:
        _, [head] = EventRepository(session).changed(0.0)
    with database.write() as session:
        session.execute(text("DELETE FROM runs"))

    with database.read() as session:
        assert head.run_id == run.id
        assert list(EventRepository(session).through(head, after=0)) == []


@contextmanager
def counted(database: Database) -> Iterator[list[str]]:
    """Collect the queries of a block."""
    queries: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        queries.extend([statement] if statement.startswith("SELECT") else [])

    engine = database._reader
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield queries
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_a_look_is_one_query_for_any_number_of_listeners_and_projects(
    database: Database, events: ProjectEvents
) -> None:
    for number in range(20):
        make_run(database.within(f"project-{number % 3}"))
    listeners = [f"project-{number % 5}" for number in range(50)]
    for project in listeners:
        events.open(project, None)

    with counted(database) as queries:
        events.heads({*listeners})

    assert len(queries) == 1


def test_nothing_is_asked_while_nobody_listens(database: Database, events: ProjectEvents) -> None:
    tailer = Tailer(events, interval_seconds=0.005)
    after, _ = events.open(DEFAULT, None)
    with tailer.watch(DEFAULT, lambda: None) as feed:
        make_run(database)
        eventually(lambda: feed.head is not None and feed.head.seq > after, "the event is there")

    with counted(database) as queries:
        never(lambda: len(queries) > 1, "a look for nobody, beside one that had begun", 0.2)
    tailer.close()


def test_a_look_walks_the_index_of_changes_in_sqlite(database: Database) -> None:
    if database.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL decides by its statistics")
    make_run(database)
    for read in (
        lambda session: EventRepository(session).changed(0.0),
        lambda session: EventRepository(session).with_events_since(0.0, 10),
    ):
        plans = plans_of(database, read)

        assert any("ix_runs_updated_at_id" in plan for plan in plans), plans
        assert not any("SCAN runs" in plan and "USING" not in plan for plan in plans), plans
