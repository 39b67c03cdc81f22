"""How SQLite carries out what a test reads: which tables it searches by an index, and which it reads whole."""

from collections.abc import Callable

from sqlalchemy.orm import Session

from server.kit.db.database import Database


def plans_of(database: Database, read: Callable[[Session], object]) -> list[str]:
    """Return the steps of SQLite's plan (EXPLAIN QUERY PLAN) of each SELECT of `read`."""
    plans: list[str] = []
    with database.read() as session:
        connection = session.connection().connection.driver_connection
        assert connection is not None
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        read(session)
        connection.set_trace_callback(None)
        for statement in statements:
            if statement.lstrip().startswith("SELECT"):
                plans += [str(row[-1]) for row in connection.execute("EXPLAIN QUERY PLAN " + statement)]
    assert plans
    return plans
