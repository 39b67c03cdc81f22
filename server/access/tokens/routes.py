"""Tokens: make them, look at them, revoke them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response

from ludus import schemas
from ludus.schemas.tokens import Scope
from ludus.validation import Form
from server.access.sessions.checker import SessionChecker
from server.access.tokens.checker import TokenChecker
from server.access.tokens.errors import TokenForLadder, TokenForRun, TokenNotFound
from server.access.tokens.repository import TokenRepository
from server.access.tokens.requests import SimulatorTokenCreate, TokenCreate
from server.access.tokens.service import Made, TokenService
from server.kit.db.database import Session
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
from server.ladders.errors import LadderNotFound

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
    wanted = body.read(TokenCreate, {})

    def create(session: Session) -> Answer:
        service = TokenService(session, auth.principal)
        return _made(
            service.create(
                wanted.name,
                wanted.scopes,
                project=wanted.project or auth.project,
                run=wanted.run,
                ladder=wanted.ladder,
                seconds=wanted.expires_in_seconds,
            )
        )

    return command.run(create)


@router.get("", response_model=TOKENS.page(), responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN))
def list_tokens(listing: ListingDep) -> dict[str, Any]:
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
    wanted = body.read(SimulatorTokenCreate, {})

    def create(session: Session) -> Answer:
        made = TokenService(session, auth.principal).create(
            wanted.name, [Scope.SIMULATE], project=auth.project, run=run, seconds=wanted.expires_in_seconds
        )
        return _made(made)

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
