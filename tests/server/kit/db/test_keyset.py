"""Lists of runs: filters, order, pages."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select
from sqlalchemy.exc import InvalidRequestError

from ludus.schemas.states import RunState
from server.kit.db import keyset
from server.kit.db.database import Database
from server.kit.db.keyset import prefix
from server.kit.errors import InvalidQuery
from server.kit.listing import Condition, ListQuery, Operator, Order
from server.runs.models import Lease, Run, RunTag
from server.runs.repository import RunRepository
from tests.examples import examples
from tests.factories import make_run
from tests.plans import plans_of

EQ, NE, LT, GE, GT = Operator.EQ, Operator.NE, Operator.LT, Operator.GE, Operator.GT
ORDERS = [
    Order(field, descending=d) for field in ("created_at", "updated_at", "name", "step", "state") for d in (True, False)
]
RARE_ORDERS = [Order("finished_at"), Order("finished_at", descending=False)]
"""Of which there is no index; those that have not finished come last."""
ROWS: list[dict[str, Any]] = [
    {
        "id": f"run_{number:03d}",
        "kind": "train",
        "name": f"{'alpha' if number % 3 else 'beta_%'}-{number % 10}",
        "tags": [f"t{number % 4}"] + (["rare"] if number == 17 else []),
        "state": ["SUCCEEDED", "SUCCEEDED", "FAILED", "QUEUED"][number % 4],
        "stop_reason": [None, "user", "diverged", None][number % 4],
        "config": {},
        "seed": 0,
        "step": number // 5,
        "created_at": 1000.0 + number // 2,
        "updated_at": 2000.0 - number,
        "finished_at": None if number % 4 == 3 else 3000.0 + number,
    }
    for number in range(60)
]
LEASES = [
    {
        "run_id": row["id"],
        "attempt": 1,
        "worker_id": "host/1/1",
        "expires_at": 0.0,
        "renewed_at": 0.0,
        "step": row["step"],
        "step_at": row["updated_at"],
    }
    for row in ROWS[5::6]
]
"""Every sixth run is held by a worker, whose heartbeats tell step and time; the run's row has others."""


def stored(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the run's own row says."""
    held = any(lease["run_id"] == row["id"] for lease in LEASES)
    step, updated_at = row["step"] * (not held), row["updated_at"] - 500.0 * held
    others = {name: value for name, value in row.items() if name not in {"step", "updated_at"}}
    return {**others, "stored_step": step, "stored_updated_at": updated_at}


@pytest.fixture
def filled(database: Database) -> Database:
    with database.write() as session:
        session.execute(insert(Run), [stored(row) for row in ROWS])
        session.execute(insert(Lease), LEASES)
        session.execute(insert(RunTag), [{"tag": tag, "run_id": row["id"]} for row in ROWS for tag in row["tags"]])
    return database


def ids(database: Database, query: ListQuery) -> list[str]:
    """Read all pages of a list."""
    found: list[str] = []
    while True:
        with database.read() as session:
            page = RunRepository(session).list(query)
        found += [run.id for run in page.items]
        if page.next is None:
            return found
        assert len(page.items) == query.limit
        query = ListQuery(query.order, query.conditions, query.limit, page.next)


def expected(query: ListQuery) -> list[str]:
    """Answer a query by hand."""
    compare = {
        EQ: lambda a, b: a is not None and (a.startswith(b[:-1]) if str(b).endswith("*") else a == b),
        NE: lambda a, b: not (a.startswith(b[:-1]) if str(b).endswith("*") else a == b),
        LT: lambda a, b: a is not None and a < b,
        GE: lambda a, b: a is not None and a >= b,
        GT: lambda a, b: a is not None and a > b,
    }

    def fits(row: dict[str, Any], condition: Condition) -> bool:
        test = compare[condition.operator]
        if condition.field != "tags":
            return bool(test(row[condition.field], condition.value))
        quantifier = any if condition.operator is EQ else all
        return quantifier(test(tag, condition.value) for tag in row["tags"])

    rows = [row for row in ROWS if all(fits(row, condition) for condition in query.conditions)]
    last = -math.inf if query.order.descending else math.inf
    keys = {row["id"]: last if row[query.order.field] is None else row[query.order.field] for row in rows}
    return sorted(keys, key=lambda run: (keys[run], run), reverse=query.order.descending)


CONDITIONS = [
    Condition("state", EQ, "SUCCEEDED"),
    Condition("state", NE, "SUCCEEDED"),
    Condition("name", EQ, "beta_%-3"),
    Condition("name", EQ, "beta_%*"),
    Condition("name", NE, "alpha*"),
    Condition("tags", EQ, "t1"),
    Condition("tags", EQ, "rare"),
    Condition("tags", EQ, "r*"),
    Condition("tags", NE, "t1"),
    Condition("tags", EQ, "absent"),
    Condition("stop_reason", EQ, "diverged"),
    Condition("stop_reason", NE, "diverged"),
    Condition("kind", EQ, "train"),
    Condition("kind", EQ, "match"),
    Condition("created_at", GE, 1010.0),
    Condition("created_at", LT, 1003.0),
    Condition("updated_at", GT, 1990.0),
    Condition("finished_at", GT, 3040.0),
    Condition("step", LT, 3),
]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.sampled_from(ORDERS + RARE_ORDERS),
    conditions=st.lists(st.sampled_from(CONDITIONS), max_size=3),
    limit=st.integers(1, 70),
    few=st.sampled_from([2, 1000]),
)
def test_pages_partition_the_list_in_its_order(
    filled: Database, order: Order, conditions: list[Condition], limit: int, few: int
) -> None:
    query = ListQuery(order, tuple(conditions), limit)
    before = keyset.FEW
    keyset.FEW = few  # both ways of answering: led by the rarest condition, and in the list's order
    try:
        assert ids(filled, query) == expected(query)
    finally:
        keyset.FEW = before


