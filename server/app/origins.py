"""The origin of requests: which page, if any, has made them through a browser."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from server.kit.listening import LOOPBACK

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def is_local(headers: Headers) -> bool:
    """Whether a request names this machine as its host, and comes from one of its pages, or from none."""
    names: Iterable[str] = [f"http://{headers.get('host', 'localhost')}", *headers.getlist("origin")]
    return all((found := _authority(name)) is not None and found[0] in LOOPBACK for name in names)


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
    asked = [headers.get("host", "")]
    if proxied:
        asked.append(headers.get("x-forwarded-host", "").partition(",")[0].strip())
    scheme = origin.partition(":")[0]
    page = _authority(origin)
    return page is not None and page in [_authority(f"{scheme}://{host}") for host in asked]


def _authority(url: str) -> tuple[str, int | None] | None:
    """Return the host and the port of an address; None if it has none, as `null`, the origin of a sandboxed page."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return None if parts.hostname is None else (parts.hostname, port or _DEFAULT_PORTS.get(parts.scheme))
