"""List queries: conditions, order and keyset pages. No HTTP, no SQL.

The HTTP layer parses `filter`, `order_by` and `page_token` into these types (`server.kit.http.filters`,
`server.kit.http.listing`); repositories translate them into SQL. A keyset page starts *after* a row (the values of the
order's columns in that row), so that a page of a list that changes meanwhile neither skips nor repeats a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Item = TypeVar("Item")
Shown = TypeVar("Shown")
Value = str | int | float | bool | None
"""The value in a comparison. Times are seconds since 1970-01-01 UTC."""


class Operator(StrEnum):
    """A comparison of the filter grammar."""

    EQ = "="
    NE = "!="
    LT = "<"
    GT = ">"
    LE = "<="
    GE = ">="


@dataclass(frozen=True)
class Condition:
    """`field operator value`. The field is one that the resource declares, the value has its type."""

    field: str
    operator: Operator
    value: Value


@dataclass(frozen=True)
class Order:
    """The column that a list is sorted by. Ties are broken by id in the same direction."""

    field: str
    descending: bool = True


@dataclass(frozen=True)
class ListQuery:
    """One page of a list: all conditions hold (AND), sorted, at most `limit` items, after the row `after`."""

    order: Order
    conditions: tuple[Condition, ...] = ()
    limit: int = 100
    after: tuple[Value, ...] | None = None
    """Keyset: the sort column's value and the id of the last row of the previous page."""


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Items of one page. `next` is the keyset of the page that follows, None on the last one."""

    items: tuple[Item, ...]
    next: tuple[Value, ...] | None

    def map(self, show: Callable[[Item], Shown]) -> "Page[Shown]":
        """Return the same page with the results of `show`."""
        return Page(tuple(map(show, self.items)), self.next)
