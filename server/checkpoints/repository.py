"""Reads and keeps the rows of checkpoints."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import ClassVar

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from server.artifacts import FileRef
from server.checkpoints.models import Checkpoint
from server.checkpoints.refs import CheckpointRef, NewCheckpoint
from server.db.clock import now
from server.db.ids import new_id
from server.db.keyset import Columns, select_page
from server.errors import CheckpointDeleted, CheckpointNotFound
from server.listing import ListQuery, Order, Page

NEWEST_FIRST = ListQuery(Order("created_at"))


class CheckpointRepository:
    """Checkpoints of runs."""

    COLUMNS: ClassVar[Columns] = {
        "created_at": Checkpoint.created_at,
        "step": Checkpoint.step,
        "reason": Checkpoint.reason,
        "epoch": Checkpoint.epoch,
    }

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, run_id: str, checkpoint_id: str) -> Checkpoint:
        """Return one checkpoint, deleted or not. Raises CheckpointNotFound."""
        checkpoint = self._session.get(Checkpoint, checkpoint_id)
        if checkpoint is None or checkpoint.run_id != run_id:
            raise CheckpointNotFound(checkpoint_id)
        return checkpoint

    def get_stored(self, run_id: str, checkpoint_id: str) -> Checkpoint:
        """Return one checkpoint whose files are there. Raises CheckpointNotFound, CheckpointDeleted."""
        checkpoint = self.get(run_id, checkpoint_id)
        if checkpoint.deleted_at is not None:
            raise CheckpointDeleted(checkpoint_id)
        return checkpoint

    def list(self, run_id: str, query: ListQuery = NEWEST_FIRST, *, deleted: bool = False) -> Page[Checkpoint]:
        """Return a page of a run's checkpoints, with `deleted` also those whose files are gone."""
        statement = select(Checkpoint).where(Checkpoint.run_id == run_id)
        if not deleted:
            statement = statement.where(Checkpoint.deleted_at.is_(None))
        return select_page(self._session, statement, query, self.COLUMNS, Checkpoint.id)

    def newest(self, run_id: str, *, below: Checkpoint | None = None) -> Checkpoint | None:
        """Return the checkpoint to resume from, or None. With `below`, the next best after that one."""
        query = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.deleted_at.is_(None))
        if below is not None:
            query = query.where(Checkpoint.id != below.id, Checkpoint.created_at <= below.created_at)
        order = (Checkpoint.epoch.desc(), Checkpoint.step.desc(), Checkpoint.created_at.desc(), Checkpoint.id.desc())
        return self._session.scalars(query.order_by(*order).limit(1)).one_or_none()

    def expired(self, run_id: str, keep: int) -> Sequence[Checkpoint]:
        """Return what retention may remove, oldest first: all but the newest `keep` and the final ones. 0 keeps all."""
        if keep <= 0:
            return []
        query = select(Checkpoint).where(
            Checkpoint.run_id == run_id, Checkpoint.deleted_at.is_(None), Checkpoint.reason != "final"
        )
        order = (Checkpoint.created_at.desc(), Checkpoint.step.desc(), Checkpoint.id.desc())
        return self._session.scalars(query.order_by(*order).offset(keep)).all()[::-1]

    def add(self, run_id: str, epoch: int, checkpoint: NewCheckpoint) -> tuple[Checkpoint, bool]:
        """Insert a row; return it and whether it is new. A path has one row: handing a checkpoint in again is safe."""
        known = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.path == checkpoint.path)
        row = self._session.scalars(known).one_or_none()
        if row is not None:
            return row, False
        row = Checkpoint(
            id=new_id("ckpt"),
            run_id=run_id,
            epoch=epoch,
            step=checkpoint.step,
            steps=dict(checkpoint.steps),
            reason=checkpoint.reason,
            path=checkpoint.path,
            files=[asdict(file) for file in checkpoint.files],
            size=sum(file.size for file in checkpoint.files),
            metrics=dict(checkpoint.metrics),
            created_at=now(),
        )
        self._session.add(row)
        self._session.flush()
        return row, True

    def mark_deleted(self, run_id: str, checkpoint_id: str) -> None:
        """Note that a checkpoint's files are removed."""
        self._session.execute(
            update(Checkpoint)
            .where(Checkpoint.id == checkpoint_id, Checkpoint.run_id == run_id, Checkpoint.deleted_at.is_(None))
            .values(deleted_at=now())
        )


def ref(checkpoint: Checkpoint) -> CheckpointRef:
    """Return a checkpoint as a value that outlives the session."""
    return CheckpointRef(
        id=checkpoint.id,
        epoch=checkpoint.epoch,
        step=checkpoint.step,
        steps=dict(checkpoint.steps),
        path=checkpoint.path,
        files=tuple(FileRef(**file) for file in checkpoint.files),
    )
