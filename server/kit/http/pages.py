"""Opaque page tokens: the keyset where the next page begins, bound to the query that it belongs to.

A token is base64url of a checksum and JSON. It holds nothing secret and grants nothing: the checksum tells a token that
was cut, edited or used with another filter or order from one that this server gave out, so that such a mistake is a
clear 400 and not a page of the wrong list. Anybody can compute it, so what a token holds is not trusted.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from hashlib import blake2s

from server.kit.http.errors import PageTokenInvalid
from server.kit.listing import Value

MAX_TOKEN_LENGTH = 5000
"""More than any row needs: names have 200 characters, of which each may take twelve bytes in JSON. And few enough that
a token of the strangest characters, quoted in an address, still fits what the HTTP server reads (64 KiB).
"""
_CHECK_BYTES = 8


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
