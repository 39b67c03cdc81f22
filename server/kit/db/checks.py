"""Checks, when a process starts, that PostgreSQL keeps texts in UTF-8, and that a pooler in front of it shares its
connections as Ludus needs it.

A server that was set up where no locale is named has no encoding (SQL_ASCII). It refuses JSON with other characters.
PgBouncer has three modes. In transaction pooling a server connection belongs to a client for one transaction: what
Ludus is made for. In session pooling it belongs to a client until that disconnects, so the pooler saves nothing, and
must have as many server connections as all processes of Ludus together. In statement pooling there are no
transactions, and nothing of Ludus can work.
"""

import threading
from typing import Final

import structlog
from sqlalchemy import inspect, text

from server.kit.db.database import Database, behind_pooler
from server.kit.errors import DatabaseUnavailable
from server.kit.ports import CannotStart
from server.kit.settings import DatabaseSettings

PROCESS: Final = text("SELECT pg_backend_pid()")
"""Asks for the server process of the connection on which it runs."""
ANSWER_SECONDS: Final = 10.0
"""Time in which a pooler must give a second connection while the first one does nothing."""
_log = structlog.get_logger(__name__)


class WrongPooling(CannotStart):
    """The pooler's mode does not fit."""

    exit_code = 2


class WrongEncoding(CannotStart):
    """The database can't hold all texts."""

    exit_code = 2


class NotMigrated(CannotStart):
    """The database has no tables yet."""


def check_migrated(settings: DatabaseSettings) -> None:
    """Raise NotMigrated where no `ludus migrate` has been yet; without Alembic, which workers do not need.

    A database that does not answer is no error here: processes wait for it.
    """
    database = Database.from_settings(settings)
    try:
        with database.read() as session:
            has_tables = inspect(session.connection()).has_table("alembic_version")
            migrated = has_tables and session.scalar(text("SELECT version_num FROM alembic_version")) is not None
    except DatabaseUnavailable:
        return
    finally:
        database.close()
    if not migrated:
        raise NotMigrated("The database has no tables yet. Run `ludus migrate`.")


def check_database(settings: DatabaseSettings, seconds: float = ANSWER_SECONDS) -> None:
    """Check the configured database, and a pooler in front of it. Raises WrongEncoding, WrongPooling.

    A database that does not answer is no error here: processes wait for it. Session pooling is logged as a warning.
    """
    database = Database.from_settings(settings, connections=2)
    if database.url.get_backend_name() == "sqlite":
        return
    try:
        _check(database, seconds)
    except DatabaseUnavailable as error:
        if "statement pooling" in str(error):
            raise WrongPooling(
                "The pooler in front of the database pools statements (PgBouncer: pool_mode = statement), which allows "
                "no transactions. Set pool_mode = transaction for Ludus' database."
            ) from None
        _log.warning("pooling_not_checked", error=str(error))
    finally:
        database.close()


def _check(database: Database, seconds: float) -> None:
    """Keep a connection without a transaction, and look which of the pooler's connections a second one gets meanwhile.

    If it is the same, the pooler pools transactions. Another one may mean that others use the pooler right now.
    """
    with database.read() as session:
        encoding = session.scalar(text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise WrongEncoding(
                f"The database {database.url.database} has the encoding {encoding}; Ludus needs UTF8. Create another "
                "one: CREATE DATABASE ... ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0."
            )
        raw = session.connection().connection.dbapi_connection
        if raw is None or not behind_pooler(raw):
            return
    with database.engine.connect() as connection:
        with connection.begin():
            first = connection.scalar(PROCESS)
        second: list[int | None] = []
        refused: list[DatabaseUnavailable] = []

        def ask() -> None:
            try:
                with database.read() as session:
                    session.connection().detach()  # nothing else closes it if its pool is closed meanwhile
                    second.append(session.scalar(PROCESS))
            except DatabaseUnavailable as error:
                refused.append(error)

        # Without a free connection the pooler would not answer for minutes (query_wait_timeout).
        asking = threading.Thread(target=ask, name="pooling-check", daemon=True)
        asking.start()
        asking.join(seconds)
    if refused and "query_wait_timeout" not in str(refused[0]):
        raise refused[0]  # it ends, or has too many clients: nothing that its mode would explain
    if not second:
        raise WrongPooling(
            f"The pooler in front of the database gave no second connection within {seconds:g} s while the first one "
            "did nothing: it pools sessions with too few connections (PgBouncer: set pool_mode = transaction, or a "
            "default_pool_size for all connections of Ludus), or has too much to do."
        )
    if second != [first]:
        _log.info("pooling_unclear", remedy="pool_mode = transaction: in session pooling a pooler saves no connections")
