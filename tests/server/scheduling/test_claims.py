"""Claims where runs, owners and slots differ: the best run that a slot may run, found in an index."""

from typing import Any

import pytest
from sqlalchemy import text

from server.attempts.repository import AttemptLedger, RunQueue
from server.db.database import Database
from server.events.repository import EventRepository
from server.runs.states import RunState
from server.scheduling.demand import Offer
from server.scheduling.repository import WaitingRuns
from server.scheduling.turn import Obstacle
from server.settings import SchedulingSettings
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


def test_a_quota_holds_until_one_of_the_owners_runs_ends(database: Database) -> None:
    for number in range(3):
        make_run(database, name=f"ada-{number}", owner="ada")
    queue = RunQueue(database, SchedulingSettings(runs_per_owner=1))
    first = queue.claim("worker", 10)
    assert first is not None

    assert queue.claim("worker", 10) is None
    AttemptLedger(database, first).move(RunState.CANCELLED)
    second = queue.claim("worker", 10)

    assert second is not None
    assert second.name == "ada-1"


def test_a_slot_finds_what_it_serves_behind_what_it_does_not(database: Database) -> None:
    for name, gpu, labels in [("big", 4, []), ("labelled", 1, ["a100"]), ("small", 1, []), ("any", 0, [])]:
        make_run(database, name=name, config=demanding(gpu, *labels))

    assert claims(database) == ["any"]
    assert claims(database, Offer(1)) == ["small"]
    assert claims(database, Offer(2, frozenset({"a100", "linux"}))) == ["labelled"]
    assert claims(database, Offer(8)) == ["big"]


def test_a_run_that_waits_in_vain_says_why_once_and_no_longer_when_it_is_claimed(database: Database) -> None:
    run = make_run(database, name="run", config=demanding(1))
    why, still = (Obstacle("no_worker_serves", sentence) for sentence in ("No worker can.", "Still none."))

    with database.read() as session:
        waiting = WaitingRuns(session)
        assert waiting.uninformed(run.owner, "1;", why, since_seconds=60) == [], "workers may be just starting"
        assert waiting.uninformed(run.owner, "1;", why, since_seconds=-1) == [run.id]
        assert waiting.informed() == []
    with database.write() as session:
        WaitingRuns(session).inform(run.id, why)
        WaitingRuns(session).inform(run.id, still)
    assert read_run(database, "run").waits_for == "Still none."
    with database.read() as session:
        assert [event.type for event in EventRepository(session).page(run.id)] == ["run_created", "no_worker_serves"]
        assert WaitingRuns(session).informed() == [(run.id, run.owner, "1;")]
        assert WaitingRuns(session).uninformed(run.owner, "1;", still, since_seconds=-1) == []

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

    assert sorted((one.owner, one.demand) for one in heads) == [
        ("owner0", ""),
        ("owner0", "1;"),
        ("owner1", ""),
        ("owner1", "1;"),
    ]
    assert plan.count("ix_runs_turn") >= 4
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


def explain(database: Database) -> str:
    """Return how the database looks for the heads."""
    statements: list[str] = []
    with database.engine.connect() as connection:

        class Recorder:
            def execute(self, statement: Any) -> list[Any]:
                statements.append(str(statement.compile(connection, compile_kwargs={"literal_binds": True})))
                return []

        WaitingRuns(Recorder()).heads()  # type: ignore[arg-type]
        connection.execute(text("ANALYZE"))
        command = "EXPLAIN QUERY PLAN" if database.engine.dialect.name == "sqlite" else "EXPLAIN"
        return "\n".join(str(row) for row in connection.execute(text(f"{command} {statements[0]}")))
