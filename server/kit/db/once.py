"""Transactions of PostgreSQL in fewer messages.

Between the messages of an ordinary transaction, a process without a processor, or with a slow network, keeps the
transaction open, with its locks and a connection of the pooler. A transaction with one statement needs one message:
BEGIN, limits, the statement, COMMIT. In one with many, one that returns nothing goes with the next one that does.
psycopg's pipeline is no way to do this: it writes to the socket with each statement.
"""

from typing import Any

from psycopg import ClientCursor
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection

ONCE = "ludus_once"
"""Execution option of connections whose transactions are one statement, which is committed with it."""
GATHERS = "ludus_gathers"
"""Execution option of connections whose statements that return nothing are sent with the next one, or with COMMIT."""
UNREAD = "ludus_unread"
"""Execution option of statements whose result nobody reads. With GATHERS, they are sent with the next one, too."""
_BEGIN, _GATHERED = "ludus_begin", "ludus_gathered"


def begin_later(connection: Connection, begin: str) -> None:
    """Send the statements that begin a transaction, which are separated by semicolons, with its first statement."""
    first = begin.split("; ")
    connection.info.update({_BEGIN: first, _GATHERED: [*first]})  # those of a transaction that was rolled back are gone


def gather(engine: Engine) -> None:
    """Have an engine's transactions with the option ONCE send one message; and those with GATHERS what returns nothing
    together with the next statement that returns something, or with COMMIT: INSERTs, UPDATEs and DELETEs without
    RETURNING, and statements with the option UNREAD. How many rows they changed is never known.

    A message of many statements has no parameters: their values are in its text. A second statement of a transaction
    with ONCE raises AssertionError.
    """

    def execute(cursor: Any, statement: str, parameters: Any, context: Any) -> bool:
        options = context.execution_options
        once = options.get(ONCE)
        if not once and not options.get(GATHERS):
            return False
        gathered = context.root_connection.info[_GATHERED]
        text = ClientCursor(cursor.connection).mogrify(statement, parameters)
        changes = context.isinsert or context.isupdate or context.isdelete
        if once:
            assert gathered, "a transaction with `once` has one statement"
            text += "; COMMIT"
        elif options.get(UNREAD) or (changes and not context.compiled.effective_returning):
            gathered.append(text)
            return True  # it is not executed now
        cursor.execute("; ".join([*gathered, text]), prepare=False)
        for _ in gathered:
            cursor.nextset()  # to the statement's own result
        gathered.clear()
        return True

    def execute_many(cursor: Any, statement: str, rows: Any, context: Any) -> bool:
        return all(execute(cursor, statement, parameters, context) for parameters in rows)

    def commit(connection: Connection) -> None:
        options, info = connection.get_execution_options(), connection.info
        if options.get(GATHERS) and info[_GATHERED] not in ([], info[_BEGIN]):
            connection.exec_driver_sql("COMMIT")

    event.listen(engine, "do_execute", execute)
    event.listen(engine, "do_executemany", execute_many)
    event.listen(engine, "commit", commit)
