"""What an attempt writes: fenced by its attempt number, gapless in its events, harmless when repeated."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ludus.schemas.states import RunKind, RunState, StopReason
from server.kit.db.database import Database
from server.kit.errors import IllegalTransition, LeaseLost, RunNotFound
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim
from server.lifecycle.leases.repository import LeaseRepository
from server.metrics.points import MetricPoint
from server.runs.events.repository import EventRepository
from server.runs.models import Event
from server.runs.repository import RunRepository
from server.simulators.repository import SimulatorRepository
from tests.factories import make_checkpoint, make_claim, make_ledger, make_run, read_metric, read_run
from tests.server.ladders.played import make_match

WRITES: dict[str, Any] = {
    "heartbeat": lambda ledger: ledger.heartbeat(10, 5),
    "listening": lambda ledger: ledger.listening([{"address": "h:1", "index": 0}]),
    "move": lambda ledger: ledger.move(RunState.STOPPING),
    "event": lambda ledger: ledger.event("something_happened", "Something happened."),
    "metrics": lambda ledger: ledger.metrics.append([MetricPoint("CartPole", "reward", 1, 1.0, 1.0)]),
    "matches": lambda ledger: ledger.matches.append([make_match(1)]),
    "checkpoint": lambda ledger: ledger.checkpoints.add(make_checkpoint()),
    "retire_checkpoints": lambda ledger: ledger.checkpoints.retire(1),
    "resume_instead": lambda ledger: ledger.checkpoints.resume_instead({"ckpt_x": "its digest differs"}),
    "simulator_connected": lambda ledger: ledger.simulators.connected("inc", number=0, collector=0),
    "simulator_plays": lambda ledger: ledger.simulators.plays("inc", ["CartPole"], 4),
    "simulator_left": lambda ledger: ledger.simulators.left("inc", code="left", reason="bye", steps=0),
    "release": lambda ledger: ledger.release("released", "bye"),
}


def events(database: Database, run: str = "run") -> list[Event]:
    with database.read() as session:
        return list(EventRepository(session).page(RunRepository(session).get(run).id, limit=10_000))


def snapshot(database: Database) -> list[Any]:
    """Return everything that a write could have changed."""
    with database.read() as session:
        run = RunRepository(session).get("run")
        attempts = RunRepository(session).attempts(run.id)
        return [run.state, run.event_seq, run.step, [(a.number, a.step, a.heartbeat_at, a.outcome) for a in attempts]]


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_refused_once_a_newer_attempt_has_begun(database: Database, write: str) -> None:
    old = make_ledger(database, name="run")
    old.release("trainer_lost", "It crashed.")
    make_claim(database, "worker-2")
    before = snapshot(database)

    with pytest.raises(LeaseLost, match="Attempt 1 no longer holds"):
        WRITES[write](old)

    assert snapshot(database) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_write_is_refused_after_the_attempt_ended(database: Database, write: str) -> None:
    ledger = make_ledger(database, name="run")
    ledger.move(RunState.SUCCEEDED)
    before = snapshot(database)

    with pytest.raises(LeaseLost):
        WRITES[write](ledger)

    assert snapshot(database) == before


def test_a_log_may_be_entered_after_the_end_but_only_by_an_attempt_that_was(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.move(RunState.SUCCEEDED)
    run = read_run(database, "run")

    ledger.log("trainer.log", "runs/x/1/logs/trainer.log", 10)
    ledger.log("trainer.log", "runs/x/1/logs/trainer.log", 20)

    with database.read() as session:
        assert [(log.name, log.size) for log in RunRepository(session).logs(run.id)] == [("trainer.log", 20)]
    stranger = AttemptLedger(database, Claim(run.id, 9, RunKind.TRAIN, "run", {}, 0, None, "worker-9"))
    with pytest.raises(LeaseLost):
        stranger.log("trainer.log", "p", 1)


def test_a_claim_on_a_run_that_is_gone_is_not_found(database: Database) -> None:
    ghost = AttemptLedger(database, Claim("run_x", 1, RunKind.TRAIN, "run", {}, 0, None, "worker-1"))

    with pytest.raises(RunNotFound):
        ghost.heartbeat(10, 0)


def test_a_heartbeat_renews_the_lease_and_notes_the_progress(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    with database.read() as session:
        (before,) = RunRepository(session).attempts(read_run(database, "run").id)

    assert ledger.heartbeat(100, 1234).intent is Intent.NONE

    with database.read() as session:
        (after,) = RunRepository(session).attempts(read_run(database, "run").id)
    assert before.lease_expires_at is not None
    assert after.lease_expires_at is not None
    assert after.lease_expires_at >= before.lease_expires_at + 80
    assert after.step == read_run(database, "run").step == 1234


def test_the_first_running_moment_is_kept(database: Database) -> None:
    first = make_ledger(database, name="run")
    started = read_run(database, "run").started_at
    first.release("trainer_lost", "It crashed.")
    second = AttemptLedger(database, make_claim(database))
    second.move(RunState.RUNNING)

    assert read_run(database, "run").started_at == started


def test_moving_to_where_the_run_is_changes_nothing(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    count = len(events(database))

    ledger.move(RunState.RUNNING)

    assert len(events(database)) == count


def test_an_illegal_move_is_refused_and_says_so(database: Database) -> None:
    ledger = make_ledger(database, name="run")

    with pytest.raises(IllegalTransition, match="is RUNNING and cannot become QUEUED"):
        ledger.move(RunState.QUEUED)


def test_a_run_never_fails_without_a_reason(database: Database) -> None:
    ledger = make_ledger(database, name="run")

    with pytest.raises(ValueError, match="reason"):
        ledger.move(RunState.FAILED)


def test_the_end_of_a_run_closes_its_attempt_and_dismisses_its_simulators(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.simulators.connected("inc", number=0, collector=0)

    ledger.move(RunState.FAILED, reason=StopReason.DIVERGED, detail="The loss is not finite.")

    run = read_run(database, "run")
    assert (run.state, run.stop_reason, run.stop_detail) == ("FAILED", "diverged", "The loss is not finite.")
    assert run.finished_at is not None
    with database.read() as session:
        (attempt,) = RunRepository(session).attempts(run.id)
        simulator = SimulatorRepository(session).get(run.id, "inc")
    assert (attempt.outcome, attempt.lease_expires_at) == ("diverged", None)
    assert attempt.ended_at is not None
    assert (simulator.state, simulator.leave_code) == ("left", "attempt_ended")


def test_event_numbers_are_gapless_under_concurrent_writers(database_url: str) -> None:
    """Two attempts' writers, the API and a reader at once: the reader never sees a number before a smaller one."""
    database = Database(database_url, synchronous="OFF")
    ledger = make_ledger(database, name="run")
    run_id = read_run(database, "run").id
    done = threading.Event()
    glimpses: list[list[int]] = []

    def write(number: int) -> None:
        for index in range(20):
            ledger.event("something_happened", f"Writer {number} was here.", data={"index": index})

    def watch() -> None:
        seen: list[int] = []
        while True:
            finished = done.is_set()
            with database.read() as session:
                page = [event.seq for event in EventRepository(session).page(run_id, seen[-1] if seen else 0)]
            seen += page
            if finished and not page:
                break
        glimpses.append(seen)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    done.set()
    watcher.join()
    total = len(events(database))
    database.close()

    assert total == 83  # created, claimed, started, and 4 x 20
    assert glimpses == [list(range(1, 84))]


