"""Sessions of browsers over HTTP: sign in with a token, see who one is, sign out.

Here and not beside the sessions, because signing in is authentication: it limits failures and makes the audit entry of
the principal that it finds.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from ludus import schemas
from server.access.checker import FailedAttempts, SessionChecker, TokenChecker
from server.access.repository import SessionRepository
from server.access.routes import identity_of
from server.access.secrets import SessionCookie
from server.access.service import SessionCreate, open_session
from server.app.access import SESSION_PATH, RequestAudit, address_of
from server.app.browsers import read_cookie, set_cookie
from server.kit.errors import ProjectForbidden
from server.kit.http.auth import AuthDep, AuthenticatedRequest, needs
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, deleted, problems
from server.kit.http.services import DatabaseDep, ServicesDep, shared
from server.kit.token_watcher import TokenWatcher

router = APIRouter(prefix=SESSION_PATH, tags=["sessions"])

SessionsDep = Annotated[SessionChecker, Depends(shared(SessionChecker))]


@router.post(
    "",
    responses=problems(ProjectForbidden, UnsupportedMediaType, BodyInvalid),
    openapi_extra=needs(None) | declare_json(SessionCreate),
)
def sign_in(
    request: Request,
    response: Response,
    body: BodyDep,
    services: ServicesDep,
    tokens: Annotated[TokenChecker, Depends(shared(TokenChecker))],
    attempts: Annotated[FailedAttempts, Depends(shared(FailedAttempts))],
) -> schemas.Identity:
    """Make a session of a token, for browsers: the answer has a cookie that stands for the token.

    Only the server's own pages can do this.
    """
    request_body = body.read(SessionCreate, {})
    principal = attempts.check(tokens, request_body.token.get_secret_value(), address_of(request.scope))
    project = request_body.project or principal.home
    if not principal.sees(project):
        raise ProjectForbidden(project, principal.project)
    audit = RequestAudit(request.scope, principal)
    auth = AuthenticatedRequest(principal, project, audit.before_commit)
    settings = services.settings.api
    configured = None if settings.token is None else settings.token.get_secret_value()
    former = SessionCookie.parse(read_cookie(request.headers, request.scope) or "")
    with services.database.within(auth.narrowed, auth.before_commit).write() as session:
        if former is not None:
            SessionRepository(session).end(former.session_id, former.digest)
        cookie, seconds = open_session(session, principal, project, configured)
    set_cookie(response, request.scope, cookie.text, seconds)
    return identity_of(auth)


@router.get("", responses=problems(), openapi_extra=needs(None))
def get_session(auth: AuthDep) -> schemas.Identity:
    """Return whose session, or token, this request has, and its rights."""
    return identity_of(auth)


@router.delete(
    "",
    status_code=204,
    responses=deleted(description="The session has ended, and with it the requests that are open with it."),
    openapi_extra=needs(None),
)
def sign_out(
    request: Request,
    auth: AuthDep,
    database: DatabaseDep,
    sessions: SessionsDep,
    watcher: Annotated[TokenWatcher, Depends(shared(TokenWatcher))],
) -> Response:
    """End the session of this request, and let the browser forget its cookie and what it has cached."""
    if auth.principal.session_id is not None:
        with database.write() as session:
            SessionRepository(session).end(auth.principal.session_id)
        sessions.forget()
        watcher.hurry()
    response = Response(status_code=204, headers={"Clear-Site-Data": '"cache"'})
    set_cookie(response, request.scope, "", 0)
    return response
