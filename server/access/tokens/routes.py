"""Tokens: make them, look at them, revoke them."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from server.access.tokens.principal import Scope
from server.access.tokens.repository import TokenRepository
from server.access.tokens.schemas import (
    PrincipalRead,
    SimulatorTokenCreate,
    TokenCreate,
    TokenCreated,
    TokenPage,
    TokenRead,
)
from server.access.tokens.service import Made, TokenService
from server.app.access import VisitDep, needs
from server.app.services import CommandDep, DatabaseDep, ServicesDep
from server.kit.db.database import Session
from server.kit.errors import ProjectForbidden, RunNotFound, TokenForRun, TokenNotFound
from server.kit.http import filters
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.kit.http.fields import RunKey
from server.kit.http.filters import EQUALITY, Field
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Order

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])
simulator_tokens = APIRouter(prefix="/v1/runs/{run:name}/simulator_tokens", tags=["tokens"])

TOKENS = ListForm(
    name="tokens",
    filters={
        "name": Field(filters.word),
        "project": Field(filters.word, EQUALITY),
        "run_id": Field(filters.word, EQUALITY),
        "created_at": Field(filters.time),
        "expires_at": Field(filters.time),
        "last_used_at": Field(filters.time),
        "revoked_at": Field(filters.time),
    },
    orders=frozenset({"created_at", "name"}),
    default=Order("created_at"),
)
CREATED = (ProjectForbidden, RunNotFound, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS)

TokenKey = Annotated[str, Path(max_length=40, pattern=r"^tok_[0-9a-z]+$", description="A token's id.")]


@router.post(
    "",
    status_code=201,
    response_model=TokenCreated,
    responses=problems(TokenForRun, *CREATED),
    openapi_extra=needs(Scope.ADMIN) | declare_json(TokenCreate),
)
def create_token(body: BodyDep, command: CommandDep, visit: VisitDep) -> Response:
    """Make a token. Its text is in this answer and nowhere else: also a repetition does not show it again."""
    wanted = body.read(TokenCreate, {})

    def create(session: Session) -> Answer:
        service = TokenService(session, visit.principal)
        return _made(
            service.create(
                wanted.name,
                wanted.scopes,
                project=wanted.project or visit.project,
                run=wanted.run,
                seconds=wanted.expires_in_seconds,
            )
        )

    return command.run(create)


@router.get("", response_model=TokenPage, responses=problems(*LIST_PROBLEMS), openapi_extra=needs(Scope.ADMIN))
def list_tokens(listing: ListingDep, database: DatabaseDep) -> TokenPage:
    """List the project's tokens, newest first, also those that expired or were revoked."""
    query = listing.query(TOKENS)
    with database.read() as session:
        page = TokenRepository(session).list(query)
        tokens = [TokenRead.model_validate(each) for each in page.items]
    return TokenPage(tokens=tokens, next_page_token=listing.token(TOKENS, page))


@router.get("/self", response_model=PrincipalRead, responses=problems(), openapi_extra=needs(None))
def get_own_token(visit: VisitDep) -> PrincipalRead:
    """Return who makes this request, and what it may do."""
    principal = visit.principal
    return PrincipalRead(
        name=principal.name,
        token_id=principal.token_id,
        scopes=sorted(principal.scopes),
        project=principal.project,
        acts_in=visit.project,
        run_id=principal.run_id,
    )


@router.get(
    "/{token:token}", response_model=TokenRead, responses=problems(TokenNotFound), openapi_extra=needs(Scope.ADMIN)
)
def get_token(token: TokenKey, database: DatabaseDep) -> TokenRead:
    """Return one token, without its secret."""
    with database.read() as session:
        return TokenRead.model_validate(TokenRepository(session).get(token))


@router.delete(
    "/{token:token}",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "It does not hold any more."}, **problems(TokenNotFound)},
    openapi_extra=needs(Scope.ADMIN),
)
def revoke_token(token: TokenKey, services: ServicesDep) -> Response:
    """Revoke a token. It stays in the list; other processes take it for up to 5 s more.

    What is open with it ends as soon.
    """
    with services.database.write() as session:
        TokenRepository(session).revoke(token)
    services.tokens.forget()
    services.vigil.hurry()
    return Response(status_code=204)


@simulator_tokens.post(
    "",
    status_code=201,
    response_model=TokenCreated,
    responses=problems(*CREATED),
    openapi_extra=declare_json(SimulatorTokenCreate),
)
def create_simulator_token(run: RunKey, body: BodyDep, command: CommandDep, visit: VisitDep) -> Response:
    """Make a token with which simulators can play in this run, and do nothing else."""
    wanted = body.read(SimulatorTokenCreate, {})

    def create(session: Session) -> Answer:
        made = TokenService(session, visit.principal).create(
            wanted.name, [Scope.SIMULATE], project=visit.project, run=run, seconds=wanted.expires_in_seconds
        )
        return _made(made)

    return command.run(create)


def _made(made: Made) -> Answer:
    token = TokenRead.model_validate(made.token)
    created = TokenCreated(**token.model_dump(), token=made.text)
    return Answer(201, created, f"/v1/tokens/{token.id}", secret="token")  # noqa: S106  a field's name
