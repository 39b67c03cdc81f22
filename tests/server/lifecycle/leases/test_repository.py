"""What becomes of a run whose worker is gone."""

import pytest

from ludus.schemas.states import RunState, StopReason
from server.kit.db.database import Database
from server.kit.errors import LeaseLost
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.lifecycle.leases.repository import ExpiredLease, LeaseRepository
from server.lifecycle.service import RunService
from server.runs.events.repository import Note, lock_run, move
from server.runs.repository import RunRepository
from tests.factories import RecordingWakeUp, make_checkpoint, make_claim, make_ledger, make_run, read_run


def expired(database: Database) -> list[ExpiredLease]:
    with database.read() as session:
        return LeaseRepository(session).expired()


def reap(database: Database, lease: ExpiredLease, budget: int = 3) -> RunState | None:
    with database.write() as session:
        return LeaseRepository(session).reap(lease, budget)


def test_a_lease_that_is_renewed_never_expires(database: Database) -> None:
    make_ledger(database).heartbeat(10, 0)

    assert expired(database) == []


def test_a_run_with_an_expired_lease_recovers_and_its_old_worker_is_shut_out(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.heartbeat(-1, 0)

    (lease,) = expired(database)

    assert reap(database, lease) is RunState.RECOVERING
    with pytest.raises(LeaseLost):
        ledger.heartbeat(10, 0)
    with database.read() as session:
        (attempt,) = RunRepository(session).attempts(read_run(database, "run").id)
    assert attempt.outcome == "lease_expired"
    assert expired(database) == []


def test_two_controllers_take_a_run_away_once(database: Database) -> None:
    make_ledger(database, name="run").heartbeat(-1, 0)
    (lease,) = expired(database)

    assert reap(database, lease) is RunState.RECOVERING
    assert reap(database, lease) is None
    assert read_run(database, "run").restarts_without_progress == 1


def test_the_reaper_spares_a_newer_attempt(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ledger.heartbeat(-1, 0)
    (old,) = expired(database)
    ledger.release("trainer_lost", "It crashed.")
    newer = AttemptLedger(database, make_claim(database))

    assert reap(database, old) is None
    newer.heartbeat(10, 0)


def test_a_run_fails_when_its_restart_budget_is_spent(database: Database) -> None:
    make_run(database, name="run")
    states = []
    for _ in range(3):
        AttemptLedger(database, make_claim(database)).heartbeat(-1, 0)
        (lease,) = expired(database)
        states.append(reap(database, lease, budget=2))

    run = read_run(database, "run")
    assert states == [RunState.RECOVERING, RunState.RECOVERING, RunState.FAILED]
    assert run.stop_reason == StopReason.WORKER_LOST
    assert run.stop_detail is not None
    assert "budget of 2 restarts" in run.stop_detail
    assert RunQueue(database).claim("worker", 10) is None


def lose(database: Database, budget: int) -> RunState | None:
    """Let a worker take the run and fall silent."""
    AttemptLedger(database, make_claim(database)).heartbeat(-1, 0)
    (lease,) = expired(database)
    return reap(database, lease, budget)


def pause_and_lose(database: Database) -> None:
    """Let a run without a budget lose its worker while it pauses: the wish comes true, the restart is charged."""
    AttemptLedger(database, make_claim(database)).heartbeat(-1, 0)
    with database.write() as session:
        RunService(session, RecordingWakeUp()).pause("run")
    (lease,) = expired(database)
    assert reap(database, lease, budget=0) is RunState.PAUSED


def test_a_run_whose_budget_is_overdrawn_does_not_fail_of_an_orderly_release(database: Database) -> None:
    make_run(database, name="run")
    pause_and_lose(database)
    with database.write() as session:  # a simulator comes, say: nobody has renewed the budget
        move(session, lock_run(session, read_run(database, "run").id), RunState.QUEUED, Note("run_queued", "Again."))
    ledger = AttemptLedger(database, make_claim(database), restart_budget=0)

    ledger.release("released", "The worker shuts down.")

    assert read_run(database, "run").state == RunState.RECOVERING


def test_a_run_that_a_user_resumes_has_its_whole_budget_again(database: Database) -> None:
    make_run(database, name="run")
    assert lose(database, budget=1) is RunState.RECOVERING
    pause_and_lose(database)
    with database.write() as session:
        RunService(session, RecordingWakeUp()).resume("run")

    assert lose(database, budget=1) is RunState.RECOVERING
    assert lose(database, budget=1) is RunState.FAILED


@pytest.mark.parametrize(
    ("wish", "state"), [("stop", RunState.SUCCEEDED), ("cancel", RunState.CANCELLED)], ids=["stop", "cancel"]
)
def test_what_a_user_wanted_comes_true_although_the_worker_died(database: Database, wish: str, state: RunState) -> None:
    ledger = make_ledger(database, name="run")
    ledger.checkpoints.add(make_checkpoint(700))
    with database.write() as session:
        getattr(RunService(session, RecordingWakeUp()), wish)("run")
    ledger.heartbeat(-1, 0)
    (lease,) = expired(database)

    assert reap(database, lease, budget=0) is state

    run = read_run(database, "run")
    assert run.stop_reason == StopReason.USER
    if wish == "stop":
        assert run.stop_detail is not None
        assert "step 700" in run.stop_detail
