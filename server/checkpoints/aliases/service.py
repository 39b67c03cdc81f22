"""Commands on aliases: set one if it still has the expected checkpoint; remove one."""

from typing import Final

from server.checkpoints.aliases.models import CheckpointAlias
from server.checkpoints.aliases.repository import AliasRepository
from server.checkpoints.errors import AliasInvalid, AliasMoved
from server.kit.db.database import Session
from server.kit.errors import CheckpointDeleted

RESERVED: Final = frozenset({"latest", "best"})
"""Names that already mean a checkpoint of a run."""
ID_PREFIX: Final = "ckpt_"


class AliasService:
    """Commands on aliases, within the caller's transaction. Each move leaves a row in the alias's history."""

    def __init__(self, session: Session, actor: str) -> None:
        """`actor` is the name of the principal that moves them."""
        self._aliases = AliasRepository(session)
        self._actor = actor

    def put(self, name: str, checkpoint_id: str, *, compare: bool, expected: str | None) -> CheckpointAlias:
        """Set an alias to a checkpoint of a run; setting it to its present checkpoint changes nothing.

        With `compare` only if it stands for `expected` now (None: for nothing). Raises AliasInvalid, AliasMoved,
        CheckpointNotFound, CheckpointDeleted.
        """
        if name in RESERVED or name.startswith(ID_PREFIX):
            raise AliasInvalid(name)
        checkpoint = self._aliases.checkpoint(checkpoint_id)
        if checkpoint.deleted_at is not None:
            raise CheckpointDeleted(checkpoint_id)
        alias = self._aliases.lock(name)
        if alias is None and not (compare and expected is not None):
            made = self._aliases.insert(name, checkpoint_id, self._actor)
            if made is not None:
                return made
            alias = self._aliases.lock(name)
        stands = None if alias is None else alias.checkpoint_id
        if alias is None or (compare and stands not in {expected, checkpoint_id}):
            raise AliasMoved(name, expected, stands)
        return alias if stands == checkpoint_id else self._aliases.move(alias, checkpoint_id, self._actor)

    def delete(self, name: str) -> None:
        """Remove a name. Raises AliasNotFound, NameAmbiguous."""
        self._aliases.delete(self._aliases.get(name, lock=True), self._actor)
