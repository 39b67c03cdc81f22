"""Aliases of checkpoints in the database."""

from collections.abc import Collection
from typing import ClassVar

from sqlalchemy import select

from server.checkpoints.aliases.models import CheckpointAlias
from server.checkpoints.errors import AliasNotFound
from server.checkpoints.models import Checkpoint
from server.kit.db.clock import now
from server.kit.db.keyset import Columns, select_page
from server.kit.db.projects import DEFAULT, project_of
from server.kit.db.repository import Repository, upsert
from server.kit.errors import CheckpointNotFound, NameAmbiguous
from server.kit.listing import ListQuery, Page


class AliasRepository(Repository):
    """Aliases of the session's project, or of all of them where it has none."""

    COLUMNS: ClassVar[Columns] = {
        "name": CheckpointAlias.name,
        "checkpoint_id": CheckpointAlias.checkpoint_id,
        "created_at": CheckpointAlias.created_at,
        "moved_at": CheckpointAlias.moved_at,
    }

    def get(self, name: str) -> CheckpointAlias:
        """Return one alias. Raises AliasNotFound; NameAmbiguous if the session sees several projects that have it."""
        found = self._session.scalars(select(CheckpointAlias).where(CheckpointAlias.name == name)).all()
        if not found:
            raise AliasNotFound(name)
        if len(found) > 1:
            raise NameAmbiguous("alias", name, dict.fromkeys(each.project for each in found))
        return found[0]

    def lock(self, name: str) -> CheckpointAlias | None:
        """Return an alias, locked until the commit; None if there is none."""
        same = (CheckpointAlias.name == name, CheckpointAlias.project == self._project)
        return self._locked(select(CheckpointAlias).where(*same))

    def list(self, query: ListQuery) -> Page[CheckpointAlias]:
        """Return a page of aliases."""
        return select_page(self._session, select(CheckpointAlias), query, self.COLUMNS, CheckpointAlias.key)

    def named(self, checkpoints: Collection[str]) -> set[str]:
        """Return those of these checkpoints that an alias stands for."""
        query = select(CheckpointAlias.checkpoint_id).where(CheckpointAlias.checkpoint_id.in_(checkpoints))
        return set(self._session.scalars(query))

    def checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """Return a run's checkpoint that retention leaves alone until the commit. Raises CheckpointNotFound."""
        found = self._locked(select(Checkpoint).where(Checkpoint.id == checkpoint_id))
        if found is None:
            raise CheckpointNotFound(checkpoint_id)
        return found

    def insert(self, name: str, checkpoint_id: str) -> CheckpointAlias | None:
        """Insert an alias; return None if another transaction has just inserted it."""
        values = upsert(self._session, CheckpointAlias).values(
            name=name,
            project=self._project,
            checkpoint_id=checkpoint_id,
            version=1,
            created_at=now(),
            moved_at=now(),
        )
        key = [CheckpointAlias.name, CheckpointAlias.project]
        made = values.on_conflict_do_nothing(index_elements=key).returning(CheckpointAlias.name)
        return None if self._session.scalar(made) is None else self.get(name)

    def move(self, alias: CheckpointAlias, checkpoint_id: str) -> CheckpointAlias:
        """Set a locked alias to another checkpoint."""
        alias.checkpoint_id = checkpoint_id
        alias.version += 1
        alias.moved_at = now()
        return self.save(alias)

    def delete(self, alias: CheckpointAlias) -> None:
        """Remove an alias; the checkpoint stays."""
        self._session.delete(alias)
        self._session.flush()

    @property
    def _project(self) -> str:
        """Return the project of new aliases."""
        return project_of(self._session) or DEFAULT
