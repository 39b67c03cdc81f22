"""The declarative base and the column types that SQLite and PostgreSQL share.

Times are seconds since 1970-01-01 UTC as double precision everywhere in the database: one representation that both
databases compare, index and compute with ("now" comes from `server.kit.db.clock`, the database's own clock, wherever a
decision depends on it). The HTTP layer renders RFC 3339.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from sqlalchemy import JSON, Double, Index, MetaData, String, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

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
    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: Json, list[Any]: Json}
