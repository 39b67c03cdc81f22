"""How a database carries out what a test reads: which tables it searches by an index, and which it reads whole."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Session

from server.kit.db.database import Database


def plans_of(database: Database, read: Callable[[Session], object]) -> list[str]:
    """Return the steps of the plan (EXPLAIN, in SQLite EXPLAIN QUERY PLAN) of each query of `read`."""
    plans: list[str] = []
    with database.read() as session:
        connection = session.connection()
        statements: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_more: Any) -> None:
            statements.append((statement, parameters))

        event.listen(connection, "before_cursor_execute", note)
        read(session)
        event.remove(connection, "before_cursor_execute", note)
        explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
        for statement, parameters in statements:
            if statement.lstrip().startswith(("SELECT", "WITH")):
                plans += [str(row[-1]) for row in connection.exec_driver_sql(explain + statement, parameters)]
    assert plans
    return plans
