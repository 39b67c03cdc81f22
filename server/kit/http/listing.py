"""Lists over HTTP: `filter`, `order_by`, `page_size`, `page_token` become a `ListQuery`; the answer is a page.

A page token holds the keyset where the next page begins, bound to the query that it belongs to: base64url of a checksum
and JSON. It holds nothing secret and grants nothing: the checksum tells a token that was cut, edited or used with
another filter or order from one that this server gave out, so that such a mistake is a clear 400 and not a page of the
wrong list. Anybody can compute it, so what a token holds is not trusted.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from hashlib import blake2s
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import BaseModel
from pydantic import Field as ModelField

from server.kit.db.database import Session
from server.kit.db.keyset import Columns, Key, kind_of, select_all
from server.kit.db.texts import JsonObject
from server.kit.http.errors import FilterInvalid, OrderInvalid, PageTokenInvalid
from server.kit.http.filters import EQUALITY, MAX_LENGTH, READERS, Field, choice, flag, parse_filter, parse_order
from server.kit.http.resources import list_of, resource
from server.kit.http.services import DatabaseDep
from server.kit.listing import ListQuery, Order, Page, Value

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
MAX_TOKEN_LENGTH = 5000
"""More than any row needs: names have 200 characters, of which each may take twelve bytes in JSON. And few enough that
a token of the strangest characters, quoted in an address, still fits what the HTTP server reads (64 KiB).
"""
_CHECK_BYTES = 8

LIST_PROBLEMS = (FilterInvalid, OrderInvalid, PageTokenInvalid)
"""Problems of a request for a list."""


class ListPage(BaseModel):
    """Parent of all pages."""

    next_page_token: str = ModelField(
        default="", description="Ask for the next page with this as `page_token`; empty on the last page."
    )


@dataclass(frozen=True)
class ListForm:
    """A list of resources: its filters and orders."""

    name: str
    """Distinguishes the page tokens of different lists."""
    kind: type[Any]
    """A resource of `ludus.schemas`."""
    columns: Columns
    """The fields of the list. Numbers with a fraction are for sorting only."""
    orders: Sequence[str]
    """The fields by which the list can be sorted; the first one sorts it by default."""
    ascending: bool = False
    """The direction of the default order."""
    key: Key | None = None
    """Breaks ties between rows; not needed where a route fetches pages itself."""
    equality: Collection[str] = ()
    """The fields that are compared with = and != only, beside choices and truth values."""
    choices: Mapping[str, type[StrEnum]] = field(default_factory=dict)
    """The fields with a closed set of values."""
    items: str = ""
    """The field of a page that has the resources; `name` by default."""

    @cached_property
    def filters(self) -> Mapping[str, Field]:
        """The fields by which the list can be filtered, in the order of the columns."""
        filters = {}
        for name, column in self.columns.items():
            read = choice(self.choices[name]) if name in self.choices else READERS.get(kind_of(column))
            if read is not None:
                only_equal = name in {*self.equality, *self.choices} or read is flag
                filters[name] = Field(read, EQUALITY) if only_equal else Field(read)
        return filters

    def page(self, **fields: object) -> type[BaseModel]:
        """Return the model of a page, with further fields."""
        name = "".join(word.capitalize() for word in re.split("[-_]", self.name))
        return list_of(f"{name}Page", self.kind, self.items or self.name, ListPage, **fields)


class Paging:
    """The parameters of one request for a page of a list that has one order and no filter."""

    def __init__(
        self,
        page_size: Annotated[
            int,
            Query(
                ge=0,
                description=f"Maximum number of items; above {MAX_PAGE_SIZE}, the default, it is lowered to that.",
            ),
        ] = MAX_PAGE_SIZE,
        page_token: Annotated[
            str, Query(max_length=MAX_TOKEN_LENGTH, description="`next_page_token` of the page before.")
        ] = "",
    ) -> None:
        self.size = min(page_size or MAX_PAGE_SIZE, MAX_PAGE_SIZE)
        self._token = page_token

    def after(self, name: str) -> int:
        """Return the number after which the page of the list `name` begins. Raises PageTokenInvalid."""
        if not self._token:
            return 0
        (number,) = decode_token(self._token, name)
        if not isinstance(number, int) or not 0 <= number < 2**31:
            raise PageTokenInvalid
        return number

    def answer(self, name: str, items: Sequence[Any]) -> JsonObject:
        """Return a page of a list that only grows at its end, whose field is `name`. Raises PageTokenInvalid."""
        begin = self.after(name)
        end = begin + self.size
        return {name: items[begin:end], "next_page_token": next_token(name, end if len(items) > end else None)}


PagingDep = Annotated[Paging, Depends()]


def next_token(name: str, number: int | None) -> str:
    """Return the token of the page of the list `name` that begins after an item; empty if there is none."""
    return "" if number is None else encode_token([number], name)


class Listing:
    """One request for a list: its parameters, and the rows that it sees."""

    def __init__(
        self,
        database: DatabaseDep,
        filter: Annotated[  # noqa: A002  # AIP-160's word
            str,
            Query(max_length=MAX_LENGTH, description='Conditions joined by AND: `state = RUNNING AND tags = "ci"`.'),
        ] = "",
        order_by: Annotated[str, Query(max_length=100, description="A field, then `asc` or `desc`.")] = "",
        page_size: Annotated[
            int,
            Query(
                ge=0,
                description=f"Maximum number of items; above {MAX_PAGE_SIZE} it is lowered to that. 0 = the default.",
            ),
        ] = DEFAULT_PAGE_SIZE,
        page_token: Annotated[
            str, Query(max_length=MAX_TOKEN_LENGTH, description="`next_page_token` of the page before.")
        ] = "",
    ) -> None:
        self._database = database
        self._filter = filter
        self._order_by = order_by
        self._page_size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        self._page_token = page_token

    def answer(
        self,
        form: ListForm,
        fetch: Callable[[Session, ListQuery], Page[Any]] | None = None,
        bound: str = "",
    ) -> JsonObject:
        """Fetch a page in one transaction: of all rows of the form's model, or what `fetch` returns.

        The items of a page are resources, or rows from which resources are built. `bound` is text of the request that
        changes the order, too: a page token is valid with the same text only.
        Raises FilterInvalid, OrderInvalid, PageTokenInvalid.
        """
        words = [form.name, self._filter.strip(), self._order_by.split()]  # a page's size may change between pages
        text = json.dumps([*words, bound] if bound else words)
        query = ListQuery(
            parse_order(self._order_by, form.orders, Order(form.orders[0], descending=not form.ascending)),
            parse_filter(self._filter, form.filters),
            self._page_size,
            decode_token(self._page_token, text) if self._page_token else None,
        )
        with self._database.read() as session:
            if fetch is not None:
                page = fetch(session, query)
            else:
                assert form.key is not None, form.name
                page = select_all(session, query, form.columns, form.key)
            items = [item if isinstance(item, form.kind) else resource(form.kind, item) for item in page.items]
        token = "" if page.next is None else encode_token(page.next, text)
        return {form.items or form.name: items, "next_page_token": token}


ListingDep = Annotated[Listing, Depends()]


def encode_token(keyset: Sequence[Value], query: str) -> str:
    """Make the token of the page after `keyset`. `query` is the canonical text of what was asked (filter, order)."""
    body = json.dumps(list(keyset), separators=(",", ":")).encode()
    return _text(_check(body, query) + body)


def decode_token(token: str, query: str) -> tuple[Value, ...]:
    """Return the keyset of a token. Raises PageTokenInvalid when it isn't one, or belongs to another query."""
    if len(token) > MAX_TOKEN_LENGTH or not token.isascii():
        raise PageTokenInvalid
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise PageTokenInvalid from error
    if _text(raw) != token:  # base64 has several spellings of the same bytes
        raise PageTokenInvalid
    check, body = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
    if check != _check(body, query):
        raise PageTokenInvalid
    try:
        keyset = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PageTokenInvalid from error
    if not isinstance(keyset, list) or not all(isinstance(value, str | int | float | None) for value in keyset):
        raise PageTokenInvalid
    return tuple(keyset)


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _check(body: bytes, query: str) -> bytes:
    return blake2s(body + b"\x00" + query.encode(), digest_size=_CHECK_BYTES, person=b"ludus-pg").digest()
