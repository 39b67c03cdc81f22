"""The fleet's numbers, from rows to Prometheus' text."""

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import delete, update

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.errors import BrokerUnavailable, DatabaseUnavailable
from server.kit.scheduling import SchedulingSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.service import DeletionService, RunService
from server.runs.models import Attempt, Lease
from server.webhooks.service import WebhookCreate, WebhookService, WebhookUpdate
from server.workers.fleet import FleetMetrics, FleetRepository
from server.workers.repository import WorkerInfo, WorkerRegistry
from server.workers.service import WorkerService
from tests.factories import CONFIG, RecordingWakeUp, make_checkpoint, make_claim, make_ledger, make_run


def sample(database: Database, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(FleetMetrics(database, RecordingWakeUp(), SchedulingSettings(), 10.0))
    return registry.get_sample_value(name, labels)


def test_runs_queue_attempts_steps_and_workers_are_counted(database: Database) -> None:
    WorkerRegistry(database).register(WorkerInfo("worker-1", "host", 1, "1"))
    WorkerRegistry(database).register(WorkerInfo("worker-2", "host", 2, "1"))
    lost = make_ledger(database)
    lost.heartbeat(10.0, 500)
    lost.release("lease_expired", "gone")
    live = make_ledger(database)
    live.heartbeat(10.0, 1500)
    live.simulators.connected("inc-1", number=0, collector=0, behaviors=[], peer="", client="")
    make_run(database)

    def value(name: str, **labels: str) -> float | None:
        return sample(database, name, **labels)

    assert value("ludus_runs", state="RUNNING") == 1
    assert value("ludus_runs", state="SUCCEEDED") == 0
    assert value("ludus_queue_runs", demand="0") == 2  # the one that lost its worker, and the new one
    assert 0 <= (value("ludus_queue_oldest_seconds") or -1) < 60
    assert value("ludus_attempts_live") == 1
    assert 0 <= (value("ludus_heartbeat_oldest_seconds") or 0) < 60
    assert value("ludus_attempts_ended_total", outcome="lease_expired") == 1
    assert value("ludus_agent_steps_total") == 2000
    assert value("ludus_workers", state="busy") == 1
    assert value("ludus_workers", state="idle") == 1
    assert value("ludus_simulators_connected") == 1


def test_counters_do_not_fall_when_runs_are_deleted(database: Database) -> None:
    def ended(outcomes: list[str], steps: int) -> str:
        run = make_run(database)
        for outcome in outcomes:
            ledger = AttemptLedger(database, make_claim(database))
            ledger.heartbeat(10.0, steps)
            ledger.release(outcome, "gone")
        with database.write() as session:
            RunService(session, RecordingWakeUp()).cancel(run.id)
        return run.id

    first, second = ended(["lease_expired", "trainer_lost"], 500), ended(["lease_expired"], 70)

    def counted() -> list[float | None]:
        outcomes = [
            sample(database, "ludus_attempts_ended_total", outcome=one) for one in ("lease_expired", "trainer_lost")
        ]
        return [*outcomes, sample(database, "ludus_agent_steps_total")]

    before = counted()
    with database.write() as session:
        DeletionService(session).delete(first)
    after_one = counted()
    with database.write() as session:
        DeletionService(session).delete(second)

    assert before == after_one == counted() == [2, 1, 1070]


def test_steps_do_not_fall_when_an_attempt_resumes_and_has_not_reported_yet(database: Database) -> None:
    """A worker of an earlier release enters step 0 for it."""
    ledger = make_ledger(database)
    ledger.heartbeat(10.0, 500)
    ledger.checkpoints.add(make_checkpoint(500))
    ledger.release("trainer_lost", "gone")
    make_claim(database)
    with database.write() as session:
        session.execute(delete(Lease))
        session.execute(update(Attempt).where(Attempt.number == 2).values(step=0))

    assert sample(database, "ludus_agent_steps_total") == 500


def test_messages_that_wait_and_disabled_webhooks_are_counted(database: Database) -> None:
    with database.write() as session:
        webhooks = WebhookService(session, private=True)
        waiting = webhooks.create(WebhookCreate(url="https://example.com"))
        webhooks.prepare_test(waiting.id)
        webhooks.change(webhooks.create(WebhookCreate(url="https://example.com")).id, WebhookUpdate(enabled=False))

    assert sample(database, "ludus_webhook_deliveries_pending") == 1
    assert sample(database, "ludus_webhook_oldest_due_seconds") == 0  # it is not due yet
    assert sample(database, "ludus_webhooks_disabled", reason="user") == 1


def test_an_empty_installation_has_zeros_and_no_gaps(database: Database) -> None:
    with database.read() as session:
        fleet = FleetRepository(session).read(SchedulingSettings(), 10.0)

    assert fleet.runs == dict.fromkeys(RunState, 0)
    assert (fleet.oldest_queued_seconds, fleet.oldest_heartbeat_seconds, fleet.agent_steps) == (0, 0, 0)


def test_the_queue_is_counted_by_demand_with_few_label_values_and_by_pool(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.workers.fleet.DEMANDS", 2)
    for gpus in (0, 1, 1, 1, 2, 2, 4):
        make_run(database, config={**CONFIG, "resources": {"gpu": gpus}})
    registry = CollectorRegistry()
    policy = SchedulingSettings(pools={"small": {"gpus": 1}})  # type: ignore[dict-item]  # pydantic reads mappings
    registry.register(FleetMetrics(database, RecordingWakeUp(), policy, 10.0))

    def samples(name: str) -> dict[str, float]:
        (metric,) = [metric for metric in registry.collect() if metric.name == name]
        return {next(iter(each.labels.values())): each.value for each in metric.samples}

    assert samples("ludus_queue_runs") == {"1": 3, "2": 2, "other": 2}
    assert samples("ludus_queue_missing_slots") == {"small": 4, "none": 3}


def test_a_broker_that_does_not_answer_is_a_metric(database: Database) -> None:
    class Away(RecordingWakeUp):
        def ping(self) -> None:
            raise BrokerUnavailable("connection refused")

    for wake_up, up in ((RecordingWakeUp(), 1), (Away(), 0)):
        registry = CollectorRegistry()
        registry.register(FleetMetrics(database, wake_up, SchedulingSettings(), 10.0))
        assert registry.get_sample_value("ludus_broker_up") == up
        assert registry.get_sample_value("ludus_database_up") == 1


def test_idle_slots_that_are_cordoned_are_told_apart(database: Database) -> None:
    for worker_id in ("box/1/0", "box/2/0", "shelf/1/0"):
        WorkerRegistry(database).register(WorkerInfo(worker_id, worker_id.partition("/")[0], 1, "1"))
    with database.write() as session:
        WorkerService(session).cordon("box")

    assert sample(database, "ludus_workers", state="idle") == 1
    assert sample(database, "ludus_workers", state="cordoned") == 2


def test_the_answer_is_read_once_in_a_while_only(database: Database) -> None:
    registry = CollectorRegistry()
    registry.register(FleetMetrics(database, RecordingWakeUp(), SchedulingSettings(), 10.0))
    before = registry.get_sample_value("ludus_queue_runs", {"demand": "0"})
    make_run(database)

    assert registry.get_sample_value("ludus_queue_runs", {"demand": "0"}) == before == 0


def test_without_a_database_the_rest_is_still_told(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    registry.register(FleetMetrics(database, RecordingWakeUp(), SchedulingSettings(), 10.0))

    def unreachable() -> None:
        raise DatabaseUnavailable("down")

    monkeypatch.setattr(database, "read", unreachable)

    assert registry.get_sample_value("ludus_database_up") == 0
    assert registry.get_sample_value("ludus_queue_runs", {"demand": "0"}) is None
    assert sum(sample.value for metric in registry.collect() for sample in metric.samples if "limit" in sample.name) > 0
