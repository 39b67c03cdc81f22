"""Headers that only browsers send: the session's cookie, and the origin of the page that made the request."""

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import Scope

from server.kit.listening import LOOPBACK

COOKIE: Final = "ludus_session"
SECURE_PREFIX: Final = "__Host-"
"""Over https the name begins so: browsers then take the cookie from this very host alone, over https alone."""


def read_cookie(headers: Headers, scope: Scope) -> str | None:
    """Return the value of a request's cookie; None if it has none."""
    return cookie_parser(headers.get("cookie", "")).get(_name(scope)) or None


def set_cookie(response: Response, scope: Scope, value: str, seconds: float) -> None:
    """Set how many seconds the browser keeps the cookie. 0 deletes the cookie."""
    response.set_cookie(
        _name(scope),
        value,
        max_age=int(seconds),
        path="/",
        secure=_is_secure(scope),
        httponly=True,
        samesite="strict",
    )


def _name(scope: Scope) -> str:
    return f"{SECURE_PREFIX}{COOKIE}" if _is_secure(scope) else COOKIE


def _is_secure(scope: Scope) -> bool:
    """Whether the browser speaks https, with this server or with the reverse proxy in front of it."""
    return bool(scope["scheme"] == "https")


def is_local(headers: Headers) -> bool:
    """Whether a request names this machine as its host, and comes from one of its pages, or from none."""
    authorities = map(_authority, [f"http://{headers.get('host', 'localhost')}", *headers.getlist("origin")])
    return all(authority is not None and authority[0] in LOOPBACK for authority in authorities)


def is_same_origin(headers: Headers, *, proxied: bool) -> bool:
    """Whether a request comes from a page of this server, as the browser says. False if no browser says so.

    `proxied`: a reverse proxy may say in X-Forwarded-Host which host the browser has asked. Without a proxy in front a
    client could send this header itself, but not a page of another origin: browsers ask the server first whether such a
    page may send it, and this server never answers that.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin", "")  # older browsers, and any browser where the server has no TLS
    hosts = [headers.get("host", "")]
    if proxied:
        hosts.append(headers.get("x-forwarded-host", "").partition(",")[0].strip())
    scheme = origin.partition(":")[0]
    page = _authority(origin)
    return page is not None and page in [_authority(f"{scheme}://{host}") for host in hosts]


def _authority(url: str) -> tuple[str, int | None] | None:
    """Return the host and the port of an address; None if it has none, as `null`, the origin of a sandboxed page."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return None if parts.hostname is None else (parts.hostname, port or {"http": 80, "https": 443}.get(parts.scheme))
