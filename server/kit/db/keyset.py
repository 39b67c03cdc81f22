"""Turns a list query into SQL: conditions, order, and a page that starts after a row (keyset, not offset)."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Select, and_, func, not_, or_, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.expression import FunctionElement

from server.kit.db.base import Timestamp
from server.kit.db.texts import storable
from server.kit.errors import InvalidQuery
from server.kit.listing import Condition, ListQuery, Operator, Order, Page, Value

Row = TypeVar("Row")
Part = TypeVar("Part")
Hits = TypeVar("Hits", bound=Select[*tuple[Any, ...]])
PARAMETERS = 500
"""Of one list; SQLite takes 999 in any build."""
FEW = 4000
"""Up to so many hits, a condition leads the query of a list."""
Column = InstrumentedAttribute[Any] | ColumnElement[Any]
Key = InstrumentedAttribute[Any]
"""A column of different values, which breaks ties."""
Columns = Mapping[str, Column]
"""The fields that a list can be filtered and sorted by, under the names of the model's attributes."""

_COMPARE: Mapping[Operator, Callable[[Any, Value], ColumnElement[bool]]] = {
    Operator.EQ: lambda column, value: column == value,
    Operator.NE: lambda column, value: column.is_distinct_from(value),
    Operator.LT: lambda column, value: column < value,
    Operator.GT: lambda column, value: column > value,
    Operator.LE: lambda column, value: column <= value,
    Operator.GE: lambda column, value: column >= value,
}


class opaque(FunctionElement[Any]):  # noqa: N801  # reads as the SQL function that it is
    """A column, for which SQLite shall use no index (`+column`). It keeps no statistics, so it would guess wrongly."""

    inherit_cache = True

    def __init__(self, column: Column) -> None:
        super().__init__(column)
        self.type = column.type
        self.nullable = getattr(column, "nullable", False)


@compiles(opaque)
def _transparent(element: opaque, compiler: SQLCompiler, **options: object) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(opaque, "sqlite")
def _opaque(element: opaque, compiler: SQLCompiler, **options: object) -> str:
    return "+" + str(compiler.process(element.clauses, **options))


def by_name(*attributes: InstrumentedAttribute[Any]) -> Columns:
    """Return attributes of models as the columns of a list, under their own names."""
    return {attribute.key: attribute for attribute in attributes}


