"""Jobs: each has its pace, an error delays its own job alone, and a row goes to one process."""

import threading
from collections.abc import Sequence
from itertools import pairwise

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from server.kit.db.database import Database, Session
from server.kit.errors import DatabaseUnavailable, RunNotFound
from server.kit.jobs import LONGEST_PAUSE_SECONDS, Job, JobLoop, RowsFailed, handle_rows
from server.kit.telemetry import ControllerTelemetry
from server.runs.events.repository import lock_run
from server.runs.models import Run
from tests.clock import Clock
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import make_run
from tests.waiting import eventually


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


def away() -> int:
    raise DatabaseUnavailable("a test wants so")


def rounds_in(loop: JobLoop, clock: Clock, seconds: int, name: str) -> int:
    """Let seconds pass, with a turn in each; return how many rounds a job had."""
    count = 0
    for _ in range(seconds):
        count += name in loop.tick()
        clock.now += 1
    return count


def test_each_job_of_a_loop_has_a_pace_of_its_own(clock: Clock) -> None:
    jobs = [Job("often", lambda: 0), Job("rare", lambda: 0, 10.0), Job("late", lambda: 0, 10.0, after_seconds=25.0)]

    turns = []
    loop = JobLoop(jobs, 1.0, monotonic=clock)
    for _ in range(30):
        turns.append(loop.tick())
        clock.now += 1

    assert [sum(name in turn for turn in turns) for name in ("often", "rare", "late")] == [30, 3, 1]
    assert "late" in turns[25]


def test_a_job_that_fails_is_tried_again_after_growing_pauses_and_delays_no_other(clock: Clock) -> None:
    telemetry = ControllerTelemetry()
    loop = JobLoop([Job("fails", away), Job("works", lambda: 1)], 1.0, telemetry, clock)

    tried = []
    for second in range(40):
        handled = loop.tick()
        tried += [second] * ("fails" in handled)
        assert handled["works"] == 1
        clock.now += 1

    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses[:5] == [1, 1, 2, 4, 8]
    assert set(pauses[5:]) == {LONGEST_PAUSE_SECONDS}
    counted = telemetry.registry.get_sample_value
    labels = {"job_name": "fails", "outcome": "database_unavailable"}
    assert counted("ludus_controller_round_seconds_count", labels) == len(tried)


def test_a_job_that_must_not_be_late_is_tried_again_in_each_turn(clock: Clock) -> None:
    loop = JobLoop([Job("leases", away, longest_pause_seconds=0.0)], 1.0, monotonic=clock)

    assert rounds_in(loop, clock, 30, "leases") == 30


def test_a_job_that_recovered_begins_with_short_pauses_again(clock: Clock) -> None:
    outages = [*range(6)]
    loop = JobLoop([Job("recovers", lambda: away() if outages and outages.pop() >= 0 else 0)], 1.0, monotonic=clock)

    rounds_in(loop, clock, 30, "recovers")

    assert rounds_in(loop, clock, 10, "recovers") == 10


def test_a_job_with_a_backlog_is_repeated_without_the_loops_pause() -> None:
    backlog, done, stop = [3, 3, 1], threading.Event(), threading.Event()

    def work() -> int:
        if not backlog:
            done.set()
            return 0
        return backlog.pop()

    thread = threading.Thread(
        target=(loop := JobLoop([Job("works", work, again_seconds=0.0)], 3600.0)).run, args=(stop,)
    )
    thread.start()
    try:
        assert done.wait(30)
    finally:
        stop.set()
        loop.wake()
        thread.join(30)
    assert not thread.is_alive()


def test_a_loop_that_is_called_begins_a_turn_at_once() -> None:
    called, stop, turns = threading.Event(), threading.Event(), list[int]()
    loop = JobLoop([Job("counts", lambda: turns.append(1) or 0)], 3600.0, called=called)
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        eventually(lambda: len(turns) == 1, "the first turn")
        called.set()
        eventually(lambda: len(turns) == 2, "the second one")
    finally:
        stop.set()
        loop.wake()
        thread.join(30)


def all_runs(session: Session) -> Sequence[str]:
    return session.scalars(select(Run.id).order_by(Run.id)).all()


def test_a_row_that_fails_keeps_no_other_from_being_handled(database: Database) -> None:
    ids = sorted(make_run(database).id for _ in range(3))

    def handle(session: Session, run_id: str) -> int:
        session.get_one(Run, run_id).stop_detail = "handled"
        if run_id == ids[1]:
            raise RunNotFound(run_id)
        return 1

    with pytest.raises(RowsFailed) as failed:
        handle_rows(database, all_runs, handle)

    assert (failed.value.handled, list(failed.value.errors)) == (2, [ids[1]])
    with database.read() as session:
        assert [session.get_one(Run, run_id).stop_detail == "handled" for run_id in ids] == [True, False, True]


def test_rows_that_fail_are_logged_once_in_a_while_and_their_rounds_are_counted_and_not_delayed(clock: Clock) -> None:
    telemetry = ControllerTelemetry()

    def work() -> int:
        raise RowsFailed(2, {"run_1": RunNotFound("run_1"), "run_2": RunNotFound("run_2")})

    loop = JobLoop([Job("fails", work, every_seconds=10)], 1.0, telemetry, clock)
    with capture_logs() as logs:
        rounds = rounds_in(loop, clock, 600, "fails")

    assert rounds == 60
    warnings = [log for log in logs if log["event"] == "rows_failed"]
    assert [(log["log_level"], log["job"], log["row"], log["rows"]) for log in warnings] == [
        ("warning", "fails", "run_1", 2)
    ] * 2
    counted = {"job_name": "fails", "outcome": "rows_failed"}
    assert telemetry.registry.get_sample_value("ludus_controller_round_seconds_count", counted) == 60


def test_an_outage_ends_the_round(database: Database) -> None:
    for _ in range(3):
        make_run(database)
    asked = list[str]()

    def handle(_session: Session, run_id: str) -> int:
        asked.append(run_id)
        return away()

    with pytest.raises(DatabaseUnavailable):
        handle_rows(database, all_runs, handle)
    assert len(asked) == 1


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_a_row_that_another_process_has_is_passed_over(database: Database) -> None:
    ids = sorted(make_run(database).id for _ in range(3))

    def handle(session: Session, run_id: str) -> int:
        return int(lock_run(session, run_id, patient=False) is not None)

    with database.write() as other:
        lock_run(other, ids[1])
        assert handle_rows(database, all_runs, handle) == 2
    assert handle_rows(database, all_runs, handle) == 3
