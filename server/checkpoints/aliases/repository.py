"""Aliases of checkpoints in the database."""

from collections.abc import Collection, Iterable

from sqlalchemy import func, select

from server.checkpoints.aliases.models import AliasMove, CheckpointAlias
from server.checkpoints.errors import AliasNotFound
from server.checkpoints.models import Checkpoint
from server.kit.db.clock import now
from server.kit.db.keyset import by_name, select_page
from server.kit.db.projects import DEFAULT, project_of
from server.kit.db.repository import Repository, upsert
from server.kit.db.texts import storable
from server.kit.errors import CheckpointNotFound, NameAmbiguous
from server.kit.listing import ListQuery, Page


class AliasRepository(Repository):
    """Aliases of the session's project, or of all of them where it has none."""

    MOVE_COLUMNS = by_name(AliasMove.version, AliasMove.checkpoint_id, AliasMove.moved_at, AliasMove.moved_by)

    def get(self, name: str, *, lock: bool = False) -> CheckpointAlias:
        """Return one alias, with `lock` locked until the commit.

        Raises AliasNotFound; NameAmbiguous if the session sees several projects that have it.
        """
        query = select(CheckpointAlias).where(CheckpointAlias.name == name)
        found = self._session.scalars(query.with_for_update() if lock else query).all()
        if not found:
            raise AliasNotFound(name)
        _check_one(name, [each.project for each in found])
        return found[0]

    def lock(self, name: str) -> CheckpointAlias | None:
        """Return an alias, locked until the commit; None if there is none."""
        same = (CheckpointAlias.name == name, CheckpointAlias.project == self._project)
        return self._locked(select(CheckpointAlias).where(*same))

    def history(self, name: str, query: ListQuery) -> Page[AliasMove]:
        """Return a page of the moves of an alias, also of one that was deleted.

        Raises AliasNotFound; NameAmbiguous if the session sees several projects that have, or had, the alias.
        """
        moves = select(AliasMove).where(AliasMove.alias == name)
        projects = self._session.scalars(moves.with_only_columns(AliasMove.project).distinct()).all()
        if not projects:
            self.get(name)  # one of the previous release, which keeps no history
        _check_one(name, projects)
        return select_page(self._session, moves, query, self.MOVE_COLUMNS, AliasMove.version)

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

    def insert(self, name: str, checkpoint_id: str, by: str) -> CheckpointAlias | None:
        """Insert an alias on behalf of a principal; return None if another transaction has just inserted it."""
        values = upsert(self._session, CheckpointAlias).values(
            name=name,
            project=self._project,
            checkpoint_id=checkpoint_id,
            version=0,
            created_at=now(),
            moved_at=now(),
        )
        key = [CheckpointAlias.name, CheckpointAlias.project]
        made = values.on_conflict_do_nothing(index_elements=key).returning(CheckpointAlias.name)
        return None if self._session.scalar(made) is None else self.move(self.get(name), checkpoint_id, by)

    def move(self, alias: CheckpointAlias, checkpoint_id: str, by: str) -> CheckpointAlias:
        """Set a locked alias to another checkpoint."""
        alias.checkpoint_id = checkpoint_id
        alias.moved_at = self.clock()
        alias.version = self._record(alias, checkpoint_id, alias.moved_at, by)
        return self.save(alias)

    def delete(self, alias: CheckpointAlias, by: str) -> None:
        """Remove a locked alias; the checkpoint stays."""
        self._record(alias, None, self.clock(), by)
        self._session.delete(alias)
        self._session.flush()

    def _record(self, alias: CheckpointAlias, checkpoint_id: str | None, at: float, by: str) -> int:
        """Record a move of a locked alias; return its version.

        The alias's own version may lie below its newest move's (it was deleted and set again), or above it (the
        previous release moved it, and recorded nothing).
        """
        same = (AliasMove.alias == alias.name, AliasMove.project == alias.project)
        newest = self._session.scalar(select(func.max(AliasMove.version)).where(*same)) or 0
        move = AliasMove(
            alias=alias.name,
            project=alias.project,
            version=max(newest, alias.version) + 1,
            checkpoint_id=checkpoint_id,
            moved_at=at,
            moved_by=storable(by, 200),
        )
        self._session.add(move)
        self._session.flush()
        return move.version

    @property
    def _project(self) -> str:
        """Return the project of new aliases."""
        return project_of(self._session) or DEFAULT


def _check_one(name: str, projects: Iterable[str]) -> None:
    """Raise NameAmbiguous if several projects have an alias."""
    distinct = dict.fromkeys(projects)
    if len(distinct) > 1:
        raise NameAmbiguous("alias", name, distinct)
