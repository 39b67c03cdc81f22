"""The declarative base and the column types that SQLite and PostgreSQL share.

Times are seconds since 1970-01-01 UTC as double precision everywhere in the database: one representation that both
databases compare, index and compute with ("now" comes from `server.kit.db.clock`, the database's own clock, wherever a
decision depends on it). The HTTP layer renders RFC 3339.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import JSON, Column, Double, Index, MetaData, String, event, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import ColumnProperty, DeclarativeBase, InstrumentedAttribute, Mapper, ORMExecuteState, Session

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Json = JSON().with_variant(JSONB(), "postgresql")
Timestamp: Double[float] = Double()

CLUSTERED: Mapping[str, bool] = {"sqlite_with_rowid": False}
"""Table arguments: SQLite keeps the rows in the order of the primary key. For narrow rows that are read along it."""


def ordered_text(length: int) -> String:
    """Text that compares by code points in both databases, in every locale: for prefixes, order and pages."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def partial_index(name: str, *columns: str, where: str) -> Index:
    """Return an index of the rows for which a condition holds. Queries that use it have the same words."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


class Base(DeclarativeBase):
    """Parent of all models."""

    metadata = MetaData(naming_convention=NAMING)


@lru_cache(maxsize=256)
def _computed(mapper: Mapper[Any]) -> frozenset[str]:
    return frozenset(attribute.key for attribute in mapper.column_attrs if not isinstance(attribute.columns[0], Column))


@event.listens_for(Session, "do_orm_execute")
def _refuse_computed(state: ORMExecuteState) -> None:
    """Raise TypeError where a statement writes a computed attribute, which SQLAlchemy would leave out silently."""
    if state.bind_mapper is None or not (state.is_insert or state.is_update):
        return
    computed = _computed(state.bind_mapper)
    if not computed:
        return
    values = getattr(state.statement, "_values", None) or {}  # no public attribute has them
    parameters = state.parameters or {}
    names = {name for row in ([parameters] if isinstance(parameters, Mapping) else parameters) for name in row}
    if names & computed or not all(isinstance(key, str | Column) for key in values):
        _refuse(state.bind_mapper.class_, computed)


@event.listens_for(Base, "attribute_instrument", propagate=True)
def _refuse_assignments(model: type[Base], key: str, attribute: InstrumentedAttribute[Any]) -> None:
    """Have the same raised where an object's computed attribute is set."""
    column = attribute.property
    if isinstance(column, ColumnProperty) and not isinstance(column.columns[0], Column):
        event.listen(attribute, "set", lambda *_given: _refuse(model, frozenset({key})))


def _refuse(model: type[Base], computed: frozenset[str]) -> None:
    names = ", ".join(f"{model.__name__}.{name}" for name in sorted(computed))
    raise TypeError(f"Nothing can be written to {names}: computed from columns (column_property). Write those columns.")
