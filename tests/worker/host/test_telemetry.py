"""What a worker counts for the objectives: the time to the first action, and sessions that the server lost."""

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import update

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.lifecycle.attempts import AttemptLedger
from server.runs.models import Attempt, Run
from tests.factories import make_claim, make_run
from worker.host import telemetry as module
from worker.host.telemetry import AttemptMeasurement, WorkerTelemetry


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the present time, which passes when a test says so."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def attempt(database: Database, telemetry: WorkerTelemetry) -> AttemptLedger:
    claim = make_claim(database)
    return AttemptLedger(database, claim, 3, [AttemptMeasurement(telemetry, claim).observe])


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


def test_the_time_to_the_first_action_leaves_out_when_only_a_simulator_was_missing(
    database: Database, clock: list[float]
) -> None:
    telemetry = WorkerTelemetry()
    run = make_run(database).id
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run).values(queued_at=Run.queued_at - 40))
    ledger = attempt(database, telemetry)
    clock[0] += 3  # the trainer starts
    ledger.listening([])
    clock[0] += 500  # a person starts a game
    ledger.simulators.connected("a", number=0, collector=0)
    clock[0] += 2
    ledger.simulators.plays("a", ["CartPole"], 1)
    clock[0] += 100
    ledger.simulators.connected("b", number=1, collector=0)
    ledger.simulators.plays("b", ["CartPole"], 1)
    ledger.move(RunState.RUNNING)

    assert value(telemetry.registry, "ludus_worker_start_seconds_count", cause="queued") == 1
    assert value(telemetry.registry, "ludus_worker_start_seconds_sum", cause="queued") == pytest.approx(45, abs=5)

    ledger.release("trainer_lost", "the trainer died")
    with database.write() as session:
        session.execute(update(Attempt).where(Attempt.run_id == run).values(heartbeat_at=Attempt.heartbeat_at - 20))
    ledger = attempt(database, telemetry)
    ledger.listening([])
    ledger.simulators.connected("a", number=0, collector=0)
    ledger.simulators.plays("a", ["CartPole"], 1)
    assert value(telemetry.registry, "ludus_worker_start_seconds_count", cause="queued") == 1
    assert value(telemetry.registry, "ludus_worker_start_seconds_sum", cause="interrupted") == pytest.approx(20, abs=5)


def test_sessions_count_as_lost_only_if_the_server_failed(database: Database) -> None:
    telemetry = WorkerTelemetry()
    make_run(database)
    ledger = attempt(database, telemetry)
    codes = ("left", "disconnected", "step_timeout", "not_finite", "run_moved", "collector_died", "internal_error")
    for number, code in enumerate((*codes, "")):
        ledger.simulators.connected(code or "stays", number=number, collector=0)
    for code in codes:
        ledger.simulators.left(code, code=code, reason="", steps=0)
        ledger.simulators.left(code, code=code, reason="", steps=0)  # reported twice, counted once
    ledger.simulators.left("stranger", code="bad_hello", reason="", steps=0)
    assert value(telemetry.registry, "ludus_worker_sessions_total", outcome="ended") == 5
    assert value(telemetry.registry, "ludus_worker_sessions_total", outcome="lost") == 2

    ledger.release("trainer_lost", "the trainer died")
    assert value(telemetry.registry, "ludus_worker_sessions_total", outcome="lost") == 3
