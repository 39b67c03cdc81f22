"""What a block of code asks of a database."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event

from server.kit.db.database import Database


@contextmanager
def selected(database: Database) -> Iterator[list[str]]:
    """Collect the queries of the block's reading transactions."""
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith(("SELECT", "WITH")):
            statements.append(statement)

    event.listen(database._reader, "before_cursor_execute", note)
    yield statements
    event.remove(database._reader, "before_cursor_execute", note)
