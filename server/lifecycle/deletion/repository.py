"""The users of a run, and the rows of its deletion."""

from collections.abc import Iterator, Sequence

from sqlalchemy import ColumnElement, delete, or_, select

from server.checkpoints.aliases.models import CheckpointAlias
from server.checkpoints.models import Checkpoint, RunInitialCheckpoint
from server.kit.db.keyset import parts
from server.kit.db.repository import Repository
from server.ladders.models import Ladder, LadderPlayer, RunLadder
from server.runs.models import DeletedRun, Run
from server.webhooks.models import WebhookCursor


class DeletionRepository(Repository):
    """Runs and their users, for deletion."""

    def is_deleted(self, run_id: str) -> bool:
        """Return whether a run of this id was deleted."""
        return self._session.scalar(select(DeletedRun.id).where(DeletedRun.id == run_id)) is not None

    def messages_through(self, run_id: str) -> int:
        """Return the number of the run's newest event that has become messages for webhooks; 0 before the first."""
        return self._session.scalar(select(WebhookCursor.seq).where(WebhookCursor.run_id == run_id)) or 0

    def delete(self, run: Run) -> None:
        """Remove a run's row with all rows that hang on it, and note that its files are to be removed."""
        at = self.clock()  # one reading: `purge_at` beyond it means "for the second time"
        self._session.add(DeletedRun(id=run.id, name=run.name, project=run.project, deleted_at=at, purge_at=at))
        self._session.flush()
        self._session.execute(delete(Run).where(Run.id == run.id))

    def users(self, run: Run) -> Iterator[str]:
        """Iterate over sentences that name what outside a locked run needs it, or keeps a part of it.

        Its checkpoints are locked: no run begins with one of them, and no alias names one, before the commit.
        """
        locked = select(Checkpoint.id, Checkpoint.pinned_at).where(Checkpoint.run_id == run.id).with_for_update()
        found = self._session.execute(locked.order_by(Checkpoint.id)).all()
        for row in found:
            if row.pinned_at is not None:
                yield f"checkpoint {row.id} is pinned"
        yield from self._users_of([row.id for row in found], run)

    def _users_of(self, checkpoints: Sequence[str], run: Run) -> Iterator[str]:
        for some in parts(checkpoints):
            aliases = select(CheckpointAlias.name, CheckpointAlias.checkpoint_id)
            for alias in self._session.execute(aliases.where(CheckpointAlias.checkpoint_id.in_(some))):
                yield f"the alias {alias.name} stands for its checkpoint {alias.checkpoint_id}"
            begun = (
                select(Run.id, Run.name, Run.kind, RunInitialCheckpoint.checkpoint_id)
                .join(RunInitialCheckpoint, RunInitialCheckpoint.run_id == Run.id)
                .where(RunInitialCheckpoint.checkpoint_id.in_(some), Run.id != run.id)
            )
            for other in self._session.execute(begun.order_by(Run.id)):
                verb = "judges" if other.kind in {"match", "evaluate"} else "began with"
                yield f"the {other.kind} run {other.id} ({other.name}) {verb} its checkpoint {other.checkpoint_id}"
            yield from self._ladders(run, LadderPlayer.checkpoint_id.in_(some))
        yield from self._ladders(run, LadderPlayer.run_id == run.id)
        joined = (
            select(RunLadder.run_id)
            .join(Ladder, Ladder.id == RunLadder.ladder_id)
            .where(Ladder.run_id == run.id, RunLadder.run_id != run.id)
        )
        for other_id in self._session.scalars(joined):
            yield f"the run {other_id} plays on its ladder"

    def _ladders(self, run: Run, plays: ColumnElement[bool]) -> Iterator[str]:
        """Iterate over sentences that name the ladders but its own on which a policy of the run plays."""
        query = (
            select(Ladder.name, LadderPlayer.name.label("player"))
            .join(LadderPlayer, LadderPlayer.ladder_id == Ladder.id)
            .where(plays, or_(Ladder.run_id.is_(None), Ladder.run_id != run.id))
            .order_by(Ladder.name, LadderPlayer.id)
        )
        for row in self._session.execute(query):
            yield f"{row.player} plays on the ladder {row.name}"
