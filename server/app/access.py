"""Authorization: one decision for all routes; and the audit entry of a request.

A route declares the permission that it demands with `needs(...)` in its `openapi_extra`; the default is `read` to GET
and `run` for the rest. `authorize` is a dependency of the whole application, so no route is without a decision, and the
description (`/openapi.json`) says for each which permission it demands. A token that is bound to a run or a ladder is
accepted where the path has this one's id, or where the query does that the route declares (`named_in_query`).
"""

import re
from typing import Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import Scope as AsgiScope

from server.access.models import AuditEntry
from server.app import documentation
from server.kit.db.clock import now
from server.kit.db.database import Session, after_commit
from server.kit.db.ids import new_id
from server.kit.db.projects import EVERY, PROJECT
from server.kit.db.texts import storable
from server.kit.errors import ProjectForbidden, ScopeMissing
from server.kit.http.auth import READING, AuthenticatedRequest, auth_of, names_only, need_of
from server.kit.http.errors import ProjectInvalid, TokenBound
from server.kit.http.problems import PROBLEM_PATH
from server.kit.principal import Principal
from server.web.pages import is_page

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/version", "/openapi.json", *documentation.OPEN})
"""Answered without a token: probes have none, and the documentation is no secret. Neither do pages need one."""
SESSION_PATH: Final = "/ui/session"
PROJECT_HEADER: Final = "Ludus-Project"
_PRIVATE: Final = re.compile(r"/v1/runs/[^/]+/recordings/[^/]+/(file|frames)")
"""Paths of what players did and saw: reading it is noted."""


class RequestAudit:
    """The entry of a request in the audit log, written in the transaction that changes something."""

    def __init__(self, scope: AsgiScope, principal: Principal) -> None:
        self._scope = scope
        self._principal = principal
        self.entered = False
        """Whether an entry is committed."""

    def before_commit(self, session: Session) -> None:
        """Enter the request with the status of its answer."""
        if not self.entered:
            route = self._scope.get("route")
            self.enter(session, (route.status_code if isinstance(route, APIRoute) else None) or 200)
            after_commit(session, self._note)

    def enter(self, session: Session, status: int) -> None:
        """Enter the request."""
        session.add(
            AuditEntry(
                id=new_id("aud"),
                at=now(),
                actor=storable(self._principal.name, 200),
                token_id=self._principal.token_id,
                method=self._scope["method"],
                route=storable(str(getattr(self._scope.get("route"), "path", "none")), 200),
                target=storable(self._scope["path"], 2000),
                request_id=self._scope["state"]["request_id"],
                status=status,
                client=storable(address_of(self._scope), 64),
            )
        )

    def _note(self) -> None:
        self.entered = True


def address_of(scope: AsgiScope) -> str:
    """Return the address of a request's client; empty if it is not known, as on a socket of the file system."""
    client = scope.get("client")
    return client[0] if client else ""


def authenticated(
    principal: Principal, scope: AsgiScope, asked: str | None
) -> tuple[AuthenticatedRequest, RequestAudit | None]:
    """Return a principal's request in the project that it asks for (None: the principal's own), and its audit entry.

    A request that only reads has no audit entry, unless it reads what players did and saw. Raises
    ProjectInvalid, ProjectForbidden.
    """
    project = principal.home if asked is None else asked
    method = scope["method"]
    if project == EVERY:
        if method not in READING | {"DELETE"}:
            raise ProjectInvalid
    elif not re.fullmatch(PROJECT, project):
        raise ProjectInvalid
    if not principal.sees(project):
        raise ProjectForbidden(project, principal.project)
    silent = method in READING and _PRIVATE.fullmatch(scope["path"]) is None
    entry = None if silent else RequestAudit(scope, principal)
    return AuthenticatedRequest(principal, project, None if entry is None else entry.before_commit), entry


def is_open(scope: AsgiScope) -> bool:
    """Whether a request is answered without a token, or brings it in its body."""
    if scope["path"] == SESSION_PATH:
        return is_sign_in(scope)
    return scope["path"] in OPEN_PATHS or scope["path"].startswith(PROBLEM_PATH) or is_page(scope["path"])


def is_sign_in(scope: AsgiScope) -> bool:
    """Whether a request makes a session of a browser."""
    return bool(scope["path"] == SESSION_PATH and scope["method"] == "POST")


async def authorize(request: Request) -> None:
    """Pass a request on to its route, or refuse it. Raises ScopeMissing, TokenBound."""
    if is_open(request.scope):
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute), "every route of the API is one of FastAPI's"
    need = need_of(route)
    if need.scope is None:
        return
    principal = auth_of(request).principal
    if not principal.may(need.scope, everywhere=need.everywhere):
        raise ScopeMissing(need.scope, everywhere=need.everywhere)
    if principal.binding is not None and not names_only(request, *principal.binding):
        raise TokenBound(*principal.binding)
