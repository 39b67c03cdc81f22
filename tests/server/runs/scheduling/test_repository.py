"""Claims where runs, owners and slots differ: the best run that a slot may run, found in an index."""

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text

from ludus.schemas.states import RunState
from server.kit.db.database import Database, Session
from server.kit.scheduling import SchedulingSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim, RunQueue
from server.runs.events.repository import EventRepository
from server.runs.scheduling.demand import Offer, Slot
from server.runs.scheduling.order import Account, Obstacle
from server.runs.scheduling.repository import WaitingRuns
from server.workers.models import Worker
from server.workers.repository import WorkerInfo, WorkerRegistry, WorkerRepository
from server.workers.service import WorkerService
from tests.clock import Clock
from tests.factories import CONFIG, make_run, read_run


def demanding(gpu: int = 0, *labels: str) -> dict[str, Any]:
    return {**CONFIG, "resources": {"gpu": gpu, "labels": list(labels)}}


def claims(database: Database, offer: Offer | None = None, **policy: Any) -> list[str]:
    """Claim until there is nothing left; return the names in order."""
    queue = RunQueue(database, SchedulingSettings(**policy))
    names = []
    while (claim := queue.claim("worker", 10, offer=offer)) is not None:
        names.append(claim.name)
    return names


def test_owners_take_turns_however_many_runs_one_of_them_has(database: Database) -> None:
    for number in range(3):
        make_run(database, name=f"ada-{number}", owner="ada")
    for number in range(2):
        make_run(database, name=f"bob-{number}", owner="bob")

    assert claims(database) == ["ada-0", "bob-0", "ada-1", "bob-1", "ada-2"]


def test_priority_goes_before_fairness(database: Database) -> None:
    for name, owner, priority in [("a", "ada", 1), ("b", "bob", 0), ("c", "ada", 1)]:
        make_run(database, name=name, owner=owner, priority=priority)

    assert claims(database) == ["a", "c", "b"]


@pytest.mark.parametrize("policy", [{"runs_per_project": 1}, {"runs_per_token": 1}, {"token_quotas": {"tok_1": 1}}])
def test_a_quota_holds_under_any_owner_and_priority_until_one_of_its_runs_ends(
    database: Database, policy: dict[str, Any]
) -> None:
    for number in range(3):
        make_run(database, name=f"run-{number}", owner=f"owner-{number}", priority=-number, token_id="tok_1")
    queue = RunQueue(database, SchedulingSettings(**policy))
    first = queue.claim("worker", 10)
    assert first is not None

    assert queue.claim("worker", 10) is None
    AttemptLedger(database, first).move(RunState.CANCELLED)
    second = queue.claim("worker", 10)

    assert second is not None
    assert second.name == "run-1"


def test_a_tokens_quota_holds_over_all_projects_and_a_projects_over_all_tokens(database: Database) -> None:
    for project, token in [("a", "tok_1"), ("b", "tok_1"), ("a", "tok_2"), ("a", "tok_3")]:
        make_run(database.within(project), name=f"{project} {token}", token_id=token)

    assert claims(database, runs_per_token=1, runs_per_project=2) == ["a tok_1", "a tok_2"]


def test_projects_take_turns_whatever_priorities_owners_and_tokens_one_of_them_uses(database: Database) -> None:
    for number in range(3):
        greedy = {"owner": f"owner-{number}", "token_id": f"tok_{number}", "priority": 1000}
        make_run(database.within("greedy"), name=f"greedy-{number}", **greedy)
    for number in range(2):
        make_run(database.within("modest"), name=f"modest-{number}")

    assert claims(database) == ["greedy-0", "modest-0", "greedy-1", "modest-1", "greedy-2"]


def test_tokens_take_turns_however_many_owners_one_of_them_names(database: Database) -> None:
    for number in range(3):
        make_run(database, name=f"many-{number}", owner=f"owner-{number}", token_id="tok_1")
    for number in range(2):
        make_run(database, name=f"one-{number}", owner="me", token_id="tok_2")

    assert claims(database) == ["many-0", "one-0", "many-1", "one-1", "many-2"]


@pytest.mark.parametrize("policy", [{"runs_per_project": 3}, {"runs_per_token": 3}])
def test_no_claims_at_the_same_moment_exceed_a_quota(database: Database, policy: dict[str, int]) -> None:
    for number in range(12):
        make_run(database, owner=f"owner-{number}", token_id="tok_1")
    queue = RunQueue(database, SchedulingSettings(**policy))
    together = threading.Barrier(8)

    def claim(worker: int) -> bool:
        together.wait(10)
        return queue.claim(f"worker-{worker}", 60) is not None

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(claim, range(8)))

    assert got.count(True) == 3


