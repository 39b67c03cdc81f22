"""Which errors of a database pass by themselves: decided here for every process, by SQLSTATE or SQLite's result code.

An error that passes is an outage (`DatabaseUnavailable`): the API answers 503, everything else waits and goes on. Every
other one is a mistake in a statement or in its values, which the same statement would meet again.

PostgreSQL's SQLSTATEs (https://www.postgresql.org/docs/current/errcodes-appendix.html) decide, not the driver's classes
of errors: psycopg calls a read-only database, which is how a failover looks, an internal error, and a statement that is
too complex an operational one. Errors of the driver itself have none: it could not connect, or has lost the server.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from server.kit.errors import DatabaseUnavailable

READ_ONLY: Final = "25006"
"""The server takes no writes: it is a standby by now, or an operator has closed it to writers."""
PASSING: Final = (
    "08",  # connections, and all refusals of PgBouncer
    READ_ONLY,
    "25P03",  # idle in a transaction for too long
    "25P04",  # a transaction that took too long
    "28",  # a password that is being changed
    "40",  # serialization, deadlocks
    "53",  # no memory, no disk, no connection
    "55006",  # an object that others use
    "55P03",  # a lock that others hold
    "57",  # cancelled, shutting down, starting up, crashed
    "58",  # errors of the operating system
)
"""SQLSTATEs, and classes of them, that pass."""
PASSING_SQLITE: Final = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_PROTOCOL",
    "SQLITE_FULL",
    "SQLITE_NOMEM",
    "SQLITE_IOERR",
    "SQLITE_CANTOPEN",
    "SQLITE_READONLY_",  # a folder or file that is not writable: readers need its shared memory, too
)
"""Beginnings of the names of SQLite's extended result codes that pass."""


def takes_no_writes(connection: Any) -> bool:
    """Return whether the server of a psycopg connection has said so; one before PostgreSQL 14 says nothing."""
    names = ("in_hot_standby", "default_transaction_read_only")
    return any(connection.info.parameter_status(name) == "on" for name in names)


@contextmanager
def translated(*, writes: bool) -> Iterator[None]:
    """Raise DatabaseUnavailable for outages; pass other errors on.

    A transaction that only reads and is told that it must not write has a mistake, whatever the database's state.
    """
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseUnavailable("no connection became free in time") from error
    except DBAPIError as error:
        if not is_outage(error, writes=writes):
            raise
        raise DatabaseUnavailable(str(error.orig).strip()) from error


def is_outage(error: DBAPIError, *, writes: bool) -> bool:
    """Return whether an error of a transaction passes by itself."""
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.Error):
        name = getattr(error.orig, "sqlite_errorname", "")
        return name.startswith(PASSING_SQLITE) or (writes and name == "SQLITE_READONLY")
    state: str | None = getattr(error.orig, "sqlstate", None)
    if state is None:
        return isinstance(error, OperationalError)
    return state.startswith(PASSING) and (writes or state != READ_ONLY)


def leave_read_only(engine: Engine, reads: str) -> None:
    """Give up all connections that take no writes: after a failover they would lead to the former primary for ever, and
    SQLite opens a file whose permissions are missing for reading, and keeps it so.

    `reads` is the execution option of transactions that must not write.
    """

    def failed(context: ExceptionContext) -> None:
        error: Any = context.original_exception
        refused = getattr(error, "sqlstate", None) == READ_ONLY or (
            getattr(error, "sqlite_errorname", "").startswith("SQLITE_READONLY")
        )
        if not refused or context.connection is None:
            return
        if not context.connection.get_execution_options().get(reads):
            context.is_disconnect = True  # the pool is emptied

    event.listen(engine, "handle_error", failed)
