"""The database's clock, as seconds since 1970-01-01 UTC, and the later of two times.

All decisions that depend on time (has this lease expired?) use this one clock, so that the clocks of hosts may
differ. It is the time at which the statement runs, not the beginning of the transaction, which may have waited for a
lock.
"""

from sqlalchemy import ColumnElement, Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement

from server.kit.db.base import Timestamp

DAY_SECONDS = 86400.0


class now(FunctionElement[float]):  # noqa: N801  # reads as the SQL function that it is
    """SQL expression: the database's present time in seconds, with at least millisecond resolution."""

    type = Double()
    inherit_cache = True


@compiles(now, "sqlite")
def _sqlite(element: now, compiler: SQLCompiler, **options: object) -> str:  # noqa: ARG001
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now, "postgresql")
def _postgresql(element: now, compiler: SQLCompiler, **options: object) -> str:  # noqa: ARG001
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


class later(FunctionElement[float]):  # noqa: N801  # reads as the SQL function that it is
    """SQL expression: the later of two times. Neither may be null: SQLite would answer with null."""

    type = Timestamp
    inherit_cache = True

    def __init__(self, one: Mapped[float] | ColumnElement[float], other: ColumnElement[float]) -> None:
        super().__init__(one, other)


@compiles(later, "sqlite")
def _later_sqlite(element: later, compiler: SQLCompiler, **options: object) -> str:
    return f"max({compiler.process(element.clauses, **options)})"


@compiles(later, "postgresql")
def _later_postgresql(element: later, compiler: SQLCompiler, **options: object) -> str:
    return f"greatest({compiler.process(element.clauses, **options)})"
