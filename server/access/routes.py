"""Tokens over HTTP: make them, look at them, revoke them; and the audit log."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from ludus import schemas
from ludus.schemas.tokens import Scope
from ludus.validation import Form
from server.access.checker import SessionChecker, TokenChecker
from server.access.models import AuditEntry
from server.access.repository import TokenForLadder, TokenForRun, TokenNotFound, TokenRepository
from server.access.service import Made, SimulatorTokenCreate, TokenCreate, TokenService
from server.kit.db.database import Session
from server.kit.db.keyset import by_name
from server.kit.errors import NameAmbiguous, ProjectForbidden, RunNotFound
from server.kit.http.auth import AuthDep, AuthenticatedRequest, needs
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import deleted, problems
from server.kit.http.idempotency import BODY_PROBLEMS, Answer, json_command
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.parameters import RunKey
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, DatabaseDep, shared
from server.kit.token_watcher import TokenWatcher
from server.ladders.refs import LadderNotFound

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])
simulator_tokens = APIRouter(prefix="/v1/runs/{run:name}/simulator_tokens", tags=["tokens"])

TOKENS = ListForm(
    "tokens",
    schemas.Token,
    TokenRepository.COLUMNS,
    orders=("created_at", "name"),
    equality={"project", "run_id", "ladder_id"},
)

TokensDep = Annotated[TokenChecker, Depends(shared(TokenChecker))]
SessionsDep = Annotated[SessionChecker, Depends(shared(SessionChecker))]
WatcherDep = Annotated[TokenWatcher, Depends(shared(TokenWatcher))]
TokenKey = Annotated[
    str, Form("the id of a token (tok_...)", r"^tok_[0-9a-z]+$"), Path(max_length=40, description="A token's id.")
]


@router.post(
    "",
    status_code=201,
    response_model=schemas.NewToken,
    responses=problems(
        TokenForRun, TokenForLadder, ProjectForbidden, RunNotFound, LadderNotFound, NameAmbiguous, *BODY_PROBLEMS
    ),
    openapi_extra=needs(Scope.ADMIN) | declare_json(TokenCreate),
)
def create_token(body: BodyDep, command: CommandDep, auth: AuthDep) -> Response:
    """Make a token. Its text is in this answer and nowhere else: also a repetition does not show it again."""
    new = body.read(TokenCreate, {})

    def create(session: Session) -> Answer:
        service = TokenService(session, auth.principal)
        return _made(
            service.create(
                new.name,
                new.scopes,
                project=new.project or auth.project,
                run=new.run,
                ladder=new.ladder,
                seconds=new.expires_in_seconds,
            )
        )

    return command.run(create)


@router.get("", response_model=TOKENS.page(), responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN))
def list_tokens(listing: ListingDep) -> dict[str, object]:
    """List the project's tokens, newest first, also those that expired or were revoked."""
    return listing.answer(TOKENS, lambda session, query: TokenRepository(session).list(query))


@router.get("/self", responses=problems(), openapi_extra=needs(None))
def get_own_token(auth: AuthDep) -> schemas.Identity:
    """Return the token of this request and its rights."""
    return identity_of(auth)


@router.get("/{token:token}", responses=problems(TokenNotFound), openapi_extra=needs(Scope.ADMIN))
def get_token(token: TokenKey, database: DatabaseDep) -> schemas.Token:
    """Return one token, without its secret."""
    with database.read() as session:
        return resource(schemas.Token, TokenRepository(session).get(token))


@router.delete(
    "/{token:token}",
    status_code=204,
    responses=deleted(TokenNotFound, description="It does not hold any more."),
    openapi_extra=needs(Scope.ADMIN),
)
def revoke_token(
    token: TokenKey, database: DatabaseDep, tokens: TokensDep, sessions: SessionsDep, watcher: WatcherDep
) -> None:
    """Revoke a token. It stays in the list; other processes take it for up to 5 s more.

    Open requests with it end as soon, and so do the sessions of browsers that were made with it.
    """
    with database.write() as session:
        TokenRepository(session).revoke(token)
    tokens.forget()
    sessions.forget()
    watcher.hurry()


@simulator_tokens.post(
    "",
    status_code=201,
    response_model=schemas.NewToken,
    **json_command(SimulatorTokenCreate, ProjectForbidden, RunNotFound),
)
def create_simulator_token(run: RunKey, body: BodyDep, command: CommandDep, auth: AuthDep) -> Response:
    """Make a token with which simulators can play in this run, and do nothing else."""
    new = body.read(SimulatorTokenCreate, {})

    def create(session: Session) -> Answer:
        created = TokenService(session, auth.principal).create(
            new.name, [Scope.SIMULATE], project=auth.project, run=run, seconds=new.expires_in_seconds
        )
        return _made(created)

    return command.run(create)


def identity_of(auth: AuthenticatedRequest) -> schemas.Identity:
    """Return who makes a request, and with which rights."""
    principal = auth.principal
    return schemas.Identity(
        name=principal.name,
        token_id=principal.token_id,
        scopes=tuple(sorted(principal.scopes)),
        project=principal.project,
        acts_in=auth.project,
        run_id=principal.run_id,
        ladder_id=principal.ladder_id,
    )


def _made(made: Made) -> Answer:
    created = resource(schemas.NewToken, made.token, token=made.text)
    return Answer(201, created, f"/v1/tokens/{created.id}", secret="token")  # noqa: S106  a field's name


audit_log = APIRouter(prefix="/v1/audit", tags=["audit"])

AUDIT = ListForm(
    "audit",
    schemas.AuditEntry,
    by_name(
        AuditEntry.at,
        AuditEntry.actor,
        AuditEntry.token_id,
        AuditEntry.project,
        AuditEntry.method,
        AuditEntry.route,
        AuditEntry.target,
        AuditEntry.request_id,
        AuditEntry.status,
        AuditEntry.client,
    ),
    orders=("at",),
    key=AuditEntry.id,
    equality={"token_id", "project", "method", "request_id"},
    items="entries",
)


@audit_log.get("", response_model=AUDIT.page(), responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN))
def list_audit(listing: ListingDep) -> dict[str, object]:
    """List the requests that changed something in the project, or tried to, newest first."""
    return listing.answer(AUDIT)
