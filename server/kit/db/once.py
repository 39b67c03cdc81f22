"""Transactions of PostgreSQL in fewer messages.

Between the messages of an ordinary transaction, a process without a processor, or with a slow network, keeps the
transaction open, with its locks and a connection of the pooler. A transaction with one statement needs one message:
BEGIN, limits, the statement, COMMIT. In one with many, one that returns nothing goes with the next one that does.
"""

from functools import partial
from typing import Any, NoReturn, Self

from psycopg import ClientCursor, Connection, Cursor
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection as EngineConnection

GATHERS = "ludus_gathers"
"""Execution option of connections whose statements that return nothing are sent with the next one, or with COMMIT."""
UNREAD = "ludus_unread"
"""Execution option of statements whose result nobody reads. With GATHERS, they are sent with the next one, too."""
_GATHERED = "ludus_gathered"


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


def gather(engine: Engine, begin: str) -> None:
    """Have an engine's transactions with the option GATHERS send what returns nothing together with the next statement
    that returns something, or with COMMIT, in one message: `begin`, INSERTs, UPDATEs and DELETEs without RETURNING, and
    statements with the option UNREAD. How many rows they changed is never known.
    """

    first = begin.split("; ")

    def begun(connection: EngineConnection) -> None:
        connection.info[_GATHERED] = list(first)  # those of a transaction that was rolled back are gone

    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        options = context.execution_options
        if not options.get(GATHERS):
            return False
        gathered = context.root_connection.info[_GATHERED]
        text = ClientCursor(cursor.connection).mogrify(statement, parameters)
        changes = context.isinsert or context.isupdate or context.isdelete
        if options.get(UNREAD) or (changes and not context.compiled.effective_returning):
            gathered.append(text)
            return True  # it is not executed now
        cursor.execute("; ".join([*gathered, text]), prepare=False)
        for _ in gathered:
            cursor.nextset()  # to the statement's own result
        gathered.clear()
        return True

    def execute_each(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        return all(execute(cursor, statement, each, context) for each in parameters)

    def commit(connection: EngineConnection) -> None:
        options = connection.get_execution_options()
        if options.get(GATHERS) and connection.info[_GATHERED] not in ([], first):
            connection.exec_driver_sql("COMMIT")

    event.listen(engine, "begin", begun)
    event.listen(engine, "do_execute", execute)
    event.listen(engine, "do_executemany", execute_each)
    event.listen(engine, "commit", commit)
