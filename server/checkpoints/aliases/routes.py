"""Aliases: names of checkpoints that can be moved."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import Field as ModelField

from ludus import schemas
from server.checkpoints.aliases.models import CheckpointAlias
from server.checkpoints.aliases.repository import AliasRepository
from server.checkpoints.aliases.service import AliasService
from server.checkpoints.errors import AliasInvalid, AliasMoved, AliasNotFound
from server.kit.db.database import Session
from server.kit.db.keyset import by_name
from server.kit.errors import CheckpointDeleted, CheckpointNotFound, NameAmbiguous
from server.kit.http.auth import AuthDep
from server.kit.http.bodies import BodyDep
from server.kit.http.errors import deleted, problems
from server.kit.http.fields import Name, Write
from server.kit.http.idempotency import Answer, json_command
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.http.resources import resource
from server.kit.http.services import CommandDep, DatabaseDep, ServicesDep

router = APIRouter(prefix="/v1/aliases", tags=["aliases"])

ALIASES = ListForm(
    "aliases",
    schemas.Alias,
    by_name(CheckpointAlias.name, CheckpointAlias.checkpoint_id, CheckpointAlias.created_at, CheckpointAlias.moved_at),
    orders=("name", "moved_at", "created_at"),
    ascending=True,
    key=CheckpointAlias.key,
)
MOVES = ListForm(
    "alias_moves",
    schemas.AliasMove,
    AliasRepository.MOVE_COLUMNS,
    orders=("version",),
    items="moves",
)


class AliasPut(Write):
    """The checkpoint that an alias names."""

    checkpoint_id: Name = ModelField(description="A checkpoint of a run.")
    expected: Name | None = ModelField(
        default=None,
        description="Move it only if it stands for this checkpoint now; null: only if there is no such alias yet. Left "
        "out, it is moved whatever it stands for.",
    )


AliasKey = Annotated[Name, Path(description="The alias, as in `champion`.")]


@router.get("", response_model=ALIASES.page(), responses=problems(*LIST_PROBLEMS))
def list_aliases(listing: ListingDep) -> dict[str, Any]:
    """List aliases by name."""
    return listing.answer(ALIASES)


@router.get("/{alias:name}", responses=problems(AliasNotFound, NameAmbiguous))
def get_alias(alias: AliasKey, database: DatabaseDep) -> schemas.Alias:
    """Return one alias with its checkpoint."""
    with database.read() as session:
        return resource(schemas.Alias, AliasRepository(session).get(alias))


@router.get(
    "/{alias:name}/history",
    response_model=MOVES.page(),
    responses=problems(AliasNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def alias_history(alias: AliasKey, listing: ListingDep) -> dict[str, Any]:
    """List the moves of an alias, newest first, also of one that was deleted."""
    return listing.answer(MOVES, lambda session, query: AliasRepository(session).history(alias, query))


@router.put(
    "/{alias:name}",
    response_model=schemas.Alias,
    **json_command(AliasPut, AliasInvalid, AliasMoved, CheckpointNotFound, CheckpointDeleted),
)
def put_alias(alias: AliasKey, body: BodyDep, command: CommandDep, auth: AuthDep) -> Response:
    """Set an alias to a checkpoint; with `expected`, only if it has that checkpoint now."""
    wanted = body.read(AliasPut, {})
    compare = "expected" in wanted.model_fields_set

    def put(session: Session) -> Answer:
        aliases = AliasService(session, auth.principal.name)
        made = aliases.put(alias, wanted.checkpoint_id, compare=compare, expected=wanted.expected)
        return Answer(200, resource(schemas.Alias, made))

    return command.run(put)


@router.delete(
    "/{alias:name}",
    status_code=204,
    responses=deleted(AliasNotFound, NameAmbiguous, description="It is gone; the checkpoint stays."),
)
def delete_alias(alias: AliasKey, services: ServicesDep, auth: AuthDep) -> None:
    """Remove an alias. Retention may then remove the checkpoint."""
    with services.database.write() as session:
        AliasService(session, auth.principal.name).delete(alias)
