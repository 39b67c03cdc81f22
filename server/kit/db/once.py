"""A whole transaction of PostgreSQL in one message: BEGIN, limits, one statement, COMMIT.

A process that gets no processor, or whose network is slow, keeps no transaction open between its statements then, and
so no connection of a pooler from others: of 1,000 slots each beats once in two seconds.
"""

from functools import partial
from typing import Any, NoReturn, Self

from psycopg import ClientCursor, Connection, Cursor


def begin_once(connection: Connection[Any], begin: str) -> None:
    """Let the next statement of an idle connection begin with these statements, and commit. There is no second one."""
    connection.cursor_factory = partial(_WholeTransaction, begin)  # type: ignore[assignment]  # it is only called


def ended(connection: Connection[Any]) -> None:
    """Let a connection have ordinary cursors again."""
    connection.cursor_factory = Cursor


class _WholeTransaction(ClientCursor[Any]):
    def __init__(self, begin: str, connection: Connection[Any], **options: Any) -> None:
        super().__init__(connection, **options)
        self._begin = begin

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """Execute the statement with the values in its text: a message of many statements has no parameters."""
        super().execute(f"{self._begin}; {self.mogrify(query, params)}; COMMIT", **options)
        for _ in self._begin.split(";"):
            self.nextset()  # to the statement's own result
        self.connection.cursor_factory = _second  # type: ignore[assignment]  # it is only called
        return self


def _second(*_: object, **_options: object) -> NoReturn:
    raise AssertionError("a transaction with `once` has one statement")
