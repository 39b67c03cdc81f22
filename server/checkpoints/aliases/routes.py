"""Aliases: names of checkpoints that can be moved."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from server.app.services import CommandDep, DatabaseDep, ServicesDep
from server.checkpoints.aliases.repository import AliasRepository
from server.checkpoints.aliases.schemas import AliasPage, AliasPut, AliasRead
from server.checkpoints.aliases.service import AliasService
from server.kit.db.database import Session
from server.kit.errors import (
    AliasInvalid,
    AliasMoved,
    AliasNotFound,
    CheckpointDeleted,
    CheckpointNotFound,
    NameAmbiguous,
)
from server.kit.http import filters
from server.kit.http.bodies import BodyDep, declare_json
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.kit.http.fields import NAME
from server.kit.http.filters import Field
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Order

router = APIRouter(prefix="/v1/aliases", tags=["aliases"])

ALIASES = ListForm(
    name="aliases",
    filters={
        "name": Field(filters.word),
        "checkpoint_id": Field(filters.word),
        "created_at": Field(filters.time),
        "moved_at": Field(filters.time),
    },
    orders=frozenset({"name", "moved_at", "created_at"}),
    default=Order("name", descending=False),
)

AliasKey = Annotated[str, Path(max_length=200, pattern=NAME, description="The alias, as in `champion`.")]


@router.get("", response_model=AliasPage, responses=problems(*LIST_PROBLEMS))
def list_aliases(listing: ListingDep, database: DatabaseDep) -> AliasPage:
    """List aliases by name."""
    query = listing.query(ALIASES)
    with database.read() as session:
        page = AliasRepository(session).list(query)
        found = [AliasRead.model_validate(each) for each in page.items]
    return AliasPage(aliases=found, next_page_token=listing.token(ALIASES, page))


@router.get("/{alias:name}", response_model=AliasRead, responses=problems(AliasNotFound, NameAmbiguous))
def get_alias(alias: AliasKey, database: DatabaseDep) -> AliasRead:
    """Return one alias: which checkpoint it stands for."""
    with database.read() as session:
        return AliasRead.model_validate(AliasRepository(session).get(alias))


@router.put(
    "/{alias:name}",
    response_model=AliasRead,
    responses=problems(
        AliasInvalid,
        AliasMoved,
        CheckpointNotFound,
        CheckpointDeleted,
        UnsupportedMediaType,
        BodyInvalid,
        *COMMAND_PROBLEMS,
    ),
    openapi_extra=declare_json(AliasPut),
)
def put_alias(alias: AliasKey, body: BodyDep, command: CommandDep) -> Response:
    """Let an alias stand for a checkpoint; with `expected`, only if it stands for that one now."""
    wanted = body.read(AliasPut, {})
    compare = "expected" in wanted.model_fields_set

    def put(session: Session) -> Answer:
        made = AliasService(session).put(alias, wanted.checkpoint_id, compare=compare, expected=wanted.expected)
        return Answer(200, AliasRead.model_validate(made))

    return command.run(put)


@router.delete(
    "/{alias:name}",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "It is gone; the checkpoint stays."}, **problems(AliasNotFound, NameAmbiguous)},
)
def delete_alias(alias: AliasKey, services: ServicesDep) -> Response:
    """Remove an alias. Retention may then remove the checkpoint."""
    with services.database.write() as session:
        AliasService(session).delete(alias)
    return Response(status_code=204)
