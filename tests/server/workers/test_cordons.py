"""Cordons: slots and hosts that take no run, drains that move runs, and what lifts them."""

import pytest

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.errors import WorkerNotFound
from server.kit.states import Intent
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.lifecycle.leases.repository import LeaseRepository
from server.lifecycle.service import RunService
from server.runs.events.repository import EventRepository
from server.workers.repository import WorkerInfo, WorkerRegistry, WorkerRepository
from server.workers.service import HostCordoned, WorkerService
from tests.factories import RecordingWakeUp, make_run, read_run

ONE, TWO, OTHER = "box/1/0", "box/2/0", "shelf/1/0"


@pytest.fixture(autouse=True)
def registry(database: Database) -> WorkerRegistry:
    registry = WorkerRegistry(database)
    for worker_id in (ONE, TWO, OTHER):
        registry.register(WorkerInfo(worker_id, worker_id.partition("/")[0], 1, "0.1.0"))
    return registry


def do(database: Database, verb: str, name: str) -> list[tuple[str, bool, bool]]:
    """Run a command; return id, cordoned and draining of each slot that it answers."""
    with database.write() as session:
        slots = getattr(WorkerService(session), verb)(name)
        return [(slot.id, slot.cordoned, slot.draining) for slot in slots]


def takes(database: Database, worker_id: str) -> bool:
    return RunQueue(database).claim(worker_id, 60) is not None


def test_a_cordoned_slot_takes_no_run_until_the_cordon_is_lifted(database: Database) -> None:
    make_run(database)

    assert do(database, "cordon", ONE) == [(ONE, True, False)]
    assert not takes(database, ONE)
    assert do(database, "uncordon", ONE) == [(ONE, False, False)]
    assert takes(database, ONE)


def test_the_cordon_of_a_host_holds_for_its_slots_also_those_that_start_later(
    database: Database, registry: WorkerRegistry
) -> None:
    make_run(database)
    assert do(database, "cordon", "box") == [(ONE, True, False), (TWO, True, False)]

    registry.stopped(ONE)
    registry.register(WorkerInfo("box/9/1", "box", 9, "0.1.0"))

    assert not any(takes(database, worker_id) for worker_id in (ONE, TWO, "box/9/1"))
    assert takes(database, OTHER)
    with database.read() as session:
        slots = WorkerRepository(session).slots(60)
        assert sorted((slot.offer.cordoned, slot.idle) for slot in slots.elements()) == [
            (False, False),
            (True, True),
            (True, True),
        ]


def test_a_slot_of_a_cordoned_host_is_not_let_in_by_itself_and_the_host_with_all_of_its_slots(
    database: Database,
) -> None:
    do(database, "cordon", "box")
    do(database, "cordon", ONE)

    with pytest.raises(HostCordoned, match="lift the cordon of box"):
        do(database, "uncordon", ONE)
    assert do(database, "uncordon", "box") == [(ONE, False, False), (TWO, False, False)]
    assert do(database, "uncordon", "box") == [(ONE, False, False), (TWO, False, False)]


def test_a_drain_asks_the_run_of_each_slot_to_hand_itself_back_and_another_slot_takes_it(database: Database) -> None:
    run = make_run(database)
    claim = RunQueue(database).claim(ONE, 60)
    assert claim is not None
    ledger = AttemptLedger(database, claim)

    assert do(database, "drain", "box") == [(ONE, True, True), (TWO, True, True)]
    assert do(database, "cordon", ONE) == [(ONE, True, True)]

    assert ledger.heartbeat(60, 0).intent is Intent.RELEASE
    ledger.release("released", "its worker is drained")
    handed_back = read_run(database, run.id)
    assert (handed_back.state, handed_back.intent, handed_back.restarts_without_progress) == ("RECOVERING", None, 0)
    assert not takes(database, TWO)
    assert takes(database, OTHER)
    with database.read() as session:
        types = [event.type for event in EventRepository(session).page(run.id)]
    assert types.count("worker_drained") == 1
    assert types[-2:] == ["run_recovering", "run_claimed"]


def test_a_drain_does_not_stand_against_what_a_user_asked_for(database: Database) -> None:
    run = make_run(database)
    claim = RunQueue(database).claim(ONE, 60)
    assert claim is not None
    with database.write() as session:
        RunService(session, RecordingWakeUp()).stop(run.id)

    do(database, "drain", ONE)
    assert AttemptLedger(database, claim).heartbeat(60, 0).intent is Intent.STOP

    later = make_run(database, name="later")
    claim = RunQueue(database).claim(OTHER, 60)
    assert claim is not None
    do(database, "drain", OTHER)
    with database.write() as session:
        RunService(session, RecordingWakeUp()).pause(later.id)
    ledger = AttemptLedger(database, claim)
    ledger.release("released", "its worker is drained")
    assert read_run(database, later.id).state == RunState.PAUSED


def test_a_drained_worker_that_dies_leaves_no_request_to_the_next_one(database: Database) -> None:
    run = make_run(database)
    claim = RunQueue(database).claim(ONE, -1)
    assert claim is not None
    do(database, "drain", ONE)

    with database.write() as session:
        leases = LeaseRepository(session)
        (expired,) = leases.expired()
        assert leases.reap(expired, 3) is RunState.RECOVERING

    claim = RunQueue(database).claim(OTHER, 60)
    assert claim is not None
    assert claim.run_id == run.id
    assert AttemptLedger(database, claim).heartbeat(60, 0).intent is Intent.NONE


def test_a_name_that_no_slot_and_no_host_has_is_refused(database: Database) -> None:
    for verb in ("cordon", "drain", "uncordon"):
        with pytest.raises(WorkerNotFound, match="no host of this name"):
            do(database, verb, "bxo")


def test_the_cordon_of_a_forgotten_slot_goes_with_it_and_that_of_its_host_stays(database: Database) -> None:
    do(database, "cordon", ONE)
    do(database, "cordon", "shelf")

    with database.write() as session:
        assert WorkerRepository(session).forget(-1, 10) == 3

    with pytest.raises(WorkerNotFound):
        do(database, "uncordon", ONE)
    assert do(database, "uncordon", "shelf") == []
