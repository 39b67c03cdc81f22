"""Workers: present, silent, forgotten."""

from collections import Counter

import pytest
from sqlalchemy import select, update

from server.kit.db.database import Database
from server.kit.errors import WorkerNotFound
from server.runs.models import Lease
from server.runs.scheduling.demand import Offer, Slot
from server.workers.models import Worker
from server.workers.repository import WorkerInfo, WorkerRegistry, WorkerRepository
from tests.factories import make_ledger


@pytest.fixture
def registry(database: Database) -> WorkerRegistry:
    registry = WorkerRegistry(database)
    registry.register(WorkerInfo("host/1/0", "host", 1, "0.1.0", labels=["gpu"], resources={"gpu": "cuda:0"}))
    return registry


def get(database: Database, worker_id: str = "host/1/0") -> Worker:
    with database.read() as session:
        return WorkerRepository(session).get(worker_id)


def test_a_worker_that_registers_again_is_the_same_one(database: Database, registry: WorkerRegistry) -> None:
    registry.stopped("host/1/0")
    registry.register(WorkerInfo("host/1/0", "host", 1, "0.2.0"))

    with database.read() as session:
        (worker,) = session.scalars(select(Worker))
    assert (worker.version, worker.stopped_at, worker.labels) == ("0.2.0", None, [])


def test_workers_that_were_heard_of_lately_and_have_not_stopped_are_alive(
    database: Database, registry: WorkerRegistry
) -> None:
    registry.register(WorkerInfo("host/2/0", "host", 2, "0.1.0"))
    registry.stopped("host/2/0")

    with database.read() as session:
        assert [worker.id for worker in WorkerRepository(session).alive(30)] == ["host/1/0"]
        assert WorkerRepository(session).alive(-1) == []


def test_a_beat_is_a_sign_of_life(database: Database, registry: WorkerRegistry) -> None:
    before = get(database).heartbeat_at

    registry.beat("host/1/0")

    assert get(database).heartbeat_at >= before


def test_a_slot_that_gives_no_sign_of_life_is_silent_since_its_last_one_unless_it_has_stopped(
    database: Database, registry: WorkerRegistry
) -> None:
    for number in (2, 3):
        registry.register(WorkerInfo(f"host/{number}/0", "host", number, "0.1.0"))
    registry.stopped("host/2/0")
    assert get(database).silent_since is None

    aged(database, 100, "host/1/0", "host/2/0")

    assert get(database).silent_since == get(database).heartbeat_at
    assert get(database, "host/2/0").silent_since is None, "it has stopped"
    assert get(database, "host/3/0").silent_since is None, "it lives"


def test_a_busy_slot_is_as_silent_as_the_lease_of_its_run(database: Database) -> None:
    WorkerRegistry(database).register(WorkerInfo("worker-1", "host", 1, "0.1.0"))
    ledger = make_ledger(database)

    aged(database, 100, "worker-1")
    ledger.heartbeat(10.0, 1)
    assert get(database, "worker-1").silent_since is None

    with database.write() as session:
        session.execute(update(Lease).values(renewed_at=Lease.renewed_at - 100))
    slot = get(database, "worker-1")
    assert slot.silent_since is not None
    assert slot.silent_since == slot.heartbeat_at


def test_slots_that_fell_silent_count_until_one_of_their_host_has_followed_or_it_is_long_ago(
    database: Database, registry: WorkerRegistry
) -> None:
    registry.register(WorkerInfo("other/2/0", "other", 2, "0.1.0"))

    def silent() -> int:
        with database.read() as session:
            return WorkerRepository(session).silent(3600)

    assert silent() == 0
    aged(database, 100, "host/1/0", "other/2/0")
    assert silent() == 2
    registry.register(WorkerInfo("host/3/0", "host", 3, "0.1.0"))
    assert silent() == 1, "that of the other host"
    aged(database, 3600, "other/2/0")
    assert silent() == 0


def aged(database: Database, seconds: float, *ids: str) -> None:
    """Move the signs of life of slots back."""
    with database.write() as session:
        columns = ("started_at", "stored_heartbeat_at")
        older = {name: getattr(Worker, name) - seconds for name in columns}
        session.execute(update(Worker).where(Worker.id.in_(ids)).values(**older))


def test_silent_workers_are_forgotten_after_a_while(database: Database, registry: WorkerRegistry) -> None:
    with database.write() as session:
        assert WorkerRepository(session).forget(60, 10) == 0
        assert WorkerRepository(session).forget(-1, 10) == 1

    with pytest.raises(WorkerNotFound):
        get(database)
    registry.beat("host/1/0")


def test_the_offers_of_a_fleet_are_those_of_its_live_slots_one_by_one(
    database: Database, registry: WorkerRegistry
) -> None:
    for number in range(3):
        registry.register(WorkerInfo(f"gpu/{number}/0", "gpu", number, "0", resources={"gpus": [f"GPU-{number}"]}))
        registry.register(WorkerInfo(f"cpu/{number}/0", "cpu", number, "0", labels=["b", "a"]))
    registry.stopped("gpu/0/0")
    with database.write() as session:
        session.get_one(Worker, "cpu/1/0").run_id = "run_1"

    with database.read() as session:
        workers = WorkerRepository(session)
        everyone, slots = workers.offers(30), workers.slots(30)

    labelled = Offer(0, frozenset("ab"))
    assert everyone == {Offer(1): 2, labelled: 3, Offer(0, frozenset({"gpu"})): 1}
    assert Counter({slot.offer: n for slot, n in slots.items() if slot.idle}) == everyone - Counter({labelled: 1})
    assert slots[Slot(labelled, idle=False)] == 1