def test_a_slot_finds_what_it_serves_behind_what_it_does_not(database: Database) -> None:
    for name, gpu, labels in [("big", 4, []), ("labelled", 1, ["a100"]), ("small", 1, []), ("any", 0, [])]:
        make_run(database, name=name, config=demanding(gpu, *labels))

    assert claims(database) == ["any"]
    assert claims(database, Offer(1)) == ["small"]
    assert claims(database, Offer(2, frozenset({"a100", "linux"}))) == ["labelled"]
    assert claims(database, Offer(8)) == ["big"]


def test_a_run_that_waits_in_vain_says_why_once_and_no_longer_when_it_is_claimed(database: Database) -> None:
    run = make_run(database, name="run", config=demanding(1), token_id="tok_1")
    account = Account("default", "tok_1", "default")
    why, still = (Obstacle("no_worker_serves", sentence) for sentence in ("No worker can.", "Still none."))

    with database.read() as session:
        waiting = WaitingRuns(session)
        assert waiting.uninformed(account, "1;", why, since_seconds=60) == [], "workers may be just starting"
        assert waiting.uninformed(account, "1;", why, since_seconds=-1) == [run.id]
        assert waiting.informed() == []
    with database.write() as session:
        WaitingRuns(session).inform(run.id, why)
        WaitingRuns(session).inform(run.id, still)
    assert read_run(database, "run").waits_for == "Still none."
    with database.read() as session:
        assert [event.type for event in EventRepository(session).page(run.id)] == ["run_created", "no_worker_serves"]
        assert WaitingRuns(session).informed() == [(run.id, account, "1;")]
        assert WaitingRuns(session).uninformed(account, "1;", still, since_seconds=-1) == []

    assert claims(database, Offer(1)) == ["run"]
    assert read_run(database, "run").waits_for is None


@pytest.fixture
def crowd(database: Database) -> Database:
    """2,000 runs that wait, of 2 owners, with 2 demands: 4 groups."""
    columns = [column.name for column in type(make_run(database, owner="owner0")).__table__.columns]
    varied = {
        "id": "'run_' || i",
        "owner": "'owner' || (i % 2)",
        "demand": "CASE WHEN i % 4 < 2 THEN '' ELSE '1;' END",
    }
    chosen = ", ".join(varied.get(column, column) for column in columns)
    numbers = "WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < 2000)"
    with database.write() as session:
        session.execute(text(f"INSERT INTO runs ({', '.join(columns)}) {numbers} SELECT {chosen} FROM runs, numbers"))
    return database


def test_a_claim_reads_one_run_for_each_group_however_many_wait(crowd: Database) -> None:
    with crowd.read() as session:
        heads = WaitingRuns(session).heads()
        plan = explain(crowd)

    assert sorted((one.account.owner, one.demand) for one in heads) == [
        ("owner0", ""),
        ("owner0", "1;"),
        ("owner1", ""),
        ("owner1", "1;"),
    ]
    assert plan.count("ix_runs_share") >= 4
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


def test_a_run_whose_game_waits_is_claimed_first_and_found_in_an_index_of_its_own(crowd: Database) -> None:
    with crowd.write() as session:
        session.execute(text("UPDATE runs SET awaited_until = 1 WHERE id = 'run_1001'"))
        session.execute(text("UPDATE runs SET awaited_until = 1e12 WHERE id = 'run_1002'"))

    plan = explain(crowd, lambda session: WaitingRuns(session).ready())
    with crowd.read() as session:
        assert [run.run_id for run in WaitingRuns(session).ready()] == ["run_1002"], "the other one's game went away"
    claim = RunQueue(crowd).claim("worker", 10, offer=Offer(1))

    assert "ix_runs_awaited" in plan
    assert not re.search(r"(SCAN|Seq Scan on) runs", plan)
    assert claim is not None
    assert claim.run_id == "run_1002"


def test_a_claim_that_finds_nothing_looks_at_kinds_of_slots_however_many_slots_there_are(crowd: Database) -> None:
    for name, gpus in (("idle", ()), ("graphics", ("GPU-a",)), ("cordoned", ("GPU-b", "GPU-c"))):
        register(crowd, name, *gpus)
    columns = ", ".join(column.name for column in Worker.__table__.columns if column.name != "id")
    numbers = "WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < 500)"
    with crowd.write() as session:
        rows = f"{numbers} SELECT id || '-' || i, {columns} FROM workers, numbers"
        session.execute(text(f"INSERT INTO workers (id, {columns}) {rows}"))
        session.execute(text("UPDATE workers SET host = 'other' WHERE id LIKE 'cordoned%'"))
        session.execute(text("UPDATE workers SET heartbeat_at = 0 WHERE id LIKE 'graphics%' AND id <> 'graphics-7'"))
    with crowd.write() as session:
        WorkerService(session).cordon("other")

    with crowd.read() as session:
        others = WorkerRepository(session).others("graphics", 60)
        nobody = WorkerRepository(session).others("graphics-7", 60)
    plan = explain(crowd, lambda session: WorkerRepository(session).others("graphics", 60))

    assert set(others) == {Slot(Offer(), idle=True), Slot(Offer(1), idle=True)}
    assert set(nobody) == {Slot(Offer(), idle=True)}
    assert plan.count("ix_workers_kind") >= 5
    assert not re.search(r"(SCAN|Seq Scan on) workers", plan)
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


