"""Counts the rows that each transaction deletes by itself, at the connection."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from server.kit.db.database import Database


@contextmanager
def counted(database: Database) -> Iterator[list[int]]:
    """Collect how many rows each transaction deletes meanwhile, of those that delete any; not those of cascades."""
    found: list[int] = []
    running = [0]

    def executed(_connection: Any, cursor: Any, statement: str, *_more: Any) -> None:
        if statement.lstrip().startswith("DELETE"):
            running[0] += cursor.rowcount

    def ended(_connection: Any) -> None:
        if running[0]:
            found.append(running[0])
        running[0] = 0

    event.listen(database.engine, "after_cursor_execute", executed)
    event.listen(database.engine, "commit", ended)
    try:
        yield found
    finally:
        event.remove(database.engine, "after_cursor_execute", executed)
        event.remove(database.engine, "commit", ended)
