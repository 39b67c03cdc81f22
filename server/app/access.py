"""Who makes a request, in which project, and whether it may: one decision for all routes.

A route says what it needs with `needs(...)` in its `openapi_extra`; one that says nothing needs `read` to GET and `run`
for everything else. `authorize` is a dependency of the whole application, so there is no route without a decision, and
the description (`/openapi.json`) says for each what it needs.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.types import Scope as AsgiScope

from server.access.audit.repository import AuditRepository, Deed
from server.access.tokens.principal import Principal, Scope
from server.app import documentation
from server.kit.db.database import Session, after_commit
from server.kit.db.projects import EVERY
from server.kit.errors import ProjectForbidden, ScopeMissing
from server.kit.http.errors import ProjectInvalid

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/version", "/openapi.json", *documentation.OPEN})
"""Answered without a token: probes have none, and the documentation is no secret."""
PROJECT_HEADER: Final = "Ludus-Project"
NEED: Final = "x-ludus-scope"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_EVERYWHERE: Final = "everywhere"
_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Need:
    """What a route needs."""

    scope: Scope | None
    """None: any token will do."""
    everywhere: bool = False
    """It concerns all projects."""


def needs(scope: Scope | None, *, everywhere: bool = False) -> dict[str, Any]:
    """Declare what a route needs, for its `openapi_extra`."""
    return {NEED: [scope or "", *([_EVERYWHERE] if everywhere else [])]}


def need_of(route: APIRoute) -> Need:
    """Return what a route needs."""
    declared = (route.openapi_extra or {}).get(NEED)
    if declared is None:
        return Need(Scope.READ if (route.methods or set()) <= READING else Scope.RUN)
    scope, *everywhere = declared
    return Need(Scope(scope) if scope else None, bool(everywhere))


class Trail:
    """The entry that a request leaves in the audit log: with what it changes, in the same transaction."""

    def __init__(self, scope: AsgiScope, principal: Principal) -> None:
        self._scope = scope
        self._principal = principal
        self.entered = False
        """Whether an entry is committed."""

    def before_commit(self, session: Session) -> None:
        """Enter the request with the status that it will be answered with."""
        if not self.entered:
            route = self._scope.get("route")
            self.enter(session, (route.status_code if isinstance(route, APIRoute) else None) or 200)
            after_commit(session, self._note)

    def enter(self, session: Session, status: int) -> None:
        """Enter the request."""
        client = self._scope.get("client")
        deed = Deed(
            actor=self._principal.name,
            token_id=self._principal.token_id,
            method=self._scope["method"],
            route=str(getattr(self._scope.get("route"), "path", "none")),
            target=self._scope["path"],
            request_id=self._scope["state"]["request_id"],
            client=client[0] if client else "",
        )
        AuditRepository(session).enter(deed, status)

    def _note(self) -> None:
        self.entered = True


@dataclass(frozen=True, slots=True)
class Visit:
    """One request: who makes it, in which project."""

    principal: Principal
    project: str
    """`*`: all of them at once."""
    trail: Trail | None = field(default=None, compare=False)
    """Of a request that may change something."""

    @property
    def narrowed(self) -> str | None:
        """What the database is narrowed to."""
        return None if self.project == EVERY else self.project

    @property
    def before_commit(self) -> Callable[[Session], None] | None:
        """What is added to its transactions."""
        return None if self.trail is None else self.trail.before_commit


def visit_by(principal: Principal, scope: AsgiScope, asked: str | None) -> Visit:
    """Return the visit that a request is, in the project that it asks for or in its principal's own.

    Raises ProjectInvalid, ProjectForbidden.
    """
    project = principal.home if asked is None else asked
    method = scope["method"]
    if project == EVERY:
        if method not in READING | {"DELETE"}:
            raise ProjectInvalid
    elif not _PROJECT.fullmatch(project):
        raise ProjectInvalid
    if not principal.sees(project):
        raise ProjectForbidden(project, principal.project)
    return Visit(principal, project, None if method in READING else Trail(scope, principal))


def visit_of(request: Request) -> Visit:
    """Return the visit that the request is."""
    visit = request.state.visit
    assert isinstance(visit, Visit)
    return visit


VisitDep = Annotated[Visit, Depends(visit_of)]


async def authorize(request: Request) -> None:
    """Let a request through to its route, or refuse it. Raises ScopeMissing."""
    if request.scope["path"] in OPEN_PATHS:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute), "every route of the API is one of FastAPI's"
    need = need_of(route)
    if need.scope is not None and not visit_of(request).principal.may(need.scope, everywhere=need.everywhere):
        raise ScopeMissing(need.scope, everywhere=need.everywhere)