def parts(values: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Cut a long list for `IN (...)`: a statement takes a limited number of parameters."""
    return (values[start : start + PARAMETERS] for start in range(0, len(values), PARAMETERS))


def select_page(
    session: Session,
    statement: Select[Row],
    query: ListQuery,
    columns: Columns,
    key: Key,
    special: Callable[[Condition], ColumnElement[bool] | None] = lambda _condition: None,
) -> Page[Row]:
    """Run a list query on top of a statement.

    `key` breaks ties. `special` may translate a condition itself. Rows that lack a number to sort by come last.
    Raises InvalidQuery for a field that the list doesn't have.
    """
    rows = session.execute(in_page(statement, query, columns, key, special)).all()
    items = tuple(row[0] for row in rows[: query.limit])
    if len(rows) <= query.limit:
        return Page(items, None)
    return Page(items, (rows[query.limit - 1].sorted_by, getattr(items[-1], key.key)))


def select_all(session: Session, query: ListQuery, columns: Columns, key: Key) -> Page[Any]:
    """Run a list query on all rows of the model that the key belongs to."""
    return select_page(session, select(key.class_), query, columns, key)


def in_page(
    statement: Select[Row],
    query: ListQuery,
    columns: Columns,
    key: Key,
    special: Callable[[Condition], ColumnElement[bool] | None] = lambda _condition: None,
) -> Select[Any]:
    """Return the statement of a page: its rows and one more, in order, with the sort column as `sorted_by`."""
    for condition in query.conditions:
        clause = special(condition)  # checks values itself, with `check`
        statement = statement.where(compare(columns, condition) if clause is None else clause)
    column = _column(columns, query.order.field)
    if getattr(column, "nullable", False):  # conditions compare with the column itself: no value fulfils none of them
        column = last_without(column, query.order)
    if query.after is not None:
        if len(query.after) != 2:
            raise InvalidQuery(query.order.field, "the page's key must have two values")
        value, identity = query.after
        check(f"{query.order.field} of page_token", column, value)
        check(f"{key.key} of page_token", key, identity)
        # Begin behind the row with these values. The redundant first clause is the one that an index can seek to.
        if query.order.descending:
            behind = and_(column <= value, or_(column < value, and_(column == value, key < identity)))
        else:
            behind = and_(column >= value, or_(column > value, and_(column == value, key > identity)))
        statement = statement.where(behind)
    order = (column.desc(), key.desc()) if query.order.descending else (column.asc(), key.asc())
    # The sort column is read with the row: it may be that of another table.
    return statement.add_columns(column.label("sorted_by")).order_by(*order).limit(query.limit + 1)


def rarest(session: Session, hits: Iterable[Hits]) -> Hits | None:
    """Choose the fewest of the hits that each condition of a list leaves, None where each leaves more than FEW.

    SQLite keeps no statistics of values. Left alone it fetches and sorts half the table for a common value, or walks
    all of it for a rare one. So the hits of each condition, which has an index of its own, are counted first, up to
    FEW: a rare one leads the query; if all are common, a walk in the list's order meets a page of hits soon.
    """
    best: Hits | None = None
    fewest = FEW + 1
    for hit in hits:
        count = session.scalar(select(func.count()).select_from(hit.limit(fewest).subquery())) or 0
        if count < fewest:
            best, fewest = hit, count
    return best


def compare(columns: Columns, condition: Condition) -> ColumnElement[bool]:
    """Translate `field operator value`; a text that ends in `*` stands for all that begin with the rest."""
    column = _column(columns, condition.field)
    value = condition.value
    check(condition.field, column, value)
    if isinstance(value, str) and value.endswith("*") and condition.operator in {Operator.EQ, Operator.NE}:
        matches = prefix(column, value[:-1])
        return matches if condition.operator is Operator.EQ else not_(matches)
    return _COMPARE[condition.operator](column, value)


def prefix(column: Column, text: str) -> ColumnElement[bool]:
    """Match texts that begin with `text`, as a range, which an index serves and in which no character is special."""
    if not text:
        return column.is_not(None)
    stem = text.rstrip("\U0010ffff")
    if not stem:  # no text is behind all that begin with it
        return column >= text
    following = ord(stem[-1]) + 1
    end = stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # no characters lie between
    return and_(column >= text, column < end)


def check(field: str, column: Column, value: Value) -> None:
    """Raise InvalidQuery unless the database can compare a column with a value.

    PostgreSQL fails on a number beyond the column's range, and on texts with NUL; SQLite on one beyond 64 bits. The
    range is the column's, so that no list has to declare it.
    """
    kind = column.type.python_type
    match value:
        case bool() | None:
            fits = kind is bool and value is not None
        case str():
            fits = kind is str and storable(value) == value
        case int():
            bits = 31 if kind is int and not isinstance(column.type, BigInteger) else 63
            if kind is int and not -(2**bits) <= value < 2**bits:
                numbers = f"whole numbers from {-(2**bits)} to {2**bits - 1}"
                raise InvalidQuery(field, f"it takes {numbers}, and {shown(value)} is none of them")
            fits = kind in {int, float} and -(2**bits) <= value < 2**bits
        case float():
            fits = kind is float and math.isfinite(value)
    if not fits:
        raise InvalidQuery(field, f"it takes {_TAKES.get(kind, 'other values')}, and {shown(value)} is none of them")


_TAKES: Mapping[type, str] = {
    bool: "true or false",
    str: "texts without NUL characters",
    int: "whole numbers",
    float: f"numbers from {-(2**63)} to {2**63 - 1}",
}


def shown(value: Value) -> str:
    """Return a value for a sentence, cut if it is long."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else f"a number of {len(str(value))} digits"
    return text if len(text) <= 60 else f"{text[:60]}..."


def last_without(column: Column, order: Order) -> ColumnElement[Any]:
    """Return a column of numbers by which a list is sorted so that rows without a value come last."""
    return func.coalesce(column, -sys.float_info.max if order.descending else sys.float_info.max)


def kind_of(column: Column) -> type:
    """Return the type of a column's values: bool, int, float or str; datetime for times, although they are numbers."""
    return datetime if column.type is Timestamp else column.type.python_type


def _column(columns: Columns, field: str) -> Column:
    if field not in columns:
        raise InvalidQuery(field, f"known fields are {', '.join(sorted(columns))}")
    return columns[field]
