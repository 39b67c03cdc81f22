"""The authenticated request: its principal and project; and the scope that a route declares."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.routing import APIRoute

from ludus.schemas.tokens import Scope
from server.kit.db.database import Session
from server.kit.db.projects import EVERY
from server.kit.db.texts import JsonObject
from server.kit.principal import Principal

NEED: Final = "x-ludus-scope"
NAMED_IN_QUERY: Final = "x-ludus-named-in-query"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_EVERYWHERE: Final = "everywhere"


@dataclass(frozen=True, slots=True)
class Need:
    """The permission that a route demands."""

    scope: Scope | None
    """None: any valid token."""
    everywhere: bool = False
    """The route concerns all projects."""


def needs(scope: Scope | None, *, everywhere: bool = False) -> JsonObject:
    """Declare the permission that a route demands, for its `openapi_extra`."""
    return {NEED: [scope or "", *([_EVERYWHERE] if everywhere else [])]}


def need_of(route: APIRoute) -> Need:
    """Return the permission that a route demands: `read` to GET and `run` for the rest, unless it declares another."""
    declared = (route.openapi_extra or {}).get(NEED)
    if declared is None:
        return Need(Scope.READ if (route.methods or set()) <= READING else Scope.RUN)
    scope, *everywhere = declared
    return Need(Scope(scope) if scope else None, bool(everywhere))


def named_in_query(kind: str, parameter: str) -> JsonObject:
    """Declare that a route has its runs in a parameter of the query, which may be repeated, for its `openapi_extra`.

    `kind` is what paths call one of them: `run`.
    """
    return {NAMED_IN_QUERY: [kind, parameter]}


def names_only(request: Request, parameter: str, id_: str) -> bool:
    """Whether a request is about this run or ladder alone: it names it by its id where its route has the parameter.

    In the path of a ladder, the id of a run stands for the ladder of its self-play.
    """
    route = request.scope["route"]
    kind, query_parameter = (route.openapi_extra or {}).get(NAMED_IN_QUERY, (None, ""))
    if kind == parameter:
        return set(request.query_params.getlist(query_parameter)) == {id_}
    parameters = ("run", "ladder") if parameter == "run" else ("ladder",)
    return any(request.path_params.get(name) == id_ for name in parameters)


@dataclass(frozen=True, slots=True)
class AuthenticatedRequest:
    """The principal of a request, and the project in which it acts."""

    principal: Principal
    project: str
    """`*`: all projects at once."""
    before_commit: Callable[[Session], None] | None = field(default=None, compare=False)
    """Runs inside each transaction of the request, before its commit: writes the audit entry."""

    @property
    def narrowed(self) -> str | None:
        """The project that the database is narrowed to; None: not narrowed."""
        return None if self.project == EVERY else self.project


def auth_of(request: Request) -> AuthenticatedRequest:
    """Return the request's principal and project, which the middleware has stored."""
    auth = request.state.auth
    assert isinstance(auth, AuthenticatedRequest)
    return auth


AuthDep = Annotated[AuthenticatedRequest, Depends(auth_of)]