@pytest.mark.parametrize("few", [2, 1000])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [1, 5, 70])
def test_a_condition_on_what_sorts_leaves_rows_without_a_value_out(
    filled: Database, limit: int, descending: bool, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyset, "FEW", few)
    for operator, value in ((GT, 3040.0), (LT, 3040.0), (GE, 0.0)):
        query = ListQuery(Order("finished_at", descending), (Condition("finished_at", operator, value),), limit)
        assert ids(filled, query) == expected(query)


def test_a_page_neither_skips_nor_repeats_when_runs_are_added_meanwhile(filled: Database) -> None:
    query = ListQuery(Order("created_at"), (), 20)
    with filled.read() as session:
        page = RunRepository(session).list(query)
    make_run(filled)

    rest = ids(filled, ListQuery(query.order, (), 20, page.next))

    assert [run.id for run in page.items] + rest == expected(query)


def test_a_list_leaves_the_configurations_out(database: Database) -> None:
    make_run(database)
    with database.read() as session:
        (run,) = RunRepository(session).list().items

        with pytest.raises(InvalidRequestError, match="raiseload"):
            run.config  # noqa: B018


def test_an_unknown_field_is_an_error_that_names_the_known_ones(database: Database) -> None:
    with database.read() as session, pytest.raises(InvalidQuery, match="created_at"):
        RunRepository(session).list(ListQuery(Order("colour")))


@pytest.mark.parametrize("text", ["a", "%", "_", "é", "\ud7ff", "z\U0010ffff", "\U0010ffff"])
def test_a_prefix_matches_what_begins_with_it(database: Database, text: str) -> None:
    make_run(database, name=text + "x")
    make_run(database, name="\U0010ffff" * 3)
    make_run(database, name=chr(max(ord(text[0]) - 1, 1)))

    with database.read() as session:
        names = session.scalars(select(Run.name).where(prefix(Run.name, text))).all()

    assert text + "x" in names
    assert all(name.startswith(text) for name in names)


def test_every_order_is_read_from_an_index_in_sqlite(filled: Database) -> None:
    """Where heartbeats move what a list is sorted by, it sorts the runs with a lease, and the candidates of a page."""
    if filled.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL decides by its statistics")
    for order, conditions in itertools.product(ORDERS, [(), (Condition("state", EQ, "SUCCEEDED"),)]):
        query = ListQuery(order, conditions)
        plans = plans_of(filled, lambda session, query=query: RunRepository(session).list(query))

        sorts = [number for number, plan in enumerate(plans) if "USE TEMP B-TREE" in plan]
        moves = order.field in {"step", "updated_at"}
        assert len(sorts) == 2 * moves, (order, conditions, plans)
        assert not any(plan.startswith("SCAN runs") and "INDEX ix_runs_" not in plan for plan in plans)
        if moves:
            index = f"ix_runs_{'state_' if conditions else ''}{order.field}_id"
            assert sum(index in plan for plan in plans) == 1, "runs at rest, in the order of the list"
            assert "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (id=?)" in plans[: sorts[0]], "those with a lease"


def test_counts_by_state(filled: Database) -> None:
    with filled.read() as session:
        runs = RunRepository(session)

        assert runs.count() == 60
        assert runs.count(RunState.FAILED) == 15
