"""Brings the database's schema to the one that this release needs.

Any number of processes may do so at once: the first one migrates in a single transaction, the others wait for it and
find nothing left to do (SQLite: `BEGIN IMMEDIATE`; PostgreSQL: an advisory lock). A failed migration leaves nothing
behind.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, make_url, text

from server.kit.db.checks import NotMigrated
from server.kit.db.database import Database
from server.kit.errors import DatabaseUnavailable, SchemaOutdated
from server.kit.settings import DatabaseSettings

ROOT = Path(__file__).resolve().parents[3]
LOOK_SECONDS: Final = 0.05
AWAY_SECONDS: Final = 1.0
"""A migration is tried again after so long if the database is away."""
_ADVISORY_LOCK = 0x6C75647573
_log = structlog.get_logger(__name__)


def upgrade(settings: DatabaseSettings, *, wait_seconds: float = 0.0) -> None:
    """Migrate the configured database to the newest revision. Safe when several processes start at once.

    Raises DatabaseUnavailable if the database stays away for `wait_seconds`.
    """
    deadline = time.monotonic() + wait_seconds
    database = Database.from_settings(settings)
    try:
        while True:
            try:
                return upgrade_database(database)
            except DatabaseUnavailable as error:
                if time.monotonic() >= deadline:
                    raise
                _log.warning("database_away", error=str(error))
            time.sleep(AWAY_SECONDS)
    finally:
        database.close()


def upgrade_database(database: Database, revision: str = "head") -> None:
    """Migrate a connected database. Raises DatabaseUnavailable when another process doesn't finish in time."""
    with database.write() as session:
        connection = session.connection()
        before = _lock(connection)
        command.upgrade(_config(connection), revision)
        after = current(connection)
    if before != after:
        _log.info("database_migrated", before=before, after=after)


def downgrade_database(database: Database, revision: str) -> None:
    """Take back migrations, with the data that they gave room to. For tests and development."""
    with database.write() as session:
        connection = session.connection()
        _lock(connection)
        command.downgrade(_config(connection), revision)


def check(database: Database) -> None:
    """Raise SchemaOutdated unless the schema is at least the one that this release needs.

    A revision that this release doesn't know is of a newer one, whose schema this release works with, too.
    """
    scripts = ScriptDirectory.from_config(_config())
    needed = str(scripts.get_current_head())
    with database.read() as session:
        revision = current(session.connection())
    revisions = {script.revision for script in scripts.walk_revisions()}
    if revision is None or (revision != needed and revision in revisions):
        raise SchemaOutdated(revision, needed)


@contextmanager
def existing(settings: DatabaseSettings) -> Iterator[Database]:
    """Open the database of a server, and make none. Raises NotMigrated, SchemaOutdated, DatabaseUnavailable."""
    url = make_url(settings.url.get_secret_value())
    if url.get_backend_name() == "sqlite" and not (file := Path(url.database or "")).exists():
        # To connect would create it.
        way = "Name the server's home folder (--home, LUDUS_HOME), or make one (`ludus migrate`)"
        raise NotMigrated(f"There is no database at {file}. {way}.")
    database = Database.from_settings(settings)
    try:
        check(database)
        yield database
    finally:
        database.close()


def await_schema(settings: DatabaseSettings) -> None:
    """Wait until another process has migrated the database, at most `await_schema_seconds`. Raises SchemaOutdated."""
    deadline = time.monotonic() + settings.await_schema_seconds
    database = Database.from_settings(settings)
    try:
        while True:
            try:
                return check(database)
            except (SchemaOutdated, DatabaseUnavailable):
                if time.monotonic() >= deadline:
                    raise
            time.sleep(LOOK_SECONDS)
    finally:
        database.close()


def current(connection: Connection) -> str | None:
    """Return the revision that a database is at; None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def _config(connection: Connection | None = None) -> Config:
    return Config(toml_file=ROOT / "pyproject.toml", attributes={"connection": connection})


def _lock(connection: Connection) -> str | None:
    """Keep other processes from migrating until the commit; return the revision that was found."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SET LOCAL lock_timeout = '60s'"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        connection.execute(text("SET LOCAL lock_timeout = '10s'"))
    return current(connection)
