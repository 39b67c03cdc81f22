"""Transactions of PostgreSQL in fewer messages.

Between the messages of an ordinary transaction, a process without a processor, or with a slow network, keeps the
transaction open, with its locks and a connection of the pooler. A transaction with one statement needs one message:
BEGIN, limits, the statement, COMMIT. In one with many, statements that return nothing can go with the COMMIT.
"""

from functools import partial
from typing import Any, NoReturn, Self

from psycopg import ClientCursor, Connection, Cursor
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection as EngineConnection

GATHERS = "ludus_gathers"
"""Execution option of connections whose statements that return nothing are sent with COMMIT."""
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


def gather(engine: Engine) -> None:
    """Have an engine's transactions with the option GATHERS send their INSERTs, UPDATEs and DELETEs that return nothing
    with COMMIT, in one message. Until then they have no effect, and how many rows they changed is never known.
    """

    def begun(connection: EngineConnection) -> None:
        connection.info[_GATHERED] = []  # those of a transaction that was rolled back are gone

    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        if not context.execution_options.get(GATHERS) or not (context.isinsert or context.isupdate or context.isdelete):
            return False
        if context.compiled.effective_returning:
            return False
        text = ClientCursor(cursor.connection).mogrify(statement, parameters)
        context.root_connection.info[_GATHERED].append(text)
        return True  # it is not executed now

    def commit(connection: EngineConnection) -> None:
        gathered = connection.info.pop(_GATHERED, None)
        if gathered:
            message = "; ".join([*gathered, "COMMIT"])
            connection.execution_options(no_parameters=True).exec_driver_sql(message)

    event.listen(engine, "begin", begun)
    event.listen(engine, "do_execute", execute)
    event.listen(engine, "commit", commit)
