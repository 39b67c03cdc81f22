"""Reading events: in pages, from where one left off."""

import pytest

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.errors import IllegalTransition, RunNotFound
from server.runs.events.repository import EventRepository, Note, lock_run, move, record
from tests.factories import make_ledger, make_run, read_run


def test_pages_follow_on_from_the_last_number(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    for number in range(7):
        ledger.event("something_happened", str(number))
    run_id = read_run(database, "run").id

    with database.read() as session:
        events = EventRepository(session)
        first = events.page(run_id, limit=6)
        second = events.page(run_id, after=first[-1].seq, limit=6)

        assert [event.seq for event in first] == [1, 2, 3, 4, 5, 6]
        assert [event.seq for event in second] == [7, 8, 9, 10]
        assert events.count(run_id) == 10
        assert {key: head.seq for key, head in events.heads([run_id, "run_unknown"]).items()} == {run_id: 10}
        assert [event.attempt for event in first[:2]] == [None, 1]


def test_a_run_without_a_row_takes_no_events(database: Database) -> None:
    with database.write() as session, pytest.raises(RunNotFound):
        record(session, "run_unknown", Note("something_happened", "It did."))


def test_a_move_that_comes_second_changes_nothing(database: Database) -> None:
    """Both saw QUEUED; the second one's conditional UPDATE finds nothing and says what it found instead."""
    run_id = make_run(database).id
    seen_by_the_second = read_run(database, run_id)
    with database.write() as session:
        move(session, lock_run(session, run_id), RunState.CANCELLED, Note("run_cancelled", "First."))

    with database.write() as session, pytest.raises(IllegalTransition, match="is CANCELLED and cannot become STARTING"):
        move(session, seen_by_the_second, RunState.STARTING, Note("run_claimed", "Second."))

    assert read_run(database, run_id).event_seq == 2
