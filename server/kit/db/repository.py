"""The parent of all repositories, and statements that they share."""

from typing import TypeVar

from sqlalchemy import ColumnElement, CursorResult, Select, delete, inspect, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from server.kit.db.base import Base
from server.kit.db.clock import now

Row = TypeVar("Row")
Model = TypeVar("Model", bound=Base)


class Repository:
    """Reads and writes rows through one session, whose owner commits. Decides nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def clock(self) -> float:
        """Return the database's time, in seconds since 1970-01-01 UTC."""
        return float(self._session.scalars(select(now())).one())

    def _locked(
        self, query: Select[Row], *, of: type[Base] | None = None, key_share: bool = False, skip_locked: bool = False
    ) -> Row | None:
        """Return the row that a query finds, as it is now and locked until the commit; None if there is none.

        The options are those of `Select.with_for_update`.
        """
        locked = query.with_for_update(of=of, key_share=key_share, skip_locked=skip_locked)
        return self._session.scalars(locked, execution_options={"populate_existing": True}).one_or_none()

    def save(self, row: Model) -> Model:
        """Write a new or a changed row at once; return it with the values that the database gave it."""
        self._session.add(row)
        self._session.flush()
        self._session.refresh(row)
        return row


def delete_some(session: Session, model: type[Base], limit: int, *conditions: ColumnElement[bool]) -> int:
    """Delete at most `limit` rows for which conditions hold; return how many.

    The conditions are asked twice: a row that another transaction changes meanwhile is chosen, but may have to stay.
    """
    key = inspect(model).primary_key
    chosen = select(*key).where(*conditions).limit(limit).correlate(None)
    statement = delete(model).where(*conditions, tuple_(*key).in_(chosen))
    deletion = session.execute(statement, execution_options={"synchronize_session": False})
    assert isinstance(deletion, CursorResult)
    return deletion.rowcount


def upsert(session: Session, model: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """Begin an `INSERT ... ON CONFLICT`, which both databases have."""
    if session.get_bind().dialect.name == "sqlite":
        return sqlite.insert(model)
    return postgresql.insert(model)