def explain(
    database: Database, look: Callable[[Session], object] = lambda session: WaitingRuns(session).heads()
) -> str:
    """Return how the database looks for the heads, or for something else."""
    statements: list[str] = []
    with database.engine.connect() as connection:

        class Recorder:
            def execute(self, statement: Any, parameters: dict[str, Any] | None = None) -> list[Any]:
                bound = statement.params(parameters or {})
                statements.append(str(bound.compile(connection, compile_kwargs={"literal_binds": True})))
                return []

        look(Recorder())  # type: ignore[arg-type]
        connection.execute(text("ANALYZE"))
        command = "EXPLAIN QUERY PLAN" if database.engine.dialect.name == "sqlite" else "EXPLAIN"
        return "\n".join(str(row) for row in connection.execute(text(f"{command} {statements[0]}")))


def register(database: Database, worker_id: str, *gpus: str) -> None:
    WorkerRegistry(database).register(WorkerInfo(worker_id, "host", 1, "0", resources={"gpus": list(gpus)}))


def test_a_slot_with_a_gpu_leaves_a_run_without_to_an_idle_slot_and_says_which_run_that_one_is_woken_for(
    database: Database,
) -> None:
    register(database, "plain")
    register(database, "graphics", "GPU-a")
    plain, graphics = RunQueue(database), RunQueue(database)
    run = make_run(database)

    assert graphics.claim("graphics", 10, offer=Offer(1)) is None
    assert graphics.for_another == (run.id, Offer().kind)
    claim = plain.claim("plain", 10, offer=Offer())
    assert claim is not None
    assert plain.for_another is None


def test_the_last_idle_gpu_is_kept_for_a_while_and_a_run_that_demands_one_takes_it_at_once(database: Database) -> None:
    register(database, "plain")
    register(database, "graphics", "GPU-a")
    clock = Clock()
    graphics = RunQueue(database, SchedulingSettings(best_fit_seconds=600), clock)
    make_run(database, name="busy")
    assert RunQueue(database).claim("plain", 60) is not None
    make_run(database, name="waits")

    assert graphics.claim("graphics", 10, offer=Offer(1)) is None
    assert graphics.for_another is None  # no idle slot serves it
    make_run(database, name="graphic", config=demanding(1))
    first = graphics.claim("graphics", 10, offer=Offer(1))
    clock.now = 600
    second = graphics.claim("graphics", 10, offer=Offer(1))

    assert [claim and claim.name for claim in (first, second)] == ["graphic", "waits"]


@pytest.mark.parametrize("graphics", [2, 3])
def test_of_slots_with_gpus_that_claim_at_the_same_moment_one_stays_idle(database: Database, graphics: int) -> None:
    register(database, "plain")
    for number in range(graphics):
        register(database, f"graphics-{number}", f"GPU-{number}")
    make_run(database)
    assert RunQueue(database).claim("plain", 600) is not None
    for _ in range(2):
        make_run(database)
    between: list[Claim | None] = []

    def clock() -> float:
        """Let the other slot claim when the first one has read the others, and has no lock yet."""
        if not between:
            between.append(None)  # it is once
            between[0] = RunQueue(database).claim("graphics-1", 600, offer=Offer(1))
        return 0.0

    claim = RunQueue(database, monotonic=clock).claim("graphics-0", 600, offer=Offer(1))

    assert between[0] is not None
    assert (claim is not None) is (graphics == 3), "the third one stays idle"


def test_a_wake_up_that_reaches_a_slot_which_cannot_take_the_run_is_for_another(database: Database) -> None:
    register(database, "plain")
    register(database, "graphics", "GPU-a")
    run = make_run(database, config=demanding(1))
    plain = RunQueue(database)

    assert plain.claim("plain", 10) is None
    assert plain.for_another == (run.id, Offer(1).kind)
    with database.write() as session:
        WorkerService(session).cordon("graphics")
    assert plain.claim("plain", 10) is None
    assert plain.for_another is None
    assert plain.claim("graphics", 10, offer=Offer(1)) is None
