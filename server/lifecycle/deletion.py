"""The users of a run, and the rows of its deletion."""

from collections.abc import Iterator

from sqlalchemy import ColumnElement, and_, delete, or_, select, update

from server.checkpoints.models import Checkpoint, CheckpointAlias, RunInitialCheckpoint
from server.kit.db.base import Base
from server.kit.db.clock import now
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository, delete_some
from server.ladders.models import Ladder, LadderPlayer, RunLadder
from server.runs.events.repository import UNTRACKED
from server.runs.models import BEING_DELETED, DeletedRun, Run


class DeletionRepository(Repository):
    """Runs and their users, for deletion."""

    def is_deleted(self, run_id: str) -> bool:
        """Return whether a run of this id was deleted."""
        return self._session.scalar(select(DeletedRun.id).where(DeletedRun.id == run_id)) is not None

    def is_being_deleted(self, run_id: str) -> bool:
        """Return whether a run was deleted of which there still may be rows."""
        return self._session.scalar(BEING_DELETED.where(DeletedRun.id == run_id)) is not None

    def mark(self, run: Run) -> None:
        """Note that a locked run is deleted: from the commit on it is not found, nor are its checkpoints used."""
        clock = self.clock()  # one reading: `purge_at` beyond it means "for the second time"
        self._session.merge(DeletedRun(id=run.id, name=run.name, project=run.project, deleted_at=clock, purge_at=clock))
        self._session.flush()
        stored = update(Checkpoint).where(Checkpoint.run_id == run.id, Checkpoint.deleted_at.is_(None))
        self._session.execute(stored.values(deleted_at=now()), execution_options=UNTRACKED)
        rated = {"rated_through": Ladder.match_seq, "generation": Ladder.generation + 1}  # nothing of it is rated now
        self._session.execute(update(Ladder).where(Ladder.run_id == run.id).values(rated), execution_options=UNTRACKED)

    def unfinished(self, limit: int) -> list[str]:
        """Return ids of deleted runs that still have rows, those that were deleted first at the beginning."""
        query = select(DeletedRun.id).join(Run, Run.id == DeletedRun.id).where(DeletedRun.id.in_(BEING_DELETED))
        return list(self._session.scalars(query.order_by(DeletedRun.deleted_at).limit(limit)))

    def delete_rows(self, run_id: str, limit: int) -> int:
        """Delete at most `limit` rows of a deleted run, its own last; return how many. Fewer: none is left."""
        # Locked: who writes a row of the run meanwhile comes first, or finds that the run is gone.
        self._session.execute(select(Run.id).where(Run.id == run_id).with_for_update())
        remaining = limit
        for model, condition in _rows_of(run_id):
            remaining -= delete_some(self._session, model, remaining, condition)
            if remaining == 0:
                return limit
        self._session.execute(delete(Run).where(Run.id == run_id))
        return limit - remaining

    def users(self, run: Run) -> Iterator[str]:
        """Iterate over sentences that name what outside a locked run needs it, or keeps a part of it.

        Its checkpoints are locked: no run begins with one of them, and no alias names one, before the commit.
        """
        locked = select(Checkpoint.id, Checkpoint.pinned_at).where(Checkpoint.run_id == run.id).with_for_update()
        checkpoints_of_run = self._session.execute(locked.order_by(Checkpoint.id)).all()
        for row in checkpoints_of_run:
            if row.pinned_at is not None:
                yield f"checkpoint {row.id} is pinned"
        for part in parts([row.id for row in checkpoints_of_run]):
            aliases = select(CheckpointAlias.name, CheckpointAlias.checkpoint_id)
            for alias in self._session.execute(aliases.where(CheckpointAlias.checkpoint_id.in_(part))):
                yield f"the alias {alias.name} stands for its checkpoint {alias.checkpoint_id}"
            begun = (
                select(Run.id, Run.name, Run.kind, RunInitialCheckpoint.checkpoint_id)
                .join(RunInitialCheckpoint, RunInitialCheckpoint.run_id == Run.id)
                .where(RunInitialCheckpoint.checkpoint_id.in_(part), Run.id != run.id, Run.id.not_in(BEING_DELETED))
            )
            for user in self._session.execute(begun.order_by(Run.id)):
                verb = "judges" if user.kind in {"match", "evaluate"} else "began with"
                yield f"the {user.kind} run {user.id} ({user.name}) {verb} its checkpoint {user.checkpoint_id}"
            yield from self._ladders(run, LadderPlayer.checkpoint_id.in_(part))
        yield from self._ladders(run, LadderPlayer.run_id == run.id)
        joined = (
            select(RunLadder.run_id)
            .join(Ladder, Ladder.id == RunLadder.ladder_id)
            .where(Ladder.run_id == run.id, RunLadder.run_id != run.id, RunLadder.run_id.not_in(BEING_DELETED))
        )
        for other_id in self._session.scalars(joined):
            yield f"the run {other_id} plays on its ladder"

    def _ladders(self, run: Run, plays: ColumnElement[bool]) -> Iterator[str]:
        """Iterate over sentences that name the ladders but its own on which a policy of the run plays."""
        of_another = and_(Ladder.run_id != run.id, Ladder.run_id.not_in(BEING_DELETED))
        query = (
            select(Ladder.name, LadderPlayer.name.label("player"))
            .join(LadderPlayer, LadderPlayer.ladder_id == Ladder.id)
            .where(plays, or_(Ladder.run_id.is_(None), of_another))
            .order_by(Ladder.name, LadderPlayer.id)
        )
        for row in self._session.execute(query):
            yield f"{row.player} plays on the ladder {row.name}"


def _rows_of(run_id: str) -> Iterator[tuple[type[Base], ColumnElement[bool]]]:
    """Iterate over the models of the rows that go with a run, with the condition of its rows: referring ones first.

    Those are what a cascade would delete: what refers to the run, and what belongs to the run's own ladder. The
    participants of a match go with it.
    """
    models = {mapper.local_table: mapper.class_ for mapper in Base.registry.mappers}
    ladders = select(Ladder.id).where(Ladder.run_id == run_id)
    for table in reversed(Base.metadata.sorted_tables):
        conditions = []
        if "run_id" in table.c and table.c.run_id.references(Run.__table__.c.id):
            conditions.append(table.c.run_id == run_id)
        if "ladder_id" in table.c and table.c.ladder_id.references(Ladder.__table__.c.id):
            conditions.append(table.c.ladder_id.in_(ladders))
        if conditions:
            yield models[table], or_(*conditions)
