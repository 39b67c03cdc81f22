"""What tests of a process share of their databases: a migrated SQLite file to copy, and compiled statements.

Migrating takes far longer than copying, and compiling a statement far longer than executing it.
"""

import atexit
import tempfile
from functools import cache
from pathlib import Path

from sqlalchemy import Engine

from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database


@cache
def migrated_file() -> Path:
    """Return an empty, migrated SQLite database to copy. It is made once in a process, and gone with it."""
    folder = tempfile.TemporaryDirectory(prefix="ludus-migrated-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "ludus.db"
    database = Database(f"sqlite:///{path}", synchronous="OFF")
    upgrade_database(database)
    with database.engine.connect() as connection:
        connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    return path


@cache
def _compiler() -> tuple[Engine, Engine]:
    """Return the reader and the writer whose dialects, which have seen a connection, and caches the others take."""
    database = Database(f"sqlite:///{migrated_file()}")
    for engine in (database._reader, database._writer):
        engine.connect().close()
    database.close()
    return database._reader, database._writer


def share_compiled(database: Database) -> Database:
    """Let a database find the statements that others of this process have compiled, and return it."""
    if database.url.get_backend_name() == "sqlite":
        for engine, shared in zip((database._reader, database._writer), _compiler(), strict=True):
            engine.dialect, engine._compiled_cache = shared.dialect, shared._compiled_cache
    return database