def test_metrics_handed_in_twice_count_once(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    points = [MetricPoint("CartPole", "reward", step, float(step), 1.0) for step in (1, 2, 3)]

    ledger.metrics.append(points)
    ledger.metrics.append(points)

    history = read_metric(database, "run", "CartPole", "reward")
    assert history.steps.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("outcome", "charged"), [("released", 0), ("trainer_lost", 1)])
def test_an_orderly_release_is_not_charged_to_the_restart_budget(
    database: Database, outcome: str, charged: int
) -> None:
    ledger = make_ledger(database, name="run")

    ledger.release(outcome, "The worker shuts down.")

    run = read_run(database, "run")
    assert (run.state, run.restarts_without_progress) == (RunState.RECOVERING, charged)


def test_the_restart_budget_counts_restarts_without_progress(database: Database) -> None:
    """Budget 1: a crash, a crash after progress (which refills the budget), a crash without."""
    make_run(database, name="run")
    states = []
    for attempt, saves in enumerate([False, True, False], start=1):
        ledger = AttemptLedger(database, make_claim(database), restart_budget=1)
        ledger.move(RunState.RUNNING)
        if saves:
            ledger.checkpoints.add(make_checkpoint(100 * attempt))
        ledger.release("trainer_error", "It crashed.")
        states.append(read_run(database, "run").state)

    assert states == [RunState.RECOVERING, RunState.RECOVERING, RunState.FAILED]
    assert read_run(database, "run").stop_reason == "trainer_error"


def test_unstorable_text_loses_a_character_not_the_event(database: Database) -> None:
    ledger = make_ledger(database, name="run")

    ledger.event("trainer_failed", "a\x00b\ud800", data={"k\x00": ["\x00", 1, None]})
    ledger.simulators.connected("inc", number=0, collector=0, peer="p" * 500, label="l\x00", client="c" * 500)
    ledger.simulators.left("inc", code="x" * 100, reason="\x00", steps=0)

    assert events(database)[-3].message == "a\ufffdb\ufffd"


def test_the_reaper_and_a_late_heartbeat_cannot_both_win(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.heartbeat(-1, 0)
    with database.read() as session:
        (lease,) = LeaseRepository(session).expired()

    ledger.heartbeat(10, 0)  # late, but before the reaper
    with database.write() as session:
        assert LeaseRepository(session).reap(lease, 3) is None

    assert ledger.heartbeat(10, 0).intent is Intent.NONE
