"""The list of the simulators of all runs: filters, order, pages, projects, and the plans of its queries."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, text

from server.kit.db import keyset
from server.kit.db.database import Database
from server.kit.listing import Condition, ListQuery, Operator, Order
from server.runs.models import Run
from server.simulators.models import Simulator
from server.simulators.repository import SimulatorRepository
from tests.conftest import POSTGRESQL_ONLY
from tests.examples import examples
from tests.plans import plans_of

EQ, NE, LT, GE = Operator.EQ, Operator.NE, Operator.LT, Operator.GE
ORDERS = [Order(field, descending=descending) for field in ("joined_at", "left_at") for descending in (True, False)]
PROJECTS = {"run_0": "acme", "run_1": "default", "run_2": "default"}
RUNS: list[dict[str, Any]] = [
    {
        "id": run,
        "project": project,
        "kind": "train",
        "name": run,
        "state": "RUNNING",
        "config": {},
        "seed": 0,
        "created_at": 0.0,
        "stored_updated_at": 0.0,
    }
    for run, project in PROJECTS.items()
]
ROWS: list[dict[str, Any]] = [
    {
        "run_id": f"run_{number % 3}",
        "session_id": f"session_{number // 3:02d}",  # each in every run
        "number": number // 3,
        "state": "left" if number % 4 else "connected",
        "attempt": 1,
        "behaviors": [],
        "joined_at": 1000.0 + number // 5,
        "left_at": 2000.0 - number // 2 if number % 4 else None,
        "leave_code": ["left", "shape_mismatch"][number % 7 == 0] if number % 4 else None,
    }
    for number in range(60)
]
CONDITIONS = [
    Condition("state", EQ, "connected"),
    Condition("state", NE, "connected"),
    Condition("run_id", EQ, "run_1"),
    Condition("run_id", NE, "run_1"),
    Condition("leave_code", EQ, "shape_mismatch"),
    Condition("leave_code", NE, "shape_mismatch"),
    Condition("leave_code", EQ, "absent"),
    Condition("joined_at", GE, 1005.0),
    Condition("left_at", GE, 1980.0),
    Condition("left_at", LT, 1990.0),
]
COMPARE: dict[Operator, Any] = {
    EQ: lambda a, b: a == b,
    NE: lambda a, b: a != b,
    LT: lambda a, b: a is not None and a < b,
    GE: lambda a, b: a is not None and a >= b,
}


@pytest.fixture
def filled(database: Database) -> Database:
    with database.write() as session:
        session.execute(insert(Run), RUNS)
        session.execute(insert(Simulator), ROWS)
    return database


def keys(database: Database, query: ListQuery) -> list[str]:
    """Read all pages of the list."""
    found: list[str] = []
    while True:
        with database.read() as session:
            page = SimulatorRepository(session).list_all(query)
        found += [each.key for each in page.items]
        if page.next is None:
            return found
        assert len(page.items) == query.limit
        query = ListQuery(query.order, query.conditions, query.limit, page.next)


def expected(query: ListQuery, project: str | None) -> list[str]:
    """Answer a query by hand."""
    rows = [row for row in ROWS if project in {None, PROJECTS[row["run_id"]]} and row[query.order.field] is not None]
    for each in query.conditions:
        rows = [row for row in rows if COMPARE[each.operator](row[each.field], each.value)]
    named = [(row[query.order.field], f"{row['run_id']}/{row['session_id']}") for row in rows]
    return [key for _, key in sorted(named, reverse=query.order.descending)]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    project=st.sampled_from([None, "acme", "default", "empty"]),
    order=st.sampled_from(ORDERS),
    conditions=st.lists(st.sampled_from(CONDITIONS), max_size=3),
    limit=st.integers(1, 70),
    few=st.sampled_from([2, 1000]),
)
def test_pages_partition_the_list_of_a_project_in_its_order(
    filled: Database, project: str | None, order: Order, conditions: list[Condition], limit: int, few: int
) -> None:
    query = ListQuery(order, tuple(conditions), limit)
    before = keyset.FEW
    keyset.FEW = few  # both ways of answering: led by the rarest condition, and in the list's order
    try:
        assert keys(filled.within(project), query) == expected(query, project)
    finally:
        keyset.FEW = before


PAGES = [
    ListQuery(Order("joined_at")),
    ListQuery(Order("left_at")),
    ListQuery(Order("joined_at"), (Condition("state", EQ, "connected"),)),
    ListQuery(Order("left_at"), (Condition("left_at", GE, 99_900.0),)),
    ListQuery(Order("joined_at"), (Condition("run_id", EQ, "run_7"),)),
    ListQuery(Order("left_at"), (Condition("leave_code", EQ, "shape_mismatch"),)),
    ListQuery(Order("joined_at"), (), after=(50_000.0, "run_10000/s50000")),
]


@pytest.mark.parametrize("project", [None, "default"])
@pytest.mark.parametrize("query", PAGES, ids=str)
def test_sqlite_reads_no_table_whole_for_a_page(filled: Database, query: ListQuery, project: str | None) -> None:
    if filled.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL decides by its statistics")
    plans = plans_of(filled.within(project), lambda session: SimulatorRepository(session).list_all(query))

    assert not any(plan.startswith("SCAN") and "USING" not in plan and "anon_1" not in plan for plan in plans), plans


@pytest.mark.parametrize("database_url", POSTGRESQL_ONLY, indirect=True)
def test_postgresql_reads_no_table_whole_for_a_page_of_a_hundred_thousand(database: Database) -> None:
    numbers = "WITH numbers(n) AS (SELECT generate_series(0, {}))"
    runs = (
        "INSERT INTO runs (id, kind, name, tags, state, config, seed, priority, attempt, step, event_seq, "
        "restarts_without_progress, simulator_seq, created_at, updated_at, project) "
        "SELECT 'run_' || n, 'train', 'r' || n, '[]', 'SUCCEEDED', '{}', 0, 0, 0, 0, 0, 0, 0, n, n, "
        "CASE WHEN n % 20 = 7 THEN 'small' ELSE 'default' END FROM numbers"
    )
    simulators = (
        "INSERT INTO simulators (run_id, session_id, number, label, client, peer, state, attempt, relayed, behaviors, "
        "agents, steps, joined_at, left_at, leave_code) "
        "SELECT 'run_' || n % 20000, 's' || n, n, '', '', '', CASE n % 1000 WHEN 0 THEN 'connected' ELSE 'left' END, "
        "1, false, '[]', 0, 0, n, CASE n % 1000 WHEN 0 THEN NULL ELSE n + 50 END, "
        "CASE WHEN n % 5000 = 3 THEN 'shape_mismatch' ELSE 'left' END FROM numbers"
    )
    with database.write() as session:
        session.execute(text(f"{numbers.format(19_999)} {runs}"))
        session.execute(text(f"{numbers.format(99_999)} {simulators}"))
        session.execute(text("ANALYZE runs, simulators"))

    for project in (None, "default", "small"):
        for query in PAGES:
            plans = plans_of(
                database.within(project), lambda session, query=query: SimulatorRepository(session).list_all(query)
            )

            assert not any("Seq Scan on simulators" in plan for plan in plans), (project, query, plans)
