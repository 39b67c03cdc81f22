"""The cookie of a browser's session."""

from typing import Final

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import Scope

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
