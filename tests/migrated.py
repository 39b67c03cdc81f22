"""A migrated SQLite file for all tests of a process: migrating takes far longer than copying."""

import atexit
import tempfile
from functools import cache
from pathlib import Path

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
