"""Claims: the best run, for one worker only."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text, update

from ludus.config.run import RunConfig
from ludus.schemas.states import RunState
from server.config.resolution import resolve
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.runs.events.repository import EventRepository, Note, move
from server.runs.repository import RunRepository
from server.runs.scheduling.demand import Offer
from server.runs.scheduling.repository import WaitingRuns
from server.workers.models import Worker
from server.workers.repository import WorkerInfo, WorkerRegistry, WorkerRepository
from server.workers.service import WorkerService
from tests.conftest import POSTGRESQL_ONLY
from tests.factories import CONFIG, make_checkpoint, make_claim, make_run, read_run
from tests.server.runs.scheduling.test_repository import demanding
from tests.waiting import eventually

WAITING_CLAIMS = text(
    "SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database "
    "WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted"
)


def test_nothing_waits_nothing_is_claimed(database: Database) -> None:
    assert RunQueue(database).claim("worker-1", 10) is None
    assert not RunQueue(database).waiting(Offer())


def test_a_slot_that_starts_finds_a_run_only_if_it_serves_it(database: Database) -> None:
    run = make_run(database, config=demanding(1, "a100"))

    assert RunQueue(database).waiting(Offer(gpus=1)) is None
    assert RunQueue(database).waiting(Offer(1, frozenset({"a100"}))) == run.id


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_a_claim_that_finds_nothing_does_not_wait_for_other_claims(database: Database) -> None:
    make_run(database, config=demanding(0, "a100"))
    impatient = Database(database.url, busy_seconds=0.2)
    with database.write() as session:
        WaitingRuns(session).lock_queue()

        assert RunQueue(impatient).claim("worker-1", 10) is None
        with pytest.raises(DatabaseUnavailable):
            RunQueue(impatient).claim("worker-2", 10, offer=Offer(labels=frozenset({"a100"})))
    impatient.close()


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_a_claim_whose_turn_changes_while_it_waits_takes_the_run_whose_turn_it_is_then(database: Database) -> None:
    for name in ("ada-0", "ada-1", "bob-0"):
        make_run(database, name=name, owner=name.split("-")[0])

    with ThreadPoolExecutor(1) as pool:
        with database.write() as session:
            WaitingRuns(session).lock_queue()
            late = pool.submit(RunQueue(database).claim, "worker-2", 10)
            eventually(lambda: session.scalar(WAITING_CLAIMS) == 1, "the claim waits for the lock")
            runs = RunRepository(session)
            move(session, runs.get("ada-1"), RunState.STARTING, Note("run_claimed", "Another claim takes it."))
        second = late.result()
    third = RunQueue(database).claim("worker-3", 10)

    assert [claim and claim.name for claim in (second, third)] == ["bob-0", "ada-0"]


def test_claims_at_once_give_each_owner_as_many_runs(database_url: str) -> None:
    database = Database(database_url, synchronous="OFF", pool_size=12)
    for number in range(36):
        make_run(database, name=str(number), owner=("ada", "bob", "eve")[number // 12])

    with ThreadPoolExecutor(12) as pool:
        claims = list(pool.map(lambda number: RunQueue(database).claim(f"worker-{number}", 10), range(12)))
    with database.read() as session:
        runs = RunRepository(session)
        owners = Counter(runs.get(claim.run_id).owner for claim in claims if claim is not None)
    database.close()

    assert owners == {"ada": 4, "bob": 4, "eve": 4}


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_a_claim_that_waits_and_a_drain_of_the_slot_that_had_the_run_do_not_wait_for_each_other(
    database: Database,
) -> None:
    registry = WorkerRegistry(database)
    registry.register(WorkerInfo("worker-1", "host", 1, "0"))
    run = make_run(database)
    AttemptLedger(database, make_claim(database)).release("trainer_lost", "It crashed.")
    with database.write() as session:  # as where the slot died, and the row of the slot still names the run
        session.execute(update(Worker).where(Worker.id == "worker-1").values(run_id=run.id))

    with ThreadPoolExecutor(1) as pool:
        with database.write() as session:
            WaitingRuns(session).lock_queue()
            claim = pool.submit(RunQueue(database).claim, "worker-2", 10)
            eventually(lambda: session.scalar(WAITING_CLAIMS) == 1, "the claim waits for the lock")
            began = time.monotonic()
            assert [slot.id for slot in WorkerService(session).drain("worker-1")] == ["worker-1"]
            drained = time.monotonic() - began
        taken = claim.result()

    assert taken is not None
    assert taken.run_id == run.id
    assert drained < 1, "PostgreSQL ends a deadlock after a second"


def test_the_claim_carries_what_the_worker_needs(database: Database) -> None:
    run = make_run(database, name="first")

    claim = RunQueue(database).claim("worker-1", 10)

    assert claim is not None
    assert (claim.run_id, claim.attempt, claim.name, claim.seed, claim.worker_id) == (run.id, 1, "first", 7, "worker-1")
    assert RunConfig.model_validate(claim.config) == resolve(CONFIG)
    assert claim.resume is None
    now = read_run(database, run.id)
    assert (now.state, now.attempt) == (RunState.STARTING, 1)


def test_the_highest_priority_comes_first_then_the_longest_in_the_queue(database: Database) -> None:
    names = [("old", 0), ("new", 0), ("urgent", 5), ("idle", -1)]
    for name, priority in names:
        make_run(database, name=name, priority=priority)

    assert [make_claim(database).name for _ in names] == ["urgent", "old", "new", "idle"]


def test_a_hint_does_not_let_a_run_jump_the_queue(database: Database) -> None:
    older = make_run(database)
    newer = make_run(database)

    claim = RunQueue(database).claim("worker-1", 10, hint=newer.id)

    assert claim is not None
    assert claim.run_id == older.id


def test_a_run_that_was_claimed_is_not_claimed_again(database: Database) -> None:
    make_run(database)
    make_claim(database)

    assert RunQueue(database).claim("worker-2", 10) is None


def test_a_recovering_run_resumes_from_its_newest_checkpoint(database: Database) -> None:
    make_run(database)
    first = AttemptLedger(database, make_claim(database))
    first.move(RunState.RUNNING)
    first.checkpoints.add(make_checkpoint(1000))
    newest = first.checkpoints.add(make_checkpoint(2000))
    first.release("trainer_lost", "It crashed.")

    claim = make_claim(database, "worker-2")

    assert claim.attempt == 2
    assert claim.resume is not None
    assert (claim.resume.id, claim.resume.step, claim.resume.attempt) == (newest, 2000, 1)
    assert read_run(database, claim.run_id).step == 2000


@pytest.mark.long
def test_contested_claims_have_one_winner_each(database_url: str) -> None:
    """8 workers with connections of their own fight for 24 runs."""
    database = Database(database_url, synchronous="OFF")
    runs = {make_run(database).id for _ in range(24)}
    start = threading.Barrier(8)

    def work(number: int) -> list[str]:
        own = Database(database_url, synchronous="OFF")
        start.wait()
        claimed = []
        while (claim := RunQueue(own).claim(f"worker-{number}", 10)) is not None:
            claimed.append(claim.run_id)
        own.close()
        return claimed

    with ThreadPoolExecutor(8) as pool:
        claims = [run_id for claimed in pool.map(work, range(8)) for run_id in claimed]
    with database.read() as session:
        numbers = {run.attempt for run in RunRepository(session).list().items}
        seqs = {run_id: [event.seq for event in EventRepository(session).page(run_id)] for run_id in runs}
    database.close()

    assert sorted(claims) == sorted(runs)
    assert numbers == {1}
    assert all(numbers == [1, 2] for numbers in seqs.values())


def test_the_list_of_workers_shows_what_each_works_on(database: Database) -> None:
    registry = WorkerRegistry(database)
    registry.register(WorkerInfo("worker-1", "host", 1, "0.1.0"))
    run = make_run(database)
    ledger = AttemptLedger(database, make_claim(database))
    with database.read() as session:
        busy = WorkerRepository(session).get("worker-1")
    ledger.release("released", "The worker shuts down.")
    with database.read() as session:
        idle = WorkerRepository(session).get("worker-1")

    assert busy.run_id == run.id
    assert busy.last_claim_at is not None
    assert idle.run_id is None
