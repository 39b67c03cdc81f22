"""A whole transaction of PostgreSQL in one message: BEGIN, limits, one statement, COMMIT.

Between the messages of an ordinary transaction, a process without a processor, or with a slow network, keeps the
transaction open, and keeps a connection of the pooler. One message has no such gap. It is for what slots do often.
"""

from functools import partial
from typing import Any, NoReturn, Self

from psycopg import ClientCursor, Connection, Cursor


def begin_once(connection: Connection[Any], begin: str) -> None:
    """Prepare an idle connection: its next statement is sent after `begin` and before COMMIT, in one message.

    A second statement raises AssertionError, until `ended` is called.
    """
    connection.cursor_factory = partial(_WholeTransaction, begin)  # type: ignore[assignment]  # it is only called


def ended(connection: Connection[Any]) -> None:
    """Undo `begin_once`: the connection sends each statement by itself again."""
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
